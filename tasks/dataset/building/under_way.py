"""`DATASET/progress.json`: how far the build is that is under way, for whoever looks at it.

It is a sign of life, at most one every INTERVAL_S, and worth nothing once the dataset's lease is nobody's.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.core.files import read_json, write_json
from tasks.core.lock import Holder, holder_of
from tasks.core.pace import how_far
from tasks.core.screen import Progress
from tasks.dataset.version.layout import LEASE, PROGRESS, STAGING

INTERVAL_S = 2.0


@dataclass(frozen=True)
class BuildProgress:
    """`done` of `total` (0 where it is not known yet) of what `note` names, at the time `at`; the count of
    this total began with `first` at `since` (Unix seconds)."""

    done: int
    total: int
    note: str
    at: float
    first: int
    since: float

    @property
    def left_s(self) -> float | None:
        """Seconds that are left at the rate until now; None where it is not known."""
        made, took_s = self.done - self.first, self.at - self.since
        return (self.total - self.done) * took_s / made if self.total and made > 0 < took_s else None


class ProgressFile:
    """Passes a build's progress on to `shown`, and keeps the newest in the dataset's folder from `begin` to
    `end`."""

    def __init__(self, dataset: Path, shown: Progress) -> None:
        self._path, self._shown = dataset / PROGRESS, shown
        self._is_begun = False
        self._last: BuildProgress | None = None

    def __call__(self, done: int, total: int, note: str) -> None:
        self._shown(done, total, note)
        now, last = time.time(), self._last
        if not self._is_begun or (last is not None and now - last.at < INTERVAL_S):
            return
        is_same = last is not None and last.total == total and done >= last.done
        first, since = (last.first, last.since) if is_same and last is not None else (done, now)
        self._last = BuildProgress(done, total, note, now, first, since)
        self._write(self._last)

    def begin(self) -> None:
        self._is_begun = True
        now = time.time()
        self._write(BuildProgress(0, 0, "starting", now, 0, now))

    def _write(self, found: BuildProgress) -> None:
        with suppress(OSError):  # a full disk ends the build by what it builds
            write_json(self._path, asdict(found))

    def end(self) -> None:
        self._is_begun = False
        self._path.unlink(missing_ok=True)


def build_under_way(dataset: Path) -> tuple[Holder, BuildProgress | None] | None:
    """Return who works on a dataset and how far that is, None where it is not known; None where nobody
    does."""
    holder = holder_of(dataset / LEASE)
    if holder is None or not holder.is_alive():
        return None
    found = _recorded(dataset)
    return holder, found if found is not None and found.at >= holder.since else None


def left_off(dataset: Path) -> str:
    """Return in words how far a build came that ended before its end and that nobody goes on with; empty
    where there is none."""
    holder = holder_of(dataset / LEASE)
    if (holder is not None and holder.is_alive()) or not (dataset / STAGING).is_dir():
        return ""
    found = _recorded(dataset)
    if found is None:
        return "a build has stopped before its end"
    at = f" at {how_far(found.done, found.total, found.note)}" if found.done else ""
    return f"a build was interrupted{at}"


def _recorded(dataset: Path) -> BuildProgress | None:
    try:
        return BuildProgress(**read_json(dataset / PROGRESS))
    except (OSError, ValueError, TypeError):
        return None
