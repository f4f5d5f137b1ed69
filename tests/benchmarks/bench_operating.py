"""What an operator waits for: the first line of a command, a command and a flow run with nothing to do, a click.

The flow runs are those of a real server and worker; their times are the server's.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from tests.benchmarks.harness import Benchmark, Case, Column, Failed, Row, Setup
from tests.services import BIN, ROOT, Api, environment, free_port, service, until

SHORT = (
    "train.steps=20",
    "train.warmup=2",
    "train.checkpoint_every=20",
    "evaluate.every=20",
    "track.mode=disabled",
)
SHORTLY = [word for key in SHORT for word in ("--set", key)]
"""What makes a run of the example short, as keys of its config and as words of a command."""
RUN = (
    str(BIN / "tarmac"),
    "run",
    "configs/digits-clip.yaml",
    *SHORTLY,
)


def first_line(project: Path, env: Mapping[str, str]) -> Row:
    """The seconds until a terminal shows something of `tarmac run`, in a new home without a server."""
    began = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(project)
        os.execve(RUN[0], RUN, dict(env))
    try:
        os.read(terminal, 1)
        return {"s": time.perf_counter() - began}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def succeeds(project: Path, env: Mapping[str, str], *command: str) -> Row:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command[:3])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return {"s": time.perf_counter() - began}


def flow_run(api: Api, worker: psutil.Process, deployment: str) -> Row:
    """The seconds from a click to Running, and from there to the end of a flow run with nothing to do; the most
    memory that its process took, pages shared with others included."""
    overrides = {"overrides": {"set": list(SHORT)}} if deployment.startswith("pipeline") else {}
    started = api.start(deployment, **overrides).raise_for_status().json()
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(api.completed, started["id"], 300)
        most = 0
        while not ending.done():
            most = max([most, *map(memory, worker.children(recursive=True))])
            time.sleep(0.05)
        ending.result()
    states = api.get(f"/flow_run_states/?flow_run_id={started['id']}")
    at = {
        state["type"]: datetime.fromisoformat(state["timestamp"].replace("Z", "+00:00")) for state in states
    }
    assert next(one for one in states if one["type"] == "COMPLETED")["name"] == "Unchanged"
    clicked, running, ended = (at[name].timestamp() for name in ("SCHEDULED", "RUNNING", "COMPLETED"))
    return {"wait_s": running - clicked, "s": ended - running, "mb": most / 1e6}


def memory(process: psutil.Process) -> int:
    """Bytes; 0 of one that has ended meanwhile."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def cases(setup: Setup) -> Iterator[Case]:
    place, port = setup.new_folder(), free_port()
    project = place / "project"
    (project / "configs").mkdir(parents=True)
    shutil.copy(ROOT / "configs/digits-clip.yaml", project / "configs")
    env = environment(place / "home", port)
    alone = {name: value for name, value in env.items() if not name.startswith("PREFECT_API")}
    succeeds(project, alone, RUN[0], "example", "digits")
    yield Case(
        "the first line of `tarmac run` in a new home",
        {"tarmac run": lambda: first_line(project, {**alone, "PREFECT_HOME": str(setup.new_folder())})},
    )
    succeeds(project, alone, *RUN)
    yield Case("a command with nothing to do", {"tarmac run": partial(succeeds, project, alone, *RUN)})
    up = ["sh", "-c", f"cd {project} && exec {RUN[0]} up --port {port}"]
    with service(up, place / "up.log", dict(alone)) as command:
        api = Api(env["PREFECT_API_URL"])
        until("the worker", lambda: "started!" in (place / "up.log").read_text(), 300)
        names = ("build/digits-clip", "pipeline/digits-clip")[: setup.sized(2, 1)]
        (worker,) = (
            one for one in psutil.Process(command.pid).children(recursive=True) if "worker" in one.cmdline()
        )
        yield Case(
            "a flow run with nothing to do", {name: partial(flow_run, api, worker, name) for name in names}
        )
        yield Case("the worker", {"at rest": lambda: {"mb": memory(worker) / 1e6}})


BENCHMARKS = (
    Benchmark(
        "operating",
        "Orchestration",
        "What a person waits for: the first line of `tarmac run` where Prefect has never been started, a whole command "
        "where all is up to date, with a temporary server, and of a deployment's flow run the time from the click to "
        "Running and from there to its end, by the server's clock, with a server and a worker that are up. Memory counts pages that are shared with others.",
        cases,
        (Column("wait_s", "s from the click to Running", ".2f"), Column("s", "s", ".2f"), Column("mb", "MB")),
        packages=("prefect",),
    ),
)
