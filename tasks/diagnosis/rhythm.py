"""Finds by the lines of a training when it has been silent for longer than is normal.

Each phase has its own measure: the start, the wait for the first batch, a step, a validation, a checkpoint.
The run itself shows what is normal; until there are enough lines, each phase has a fixed patience. Silence is
a suspicion and no verdict: it makes the caller examine the process, and where that finds the training at
work, the patience of the phase doubles.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tasks.trainers.contract import Phase, Progress

PATIENCE_S: dict[Phase, float] = {
    "start": 60.0,
    "first_batch": 20.0,
    "step": 20.0,
    "validate": 60.0,
    "checkpoint": 60.0,
    "end": 60.0,
}
"""The shortest silence that is examined. An examination costs seconds of one core."""
TIMES_LONGEST = 5.0
REMEMBERED = 200
"""The last intervals of each phase that count, so that a run that becomes slower gets a new normal."""


@dataclass
class Rhythm:
    """The phase of a training, which began at `since`, and the intervals so far. Times are in seconds."""

    since: float
    phase: Phase = "start"
    patience: dict[Phase, float] = field(default_factory=lambda: dict(PATIENCE_S))
    steps: int = 0
    """The number of lines that showed a step."""
    last: Progress | None = None
    loss: float | None = None
    """The loss in the last line that had one: bars have none."""
    intervals: dict[Phase, deque[float]] = field(default_factory=dict)

    def note(self, progress: Progress, now: float) -> bool:
        """Note a line that shows progress, and return whether it is new. The time between two lines belongs
        to the phase that ends with the second."""
        if self._is_nothing_new(progress):
            return False
        self.intervals.setdefault(self.phase, deque(maxlen=REMEMBERED)).append(now - self.since)
        if progress.phase == "step":
            self.steps += 1
            self.last = progress
            self.loss = self.loss if progress.loss is None else progress.loss
        is_last = progress.done is not None and progress.done == progress.total
        self.phase = "end" if progress.phase == "step" and is_last else progress.phase
        self.since = now
        return True

    def _is_nothing_new(self, progress: Progress) -> bool:
        """Return whether the line repeats the last one, as a bar does that is redrawn."""
        last, is_step = self.last, progress.phase == "step" == self.phase
        if last is None or progress.done is None or not is_step:
            return False
        return (progress.done, progress.epoch) == (last.done, last.epoch)

    def limit(self) -> float:
        """Return how long the phase may last without a line before it is examined."""
        longest = max(self.intervals.get(self.phase, ()), default=0.0)
        return max(self.patience[self.phase], TIMES_LONGEST * longest)

    def silence(self, now: float) -> float:
        return now - self.since

    def is_suspicious(self, now: float) -> bool:
        return self.silence(now) > self.limit()

    def was_at_work(self, now: float) -> None:
        """Note that an examination found nothing wrong: the next one is due when the silence has doubled."""
        self.patience[self.phase] = 2 * max(self.silence(now), self.limit())
