"""A histogram of fixed bins: takes any number of values in bounded memory, and is binned again for a chart.

A bin is a power of two cut into 512: whole numbers below 1,024 are counted exactly, others to within 0.2 %.
Unlike a range that is fitted to the first values, nothing depends on the order in which values come.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CUTS = 512
SMALLEST, LARGEST = 1e-6, 1e12
"""Magnitudes beyond are counted as these (or as 0), so that there are at most some 60,000 bins."""
TAIL = 0.005
"""Of the values at either end that a chart leaves out, where they lie far from the rest."""
ABOUT = 24
"""Bars of a chart."""


class Histogram:
    """Counts numbers; `lowest` and `highest` are exact."""

    def __init__(self) -> None:
        self.total = 0
        self.missing = 0
        self.lowest = np.inf
        self.highest = -np.inf
        self.is_whole = True
        self._counts: Counter[float] = Counter()

    def add(self, values: NDArray[Any]) -> None:
        """Count these; what is not finite is `missing`."""
        numbers = np.asarray(values, np.float64)
        finite = numbers[np.isfinite(numbers)]
        self.missing += len(numbers) - len(finite)
        if not len(finite):
            return
        self.total += len(finite)
        self.lowest = min(self.lowest, float(finite.min()))
        self.highest = max(self.highest, float(finite.max()))
        self.is_whole = self.is_whole and bool((np.rint(finite) == finite).all())
        for start, count in zip(*np.unique(_bins(finite), return_counts=True), strict=True):
            self._counts[float(start)] += int(count)

    def merge(self, other: Histogram) -> None:
        """Add what another has counted."""
        self.total += other.total
        self.missing += other.missing
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.is_whole = self.is_whole and other.is_whole
        self._counts.update(other._counts)

    def quantile(self, share: float) -> float:
        """The smallest bin that at least this share lies in or below; exact at 0 and 1."""
        if share <= 0:
            return self.lowest
        if share >= 1:
            return self.highest
        wanted = share * self.total
        for start in sorted(self._counts):
            wanted -= self._counts[start]
            if wanted <= 0:
                return min(max(start, self.lowest), self.highest)
        return self.highest

    def count_above(self, value: float) -> int:
        """How many are larger than a value, as far as bins tell."""
        return sum(count for start, count in self._counts.items() if start > value)

    def view(self) -> View:
        """Binned for a chart: round edges, and without tails that would squeeze everything else."""
        low, high = self._range()
        step = _round_up(max((high - low) / ABOUT, 1.0 if self.is_whole else 1e-9 * max(1.0, abs(high))))
        first = math.floor(low / step + 1e-9)
        count = math.floor(high / step + 1e-9) - first + 1
        heights = [0] * count
        below = above = 0
        for start, here in self._counts.items():
            index = math.floor(start / step + 1e-9) - first
            if index < 0:
                below += here
            elif index >= count:
                above += here
            else:
                heights[index] += here
        is_single = self.is_whole and step == 1
        shift = 0.5 if is_single else 0.0
        edges = [(first + index) * step - shift for index in range(count + 1)]
        return View(edges, heights, below, above, is_single)

    def _range(self) -> tuple[float, float]:
        low, high = self.quantile(TAIL), self.quantile(1 - TAIL)
        room = high - low
        low = self.lowest if self.lowest >= low - room else low
        return low, self.highest if self.highest <= high + room else high


@dataclass(frozen=True)
class View:
    """Bars of a chart, and how many values lie outside them."""

    edges: Sequence[float]
    heights: Sequence[int]
    below: int
    above: int
    is_single: bool
    """Each bar is one whole number, and stands in the middle between its edges."""


def _round_up(step: float) -> float:
    """The next number that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step) + 1e-9)
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))


def _bins(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower end (towards zero) of each number's bin."""
    sizes = np.minimum(np.abs(numbers), LARGEST)
    fractions, exponents = np.frexp(sizes)
    starts = np.ldexp(np.floor(fractions * (2 * CUTS)) / (2 * CUTS), exponents)
    return np.where(sizes < SMALLEST, 0.0, np.copysign(starts, numbers))
