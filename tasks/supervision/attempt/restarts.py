"""Decides whether a training that ended is started again by its agent, and how long that waits.

What came from outside may pass: a signal, a lost rank, a disk. What the model, the data or the config did
would come again, and is never repeated. A training that gains no checkpoint between its ends is given up
after RESTARTS; one that does has all of them again, as a long run on poor hardware needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.core.schema import Train
from tasks.supervision.ranks.success import RunVerdict, TrainingEnd

RESTARTS = 3
PAUSES_S = (0.0, 15.0, 60.0)
"""The pause before each: most causes are gone at once, but memory may be short for a while."""


@dataclass(frozen=True)
class Restart:
    """The training is started again after `pause_s`; it is the restart `number` in a row."""

    pause_s: float
    number: int

    def __str__(self) -> str:
        return f"{self.number} of {RESTARTS}"


class Restarts:
    """The restarts of one attempt, which began at the checkpoint of the step `began_at`."""

    def __init__(self, train: Train, began_at: int) -> None:
        self._train = train
        self._newest = began_at
        self._in_a_row = 0
        self.count = 0

    def after(self, ended: TrainingEnd, verdict: RunVerdict) -> Restart | None:
        """Return the restart that follows this end; None where none does."""
        if not self._is_wanted(ended, verdict):
            return None
        if ended.checkpoint is not None and ended.checkpoint > self._newest:
            self._newest, self._in_a_row = ended.checkpoint, 0
        if self._in_a_row >= RESTARTS:
            return None
        self._in_a_row += 1
        self.count += 1
        return Restart(PAUSES_S[self._in_a_row - 1], self._in_a_row)

    def _is_wanted(self, ended: TrainingEnd, verdict: RunVerdict) -> bool:
        is_lost = any(one.lost_node is not None for one in (ended, *ended.further))
        if ended.stop is not None or is_lost:  # without a node its job goes on elsewhere
            return False
        if ended.stalled is not None:
            return self._train.on_stall == "restart"
        return self._train.on_crash == "restart" and verdict.may_pass
