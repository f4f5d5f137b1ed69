"""The main job as a person waits for it: seconds in all, seconds of orchestration, seconds of doing nothing.

Orchestration is the wall time of the whole command less what its stages took: Python's and Prefect's start,
the server's start where it is a temporary one, and Prefect's end of a flow. Three places: a temporary server
with a new database, the same with the database that is now there, and a running server.

    .venv/bin/python -m tests.benchmarks.bench_main_job
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.services import BIN, environment, free_port, prefect_server

ROOT = Path(__file__).parents[2]
COMMAND = [str(BIN / "tarmac"), "run", "configs/digits-clip.yaml", "--json"]


def timed(project: Path, env: dict[str, str]) -> tuple[float, dict[str, object]]:
    """Wall seconds of the command, and what it told."""
    began = time.monotonic()
    done = subprocess.run(COMMAND, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    took = time.monotonic() - began
    printed = json.loads(done.stdout)
    if done.returncode != 0:
        sys.exit(f"the run failed: {printed}")
    return took, printed


def measure(name: str, project: Path, env: dict[str, str]) -> None:
    """One line: the job from nothing, and once more with nothing to do."""
    for made in ("data/digits", "runs"):
        shutil.rmtree(project / made, ignore_errors=True)
    took, found = timed(project, env)
    stages = sum(stage["seconds"] for stage in found["stages"])  # type: ignore[attr-defined]
    again, _ = timed(project, env)
    accuracy = found["metrics"]["zero_shot_top1"]  # type: ignore[index]
    print(
        f"{name:<28} {took:7.1f} s   orchestration {took - stages:5.1f} s   again {again:5.2f} s   "
        f"accuracy {accuracy:.3f}   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        project, home = Path(folder) / "project", Path(folder) / "prefect"
        shutil.copytree(ROOT / "configs", project / "configs")
        subprocess.run(
            [BIN / "tarmac", "example", "digits"], cwd=project, check=True, stdout=subprocess.DEVNULL
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        alone = {**kept, "PREFECT_HOME": str(home)}
        measure("temporary server, new", project, alone)
        measure("temporary server, existing", project, alone)
        env = environment(home, free_port())
        with prefect_server(env, Path(folder) / "server.log"):
            measure("running server", project, env)


if __name__ == "__main__":
    main()
