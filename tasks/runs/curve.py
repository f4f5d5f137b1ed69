"""The course of a training's loss, and what it proves: that the loss stands at chance, or is rising again.

A curve is kept as at most `WINDOWS` means over equally many steps each, so a training of any length costs the
same memory, and what is called a rise grows with the length of the training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

WINDOWS = 64
FIRST_WINDOW = 4
"""Steps in a window at first. When there are `WINDOWS` of them, pairs are merged."""
LEAST_STEPS = 48
LEAST_SAMPLES = 4096
"""So few samples teach a contrast little, in however many steps."""
AT_CHANCE = 0.01
"""How far a mean loss at chance may be from it, as a share."""
STANDS = 0.002
"""How much a loss that stands may fall from the first half of a span to the second, as a share; and how far
one at chance may have come below it in the end."""
LOST = 0.5
"""The share of what was gained that a diverging training has lost again."""
LEAST_RISE = 0.1
"""A rise that is called one, as a share of the loss that the training began with, or of chance."""


class Rise(NamedTuple):
    """A loss that has risen from `best` to `now`, both means over several steps."""

    best: float
    now: float


class LossCurve:
    """The losses of a training since it was started, in the order of its steps."""

    def __init__(self) -> None:
        self.steps = 0
        self._size = FIRST_WINDOW
        self._means: list[float] = []
        self._open: list[float] = []

    def add(self, losses: Sequence[float]) -> None:
        """Add the losses of further steps; what is not finite is left out."""
        for loss in losses:
            if not math.isfinite(loss):
                continue
            self.steps += 1
            self._open.append(loss)
            if len(self._open) < self._size:
                continue
            self._means.append(sum(self._open) / len(self._open))
            self._open = []
            if len(self._means) == WINDOWS:
                pairs = zip(self._means[::2], self._means[1::2], strict=True)
                self._means, self._size = [(one + other) / 2 for one, other in pairs], 2 * self._size

    @property
    def is_above_its_beginning(self) -> bool:
        """Whether the loss is a fifth higher than it began with, and by far more than it fluctuates."""
        if len(self._means) < 8:
            return False
        first, now = sum(self._means[:2]) / 2, sum(self._means[-2:]) / 2
        noise = median(abs(one - other) for one, other in zip(self._means, self._means[1:], strict=False))
        return now - first > max(0.2 * abs(first), 8 * noise)

    @property
    def newest(self) -> float | None:
        """The mean loss of the last steps; None before there are enough of them."""
        return sum(self._means[-2:]) / 2 if len(self._means) >= 2 else None

    def stands(self, after: int = 0) -> float | None:
        """Return the mean loss since the step `after`, or of the second half of the steps where that began
        later, if it has not fallen in that time; None if it has, or if there are too few steps."""
        begin = max(-(-after // self._size), len(self._means) // 2)
        span = self._means[begin:]
        if len(span) < 4 or len(span) * self._size < LEAST_STEPS:
            return None
        middle = len(span) // 2
        earlier, later = (sum(part) / len(part) for part in (span[:middle], span[middle:]))
        return sum(span) / len(span) if earlier - later < STANDS * abs(earlier) else None

    def is_at_chance(self, chance: float, after: int = 0) -> bool:
        """Return whether the loss has stood at `chance` since the step `after`."""
        mean, newest = self.stands(after), self.newest
        if mean is None or newest is None or newest < (1 - STANDS) * chance:
            return False
        return abs(mean - chance) <= AT_CHANCE * chance

    def rise(self, scale: float = 0.0) -> Rise | None:
        """Return the rise of a training that has lost half of what it had gained, and at least a tenth of
        the larger of its first loss and `scale`; None for any other."""
        pairs = [(one + other) / 2 for one, other in zip(self._means, self._means[1:], strict=False)]
        if len(self._means) < 8:
            return None
        best = min(pairs)
        margin = max(LOST * (pairs[0] - best), LEAST_RISE * max(abs(pairs[0]), scale))
        return Rise(best, pairs[-1]) if min(self._means[-2:]) > best + margin else None
