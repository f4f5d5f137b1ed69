"""The stall matrix: every stall that this machine can produce, examined by `tarmac doctor` as its user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.stalls import open_clip, own, pool, waits
from tests.stalls.contract import Stall, Training, started

AT_ONCE = 3
ROWS: tuple[Stall, ...] = (
    *open_clip.STALLS, *own.STALLS, *waits.STALLS, *pool.STALLS, *open_clip.HEALTHY, *own.HEALTHY, *waits.HEALTHY,
)  # fmt: skip
NO_TRACE = Path(__file__).with_name("no_trace.py")
DAILY = {
    "no caption member, resampled", "fewer samples per worker than a batch", "deadlock on a lock held at fork",
    "worker killed by a signal", "/dev/shm full", "wandb: hung server at init", "uneven ranks at an epoch's end",
    "SIGKILL of rank 3 of 4", "open_clip, two workers",
}  # fmt: skip
"""What people report most, and a healthy training; the others are in `make proof`."""
TARMAC = Path(sys.executable).with_name("tarmac")
pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Answer:
    """What doctor said of one row. `first` is its first code, "" where it found nothing."""

    report: dict[str, Any]
    exit_code: int
    seconds: float

    @property
    def first(self) -> str:
        return self.report["findings"][0]["code"] if self.report["findings"] else ""

    def score(self, stall: Stall) -> int:
        if stall.is_healthy:
            return -1 if any(one["severity"] == "error" for one in self.report["findings"]) else 1
        if self.first in ("unknown", ""):
            return 0
        found = self.report["findings"][0]
        is_named = stall.rank is None or found["where"].get("rank") == stall.rank
        return 1 if self.first in stall.codes and is_named and stall.words in self.report["verdict"] else -1


@dataclass(frozen=True)
class Answers:
    """What doctor said, and what it said at the same time to one who may not trace; None where nothing lives."""

    traced: Answer
    untraced: Answer | None


def ask(training: Training, folder: Path, *before: str | Path) -> Answer:
    """`tarmac doctor` on the training; by its log where it has ended."""
    gone = training.process.poll() is not None
    which = ["--log", str(training.log)] if gone else ["--pid", str(training.pid)]
    began = time.monotonic()
    page = folder / f"page-{len(before)}.html"
    done = subprocess.run(
        [*before, TARMAC, "doctor", *which, "--json", "--out", page],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout, done.stderr
    return Answer(json.loads(done.stdout), done.returncode, time.monotonic() - began)


def examine(stall: Stall, folder: Path) -> Answers:
    with started(stall, folder) as training, ThreadPoolExecutor(1) as pool:
        if stall.is_healthy or training.process.poll() is not None:
            return Answers(ask(training, folder), None)
        untraced = pool.submit(ask, training, folder, sys.executable, NO_TRACE)
        return Answers(ask(training, folder), untraced.result())


@pytest.fixture(scope="module")
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Answers]]]:
    """All rows that were asked for, some at a time, because each mostly waits."""
    folder = tmp_path_factory.mktemp("stalls")
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    asked = [call.params["stall"] for call in calls if "stall" in call.params]
    rows = [stall for stall in asked if stall.missing() is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {
            stall.name: pool.submit(examine, stall, folder / str(number)) for number, stall in enumerate(rows)
        }
        yield found


def rows() -> Iterator[Any]:
    """All rows, those that are not DAILY marked for `make proof`."""
    for stall in ROWS:
        marks = [] if stall.name in DAILY else [pytest.mark.proof]
        yield pytest.param(stall, id=stall.name, marks=marks)


@pytest.mark.parametrize("stall", [*rows()])
def test_the_cause_is_named(stall: Stall, answers: dict[str, Future[Answers]]) -> None:
    if (reason := stall.missing()) is not None:
        pytest.skip(reason)
    found = answers[stall.name].result()
    answer, untraced = found.traced, found.untraced
    print(f"{stall.name}: {answer.first or 'nothing'} in {answer.seconds:.0f} s: {answer.report['verdict']}")
    assert answer.score(stall) == 1, json.dumps(
        {key: value for key, value in answer.report.items() if key != "observation"}, indent=1
    )
    assert answer.exit_code == (0 if answer.report["ok"] else 1)
    if untraced is not None:
        assert os.geteuid() != 0 or any("stacks" in one for one in untraced.report["not_seen"])
        assert untraced.score(stall) >= (0 if stall.needs_stacks else 1), untraced.report["verdict"]
