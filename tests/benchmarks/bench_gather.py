"""How long after its file an evaluation's result is a row: in TensorBoard's event file, and in the wandb file.

A gatherer is at work on a run that goes on, as the agent has it; files with results come one by one. The second figure
includes the second that wandb keeps rows before it writes them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tasks.core.lock import Lease
from tasks.supervision.tracking import gathering, wandb_file
from tasks.supervision.tracking.tensorboard_files import TensorBoardFiles
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, value
from tests.conftest import ROOT
from tests.supervision.fakes import make_run
from tests.supervision.tracking.test_exactly_once import write_result

PAUSE_S, LOOK_S = 0.7, 0.05
WAYS = {"TensorBoard": "tensorboard_s", "wandb": "wandb_s"}


def delays(results: int) -> Row:
    """Medians of so many results, after one that shows that the gatherer is up."""
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), track={"mode": "offline"})
        readers: dict[str, Callable[[], Iterable[str]]] = {
            "TensorBoard": lambda: TensorBoardFiles(run).recorded(),
            "wandb": lambda: [row["uid"] for row in wandb_file.rows_of(run.wandb)],
        }
        written: dict[int, float] = {}
        seen: dict[str, dict[int, float]] = {name: {} for name in readers}

        def write() -> None:
            write_result(run, len(written) + 1)
            written[len(written) + 1] = time.monotonic()

        with Lease(run.lease):  # stands for the agent
            gathering.start_gatherer(run)
            write()
            while any(len(steps) <= results for steps in seen.values()):
                is_up = all(seen.values())
                if is_up and len(written) <= results and time.monotonic() >= max(written.values()) + PAUSE_S:
                    write()
                for name, uids in readers.items():
                    for step in (int(uid.split(":")[1]) for uid in uids()):
                        seen[name].setdefault(step, time.monotonic())
                time.sleep(LOOK_S)
        gathering.complete(run)
    return {
        WAYS[name]: statistics.median(steps[one] - written[one] for one in written if one > 1)
        for name, steps in seen.items()
    }


def cases(setup: Setup) -> Iterator[Case]:
    results = setup.sized(40, 5)
    yield Case(f"{results} results", {"tarmac": call(delays, results)})


BENCHMARKS = (
    Benchmark(
        "gather",
        "From a result to its row",
        "An evaluation's file is written, and the gatherer beside a training that goes on takes it into TensorBoard's "
        "event file and into the wandb run (offline): the median over the results of one measurement. wandb keeps rows "
        "for a second before it writes them.",
        cases,
        (Column("tensorboard_s", "s, TensorBoard", ".2f"), Column("wandb_s", "s, wandb", ".2f")),
        promises=tuple(
            Promise(f"delay to {name}", value("tarmac", key), "at most", 2.0, unit="s")
            for name, key in WAYS.items()
        ),
        packages=("wandb", "tensorboard"),
    ),
)
