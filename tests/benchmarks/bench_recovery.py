"""What one SIGKILL costs the training of the digits, and what the agent beside it costs.

The training is made undisturbed, and with its rank killed halfway. Of the killed one counts the share of the time that
it keeps, which is all but the restart and the steps that are done again, and the seconds from the kill to the next row,
of which a new process takes some to import.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tasks.core import config as configs
from tasks.core.files import read_json
from tasks.core.process import Identity
from tasks.dataset.building.builder import build
from tasks.dataset.examples import write_example
from tasks.runs import metrics, record
from tasks.runs.folder import RunFolder
from tasks.runs.goodput import goodput_of
from tasks.runs.lives import read_lives
from tasks.runs.plan import plan
from tasks.supervision import launch
from tasks.supervision.status import RunStatus
from tests.benchmarks.harness import Benchmark, Case, Column, Row, Setup, call

ROOT = Path(__file__).parents[2]
UNDISTURBED, KILLED = "undisturbed", "killed halfway"


def trained(way: str, steps: int) -> Row:
    """A training from its first rank's start to its last step; `percent` is the agent's share of a core."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        os.chdir(folder)
        write_example("digits", Path("data/raw/digits"))
        every = steps // 6
        changes = [f"train.steps={steps}", f"train.checkpoint_every={every}", f"evaluate.every={steps}"]
        config = configs.load_config(ROOT / "configs" / "digits-clip.yaml", changes)
        run = plan(config, build(config).version)
        killed = 0.0

        def kill_once(status: RunStatus) -> None:
            nonlocal killed
            if not killed and metrics.last_step(run.metrics) >= steps // 2:
                os.kill(rank_of(run).pid, signal.SIGKILL)
                killed = time.time()

        row = followed(run, kill_once if way == KILLED else lambda status: None)
        if way == UNDISTURBED:
            return row
        found = goodput_of(run, record.load_record(run))
        assert found is not None
        rows, _ = metrics.read_metrics(run.metrics)
        second = read_lives(run, 1)[1]
        return {
            **row,
            "kept": 100 * (1 - found.share("restarting")),
            "next_row_s": min(row["t"] for row in rows if row["t"] > killed) - killed,
            "process_s": second.spent["start"] + second.spent["first_batch"],
        }


def followed(run: RunFolder, watch: Callable[[RunStatus], None]) -> dict[str, float]:
    launch.start_or_adopt(run)
    launch.follow(run, lambda status: bool(status.record.attempts))
    agent = psutil.Process(record.load_record(run).attempts[0].pid)
    cpu_s, began, most = 0.0, time.monotonic(), 0

    def look(status: RunStatus) -> None:
        nonlocal cpu_s, most
        if agent.is_running():
            spent, memory = agent.cpu_times(), agent.memory_info().rss
            cpu_s, most = spent.user + spent.system, max(most, memory)
        watch(status)

    launch.wait_for_training(run, look)
    seconds = time.monotonic() - began
    launch.wait_for_evaluations(run)
    lives = read_lives(run, 1)
    return {"s": lives[-1].ended - lives[0].began, "percent": 100 * cpu_s / seconds, "mb": most / 2**20}


def rank_of(run: RunFolder) -> Identity:
    return Identity.from_json(read_json(run.rank_identity(1)))


def cases(setup: Setup) -> Iterator[Case]:
    steps = setup.sized(600, 60)
    ways = setup.sized((UNDISTURBED, KILLED), (KILLED,))
    yield Case(f"{steps} steps", {way: call(trained, way, steps) for way in ways})


BENCHMARKS = (
    Benchmark(
        "recovery",
        "What a killed process costs",
        "A training of the digits with a checkpoint every sixth of its steps and one evaluation at its end, undisturbed, "
        "and with its rank killed by SIGKILL halfway. What it keeps is all of its time but the restart and the steps "
        "done again. The agent's share of a core includes its start.",
        cases,
        (
            Column("s", "s", ".1f"),
            Column("kept", "% of its time kept", ".1f"),
            Column("next_row_s", "s from the kill to the next row", ".1f"),
            Column("process_s", "of which a new process takes", ".1f"),
            Column("percent", "% of a core for the agent", ".2f"),
            Column("mb", "MB of the agent"),
        ),
        packages=("torch",),
        is_warm=False,
    ),
)
