"""`phases/rank_r.json`: what a rank is doing, since when, and which worker processes serve it.

It is a sign of life, replaced by rename at most once a second and not forced to disk: after a power cut no
process lives that it could describe, and a training step must not wait for a disk. Nor does a training end
because it could not be written, as on a full disk. It does end where its run is another agent's by now: each
sign of life checks that first, so at most a second of work is written into what is no longer its own.

It also adds up how long the rank was in each phase, from which `tasks.runs.goodput` is made.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tasks.core.files import read_json
from tasks.runs.environment import leave_if_taken_over
from tasks.runs.folder import RunFolder

PhaseName = Literal["start", "first_batch", "step", "validate", "checkpoint", "end"]
INTERVAL_S = 1.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Phase:
    """The rank is in `phase` since `since`, at `step`; `at` is when it last reported that (Unix seconds).

    `spent` holds the seconds of this process in each phase until then, `data_wait_s` those of them in which
    it waited for data between steps, and `first_step` is where it began.
    """

    phase: str
    step: int
    since: float
    at: float
    pid: int
    workers: Sequence[int]
    spent: Mapping[str, float] = field(default_factory=dict)
    data_wait_s: float = 0.0
    first_step: int = 0


class PhaseWriter:
    """Reports what one rank is doing."""

    def __init__(self, folder: RunFolder, rank: int = 0) -> None:
        self._folder = folder
        self._path = folder.phase(rank)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._last: Phase | None = None
        self._has_warned = False
        self._spent: dict[str, float] = {}
        self._counted = 0.0
        """Until when the time of the present phase is in `_spent`."""
        self._first_step: int | None = None
        self.data_wait_s = 0.0
        """Seconds between steps in which the rank waited for data, as whoever measures them adds them up."""

    def set(self, phase: PhaseName, step: int, workers: Sequence[int] = ()) -> None:
        """Report it, at most once a second within one phase; a change of phase is always reported."""
        now = time.time()
        last = self._last
        changed = last is None or last.phase != phase
        if last is not None:
            self._spent[last.phase] = self._spent.get(last.phase, 0.0) + now - self._counted
        self._counted = now
        if self._first_step is None and phase != "start":
            self._first_step = step
        if last is not None and not changed and now - last.at < INTERVAL_S:
            return
        leave_if_taken_over(self._folder)
        since = now if last is None or changed else last.since
        self._last = Phase(
            phase,
            step,
            since,
            now,
            os.getpid(),
            list(workers),
            {name: round(seconds, 3) for name, seconds in self._spent.items()},
            round(self.data_wait_s, 3),
            self._first_step or 0,
        )
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            draft.write_text(json.dumps(asdict(self._last)), encoding="utf-8")
            os.replace(draft, self._path)
        except OSError as error:
            if not self._has_warned:
                logger.warning("%s: no sign of life (%s); trying on", self._path, error)
            self._has_warned = True


def read_phase(path: Path) -> Phase | None:
    """Return what the rank last reported; None when there is nothing readable yet."""
    try:
        return Phase(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None
