"""How long after its file an evaluation's result is a row: in TensorBoard's event file, and in the wandb file.

A gatherer is at work on a run that goes on, as the agent has it; RESULTS files come one by one. The second figure
includes the second that wandb keeps rows before it writes them.

    .venv/bin/python -m tests.benchmarks.bench_gather

Exits with 1 where a median is above BOUND_S.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tasks.core.lock import Lease
from tasks.supervision.tracking import gathering, wandb_file
from tasks.supervision.tracking.tensorboard_files import TensorBoardFiles
from tests.conftest import ROOT
from tests.supervision.fakes import make_run
from tests.supervision.tracking.test_exactly_once import write_result

RESULTS, PAUSE_S, LOOK_S = 40, 0.7, 0.05
BOUND_S = 2.0


def main() -> int:
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), track={"mode": "offline"})
        readers: dict[str, Callable[[], Iterable[str]]] = {
            "TensorBoard": lambda: TensorBoardFiles(run).recorded(),
            "wandb": lambda: [row["uid"] for row in wandb_file.rows_of(run.wandb)],
        }
        written: dict[int, float] = {}
        seen: dict[str, dict[int, float]] = {name: {} for name in readers}
        with Lease(run.lease):  # stands for the agent
            gathering.start_gatherer(run)
            while any(len(steps) < RESULTS for steps in seen.values()):
                now = time.monotonic()
                if len(written) < RESULTS and now >= max(written.values(), default=0.0) + PAUSE_S:
                    write_result(run, len(written) + 1)
                    written[len(written) + 1] = time.monotonic()
                for name, uids in readers.items():
                    for step in (int(uid.split(":")[1]) for uid in uids()):
                        seen[name].setdefault(step, time.monotonic())
                time.sleep(LOOK_S)
        gathering.complete(run)
    medians = {}
    for name, steps in seen.items():
        delays = sorted(steps[step] - written[step] for step in written)
        medians[name] = statistics.median(delays)
        ninth = delays[len(delays) * 9 // 10]
        print(f"{name}: {RESULTS} results, median {medians[name]:.2f} s, nine in ten within {ninth:.2f} s")
    return int(max(medians.values()) > BOUND_S)


if __name__ == "__main__":
    sys.exit(main())
