"""What one SIGKILL costs the training of the digits, and what the agent beside it costs.

The training is made undisturbed and with its rank killed halfway, on the same machine one after the other.
Printed are the share of the time that the killed one keeps, which is all but the restart and the steps that
are done again; the seconds from the kill to the next row, of which a new process takes some to import; both
goodputs; and the agent's share of a core, with its start, and its memory.

    python -m tests.benchmarks.bench_recovery [STEPS]
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
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

ROOT = Path(__file__).parents[2]
STEPS = 600


def main(steps: int) -> None:
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        os.chdir(folder)
        write_example("digits", Path("data/raw/digits"))
        changes = [f"train.steps={steps}", "train.checkpoint_every=100", "evaluate.every=100"]
        given = configs.load_config(ROOT / "configs" / "digits-clip.yaml", changes)
        version = build(given).version
        undisturbed_s = trained(plan(given, version), lambda status: None)
        again = configs.load_config(ROOT / "configs" / "digits-clip.yaml", [*changes, "name=killed"])
        run, killed = plan(again, version), [0.0]

        def kill_once(status: RunStatus) -> None:
            if not killed[0] and metrics.last_step(run.metrics) >= steps // 2:
                os.kill(rank_of(run).pid, signal.SIGKILL)
                killed[0] = time.time()

        killed_s = trained(run, kill_once)
        first, second = read_lives(run, 1)
        rows, _ = metrics.read_metrics(run.metrics)
        next_step = min(row["t"] for row in rows if row["t"] > killed[0])
        imports_s = second.spent["start"] + second.spent["first_batch"]
        print(f"killed at step {first.step}, resumed at step {second.first_step}")
        found = goodput_of(run, record.load_record(run))
        assert found is not None
        print(f"keeps        {1 - found.share('restarting'):.1%} of its time, by its goodput")
        print(
            f"beside       {undisturbed_s:.1f} s undisturbed, {killed_s:.1f} s killed, with the machine's noise"
        )
        print(f"kill to row  {next_step - killed[0]:.1f} s, of which a new process takes {imports_s:.1f} s")


def trained(run: RunFolder, watch: Callable[[RunStatus], None]) -> float:
    """Train a run; returns the seconds from its first rank's start to its last step, and prints the rest."""
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
    found = goodput_of(run, record.load_record(run))
    print(f"{run.name}: {found}")
    print(f"  agent {cpu_s / seconds:.2%} of a core, {most / 2**20:.0f} MB")
    lives = read_lives(run, 1)
    return lives[-1].ended - lives[0].began


def rank_of(run: RunFolder) -> Identity:
    return Identity.from_json(read_json(run.rank_identity(1)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
