"""How long `tarmac doctor --pid` takes at two busy cores, for trainings that have stalled for half a minute.

Every third stall of those that the daily tests have is made by a living training, one after the other.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.harness import Absent, Benchmark, Case, Column, Promise, Row, Setup, call
from tests.stalls.contract import started
from tests.stalls.test_matrix import DAILY, ROWS, ask

STALLED_S = 25.0
BUSY = "while True: pass"


def answered(name: str) -> Row:
    (stall,) = (row for row in ROWS if row.name == name)
    if reason := stall.missing():
        raise Absent(str(reason))
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        with tempfile.TemporaryDirectory(prefix="stall-") as place, started(stall, Path(place)) as training:
            time.sleep(STALLED_S)
            return {"s": ask(training, Path(place)).seconds}
    finally:
        for one in busy:
            one.kill()
            one.wait()


def cases(setup: Setup) -> Iterator[Case]:
    stalls = [row.name for row in ROWS if row.name in DAILY and row.missing() is None][::3]
    some = stalls[: setup.sized(None, 1)]
    yield Case("two busy cores", {name: call(answered, name) for name in some})


BENCHMARKS = (
    Benchmark(
        "doctor",
        "Diagnosing a stall",
        "`tarmac doctor --pid` of a training that has stalled for 25 s, while two other processes keep both cores busy: "
        "the time of the whole command, for three of the stalls of the matrix.",
        cases,
        (Column("s", "s", ".1f"),),
        promises=(
            Promise(
                "the median over the stalls",
                lambda figures: median(row["s"] for row in figures.medians.values()),
                "at most",
                8.0,
                unit="s",
            ),
        ),
        packages=("py-spy", "torch"),
        is_warm=False,
    ),
)
