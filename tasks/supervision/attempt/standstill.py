"""Notices that a training stands still, has it examined while it lives, and reports when it goes on.

While they step, the ranks report their progress at least once a second. How long a normal silence lasts
depends on the phase and on the run, so the limit is ten times the longest silence that the run has shown in
this phase, and never less than a minute. The examination runs in a separate thread, because it takes several
seconds in which the agent has other duties. It ends no process: it gathers evidence, and the agent decides
what to do about it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.core.files import write_json
from tasks.core.findings import Finding
from tasks.core.units import format_duration
from tasks.runs import phases
from tasks.runs.folder import RunFolder

if TYPE_CHECKING:  # imported only for an examination, which most runs never need
    from tasks.diagnosis.examination import Examination

LEAST_S: Mapping[str, float] = {"start": 300.0, "first_batch": 120.0, "step": 60.0}
LEAST_ELSE_S = 180.0
"""The limit in validation, checkpoint and end, which report their progress less often."""
TIMES = 10.0
"""The limit in multiples of the longest normal silence of the phase."""
LOOK_S = 2.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stalled:
    """The training stands still for the causes in `findings`; `reason` is the verdict as a sentence.
    `is_paused` is true if a signal or a debugger has stopped it."""

    reason: str
    findings: Sequence[Finding]
    is_paused: bool = False


@dataclass(frozen=True)
class GoesOn:
    """A training that stood still for `stood_s` in `phase` has reported progress again."""

    phase: str
    stood_s: float


class Standstill:
    """The watch over the ranks of one attempt."""

    def __init__(self, run: RunFolder, attempt: int) -> None:
        self._run = run
        self._attempt = attempt
        self._longest: dict[str, float] = {}
        """The longest normal silence per phase."""
        self._last: phases.Phase | None = None
        self._looked = 0.0
        self._patience = 1.0
        """A factor on the limit, which every examination without a finding doubles: a phase that is only
        slow is then examined less and less often."""
        self._examination: Future[Examination] | None = None
        self._is_stalled = False
        self._stood_s = self._stalled_wait_s = 0.0

    def stalled_wait_s(self) -> float:
        """Return in how much of the stalls that are over the ranks waited for data."""
        newest = phases.read_phase(self._run.phase())
        if newest is not None and self._last is not None and newest.at > self._last.at:
            self._take_progress(newest)
        return self._stalled_wait_s

    def _count_wait(self, before: phases.Phase, newest: phases.Phase, stood_s: float) -> None:
        """Count the wait for data within a stall, of `stood_s` seconds between these two signs of life or
        earlier. A rank adds its waiting up every few steps, so that within a stall is reported some signs
        later: it is what exceeds the time between two signs."""
        if newest.pid != before.pid:
            return
        self._stood_s += stood_s
        elapsed_s = newest.at - before.at - stood_s
        excess_s = max(newest.data_wait_s - before.data_wait_s - elapsed_s, 0.0)
        self._stalled_wait_s = min(self._stalled_wait_s + excess_s, self._stood_s)

    def look(self, pids: Sequence[int]) -> Stalled | GoesOn | None:
        """Return the verdict on a standstill, or its end, where either is new since the last call.

        `pids` are the processes of the ranks, in the order of the ranks.
        """
        if self._examination is not None and self._examination.done():
            return self._take_verdict(self._examination)
        now = time.time()
        if now - self._looked < LOOK_S:
            return None
        self._looked = now
        found = [phases.read_phase(self._run.phase(rank)) for rank in range(len(pids))]
        newest = max((one for one in found if one is not None), key=lambda one: one.at, default=None)
        if newest is None or newest.pid not in pids:
            return None
        if self._last is None or newest.at > self._last.at:
            return self._take_progress(newest)
        silent_s, is_known = now - newest.at, self._is_stalled or self._examination is not None
        least_s = LEAST_S.get(newest.phase, LEAST_ELSE_S)
        limit_s = max(least_s, TIMES * self._longest.get(newest.phase, 0.0)) * self._patience
        if not is_known and silent_s > limit_s:
            self._examine(newest.phase, silent_s)
        return None

    def _take_progress(self, newest: phases.Phase) -> GoesOn | None:
        """Record newer progress. The silence before it was normal unless it was judged a standstill."""
        if self._last is not None and newest.pid == self._last.pid and not self._is_stalled:
            silence = newest.at - self._last.at
            self._longest[self._last.phase] = max(self._longest.get(self._last.phase, 0.0), silence)
        went_on = None
        if self._last is not None and self._is_stalled:
            went_on = GoesOn(self._last.phase, newest.at - self._last.at)
        if self._last is not None:
            self._count_wait(self._last, newest, 0.0 if went_on is None else went_on.stood_s)
        self._last, self._is_stalled = newest, False
        return went_on

    @property
    def stands(self) -> GoesOn | None:
        """What it would be to go on now; None where the training does not stand still."""
        if self._last is None or not self._is_stalled:
            return None
        return GoesOn(self._last.phase, time.time() - self._last.at)

    def _examine(self, phase: str, silent_s: float) -> None:
        from tasks.diagnosis.run_doctor import examine_run

        logger.warning("no sign of life for %s in phase %s; examining", format_duration(silent_s), phase)
        pool = ThreadPoolExecutor(1, thread_name_prefix="examination")
        self._examination = pool.submit(examine_run, self._run)
        pool.shutdown(wait=False)

    def _take_verdict(self, examination: Future[Examination]) -> Stalled | None:
        self._examination = None
        if (error := examination.exception()) is not None:  # the agent goes on without a verdict
            logger.error("the examination failed", exc_info=error)
            self._patience *= 2
            return None
        done = examination.result()
        if done.observation is not None:
            write_json(self._run.observation(self._attempt), done.observation.to_json())
        if self._last is None or done.verdict.state in ("works", "gone"):
            self._patience *= 2
            logger.info("nothing is wrong: %s", done.verdict.sentence)
            return None
        self._is_stalled = True
        silent = format_duration(time.time() - self._last.at)
        reason = f"stalled for {silent} at step {self._last.step}: {done.verdict.sentence}"
        return Stalled(reason, done.verdict.report.findings, done.verdict.state == "paused")
