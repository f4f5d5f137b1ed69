"""What an operator waits for: the first line of a command, a command and a flow run with nothing to do, a click.

    .venv/bin/python -m tests.benchmarks.bench_operating

The flow runs are those of a real server and worker; their times are the server's. Figures move with the load of
the machine, so they are printed and judged by people.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tests.services import BIN, ROOT, Api, environment, free_port, service, until

ROUNDS = 5
QUICK = (
    "train.steps=20",
    "train.warmup=2",
    "train.checkpoint_every=20",
    "evaluate.every=20",
    "track.mode=disabled",
)
RUN = (
    str(BIN / "tarmac"),
    "run",
    "configs/digits-clip.yaml",
    *(word for key in QUICK for word in ("--set", key)),
)


def first_line(project: Path, env: Mapping[str, str]) -> float:
    """Return the seconds until a terminal shows something of `tarmac run`, in a new home without a server."""
    began = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(project)
        os.execve(RUN[0], RUN, dict(env))
    try:
        os.read(terminal, 1)
        return time.perf_counter() - began
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def seconds_of(project: Path, env: Mapping[str, str], *command: str) -> float:
    """Return the seconds that a command takes, which succeeds."""
    began = time.perf_counter()
    subprocess.run(command, cwd=project, env=env, check=True, capture_output=True)
    return time.perf_counter() - began


def flow_run(api: Api, deployment: str) -> tuple[float, float]:
    """Return the seconds from a click to Running, and from there to the end of a flow run with nothing to do."""
    overrides = {"overrides": {"set": list(QUICK)}} if deployment.startswith("pipeline") else {}
    started = api.start(deployment, **overrides).raise_for_status().json()
    api.completed(started["id"], 300)
    states = api.get(f"/flow_run_states/?flow_run_id={started['id']}")
    at = {
        state["type"]: datetime.fromisoformat(state["timestamp"].replace("Z", "+00:00")) for state in states
    }
    assert next(one for one in states if one["type"] == "COMPLETED")["name"] == "Unchanged"
    clicked, running, ended = (at[name].timestamp() for name in ("SCHEDULED", "RUNNING", "COMPLETED"))
    return running - clicked, ended - running


def show(what: str, seconds: list[float]) -> None:
    print(
        f"{what:<46} {statistics.median(seconds):6.2f} s   ({min(seconds):.2f} to {max(seconds):.2f})",
        flush=True,
    )


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        project, port = Path(place) / "project", free_port()
        (project / "configs").mkdir(parents=True)
        shutil.copy(ROOT / "configs/digits-clip.yaml", project / "configs")
        env = environment(Path(place) / "home", port)
        alone = {name: value for name, value in env.items() if not name.startswith("PREFECT_API")}
        seconds_of(project, alone, RUN[0], "example", "digits")
        lines = [
            first_line(project, {**alone, "PREFECT_HOME": f"{place}/{number}"}) for number in range(ROUNDS)
        ]
        show("first line of tarmac run, new home, no server", lines)
        seconds_of(project, alone, *RUN)
        show("tarmac run, all up to date", [seconds_of(project, alone, *RUN) for _ in range(ROUNDS)])
        up = [RUN[0], "up", "--port", str(port)]
        with service(
            ["sh", "-c", f"cd {project} && exec {' '.join(up)}"], Path(place) / "up.log", dict(alone)
        ):
            api = Api(env["PREFECT_API_URL"])
            until("the worker", lambda: "started!" in (Path(place) / "up.log").read_text(), 300)
            for deployment in ("build/digits-clip", "pipeline/digits-clip"):
                flow_run(api, deployment)
                waits, works = zip(*(flow_run(api, deployment) for _ in range(ROUNDS)), strict=True)
                show(f"{deployment}: from a click to Running", list(waits))
                show(f"{deployment}: Running to Unchanged", list(works))


if __name__ == "__main__":
    main()
