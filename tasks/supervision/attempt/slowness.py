"""Notices that the training of a run is slow, and what makes it so, while it goes on.

The ranks report their phase and step once a second; that, the memory of their processes and, where the first
rank waits a lot, an examination in a thread of its own are all that it needs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.core.findings import Finding
from tasks.runs import phases
from tasks.runs.folder import RunFolder

if TYPE_CHECKING:  # imported once a training takes steps, as the agent of most evaluations needs none of it
    from tasks.diagnosis.slow import SlowWatch

LOOK_S = 0.5


class Slowness:
    """The watch over the pace of one attempt."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._watch: SlowWatch | None = None
        self._last: phases.Phase | None = None
        self._looked = 0.0
        self._stood = False

    def look(self, pids: Sequence[int], stands_still: bool = False) -> Sequence[Finding]:
        """Return what was newly found; `pids` are the processes of the ranks. While the training
        `stands_still`, it is not slow: the verdict on that is another's."""
        now = time.monotonic()
        if stands_still:
            self._stood = True
            return ()
        if now - self._looked < LOOK_S:
            return ()
        self._looked = now
        newest = phases.read_phase(self._run.phase())
        if newest is None or newest.pid not in pids or newest.phase == "start":
            return ()
        watch = self._watch or self._begin(pids[0], now)
        if self._stood:
            self._stood = False
            watch.course.stalled(now)
        if self._last is None or newest.at > self._last.at:
            self._last = newest
            watch.note(newest.phase, newest.step, now)
        return watch.look(now)

    def _begin(self, pid: int, now: float) -> SlowWatch:
        from tasks.diagnosis.run_doctor import examine_run
        from tasks.diagnosis.slow import SlowWatch

        self._watch = SlowWatch(pid, now, lambda: examine_run(self._run).verdict.report.findings)
        return self._watch
