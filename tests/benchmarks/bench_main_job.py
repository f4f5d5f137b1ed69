"""The main job as a person waits for it: seconds in all, seconds of orchestration, seconds of doing nothing.

Orchestration is the wall time of the whole command less what its stages took: Python's and Prefect's start,
the server's start where it is a temporary one, and Prefect's end of a flow. Three places: a temporary server
with a new database, the same with the database that is now there, and a running server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.bench_operating import SHORTLY
from tests.benchmarks.harness import Benchmark, Case, Column, Failed, Row, Setup
from tests.services import BIN, environment, free_port, prefect_server

ROOT = Path(__file__).parents[2]
COMMAND = [str(BIN / "tarmac"), "run", "configs/digits-clip.yaml", "--json"]


def timed(project: Path, env: dict[str, str], more: Sequence[str]) -> tuple[float, dict[str, object]]:
    """Wall seconds of the command, and what it told."""
    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, *more], cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    took = time.monotonic() - began
    printed = json.loads(done.stdout)
    if done.returncode != 0:
        raise Failed(f"the run failed: {printed}")
    return took, printed


def job(project: Path, more: Sequence[str], env: dict[str, str]) -> Row:
    """The job from nothing, and once more with nothing to do."""
    for made in ("data/digits", "runs"):
        shutil.rmtree(project / made, ignore_errors=True)
    took, found = timed(project, env, more)
    stages = sum(stage["seconds"] for stage in found["stages"])  # type: ignore[attr-defined]
    return {"s": took, "orchestration_s": took - stages, "again_s": timed(project, env, more)[0]}


def cases(setup: Setup) -> Iterator[Case]:
    place = setup.new_folder()
    project = place / "project"
    shutil.copytree(ROOT / "configs", project / "configs")
    subprocess.run([BIN / "tarmac", "example", "digits"], cwd=project, check=True, stdout=subprocess.DEVNULL)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env = environment(place / "server", free_port())
    with prefect_server(env, place / "server.log"):
        run = partial(job, project, setup.sized([], SHORTLY))
        places = {
            "temporary server, new": lambda: run({**kept, "PREFECT_HOME": str(setup.new_folder())}),
            "temporary server, existing": lambda: run({**kept, "PREFECT_HOME": str(place / "home")}),
            "running server": lambda: run(env),
        }
        some = dict([*places.items()][: setup.sized(3, 1)])
        yield Case("digits, from raw files to an evaluated model", some)


BENCHMARKS = (
    Benchmark(
        "main_job",
        "The main job",
        "`tarmac run configs/digits-clip.yaml` from raw files to the report, and once more with nothing to do. "
        "Orchestration is the time of the command less that of its stages: the start of Python, of Prefect and of a "
        "temporary server, and Prefect's end of a flow.",
        cases,
        (
            Column("s", "s", ".1f"),
            Column("orchestration_s", "s of orchestration", ".1f"),
            Column("again_s", "s with nothing to do", ".2f"),
        ),
        packages=("prefect", "torch"),
    ),
)
