"""Metrics and their uncertainty when they are measured on few samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Figures = NDArray[np.float64]
Rows = NDArray[np.bool_]
"""Which rows count."""
MOST_WEIGHTS = 1 << 22
"""How many weights a bootstrap holds at once: 32 MB."""
THRESHOLDS = np.linspace(0, 1, 100)
"""The thresholds among which CT-CLIP chooses one. Source: scripts/eval.py of its code."""
Z_95 = 1.959963984540054
"""The half width, in standard deviations, of the normal distribution's central 95 %."""


def wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Return the score interval of the share `successes / trials`; it lies within [0, 1] and never has width
    0.

    It keeps its confidence where the textbook interval p ± z sqrt(p (1 - p) / n) fails: for shares near 0 or
    1 and for small n. Raises ValueError without trials.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of
    the American Statistical Association 22 (1927), 209-212.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} successes of {trials} trials")
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (centre - half if successes else 0.0), (centre + half if successes < trials else 1.0)


def auroc(truth: Figures, scores: Figures, weights: Figures) -> Figures:
    """Return [rounds]: how often a positive sample scores above a negative one, equal scores counting half.

    `truth` [samples] is 0 or 1, `weights` [rounds, samples] the number of times that each sample counts. A
    round without samples of both classes is NaN. Source: D. Bamber, "The area above the ordinal dominance
    graph and the area below the receiver operating characteristic graph" (1975).
    """
    order = np.argsort(scores, kind="stable")
    firsts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    counted, positive = weights[:, order], truth[order] > 0
    above = np.add.reduceat(counted * positive, firsts, axis=1)
    below = np.add.reduceat(counted * ~positive, firsts, axis=1)
    pairs = above.sum(1) * below.sum(1)
    won = (above * (below.cumsum(1) - below / 2)).sum(1)
    found: Figures = np.divide(won, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)
    return found


def mean_by_class(values: Figures, classes: Figures, weights: Figures) -> Figures:
    """Return [rounds]: the mean over classes of the mean value of their samples, without classes that a round
    lacks. `classes` [samples] are numbers, `weights` [rounds, samples] as for `auroc`."""
    order = np.argsort(classes, kind="stable")
    firsts = np.flatnonzero(np.r_[True, np.diff(classes[order]) > 0])
    sums = np.add.reduceat(weights[:, order] * values[order], firsts, axis=1)
    counts = np.add.reduceat(weights[:, order], firsts, axis=1)
    return mean_of_known(np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0))


def mean_of_known(values: Figures) -> Figures:
    """Return [rounds]: the mean of each row of [rounds, figures] without NaN; NaN where all are."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0).sum(1), known.sum(1)
    means: Figures = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
    return means


def median_rank(ranks: Figures, weights: Figures) -> Figures:
    """Return [rounds]: the median of ranks that count `weights` times, rounded down as by open_clip."""
    order = np.argsort(ranks, kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    count = reached[:, -1:]
    low = (reached > (count - 1) // 2).argmax(axis=1)
    high = (reached > count // 2).argmax(axis=1)
    middle: Figures = np.floor((ranks[order][low] + ranks[order][high]) / 2)
    return middle


def resampled(groups: Sequence[object], rounds: int, seed: int = 0) -> Iterator[Figures]:
    """Draw bootstrap samples as weights, the number of times that each sample counts: [some rounds, samples],
    `rounds` in all.

    Whole groups are drawn with replacement, as many as there are: two scans of one patient carry less
    information than scans of two patients. Source: B. Efron, R. Tibshirani, "An introduction to the
    bootstrap" (1993).
    """
    numbers = np.unique(np.array([str(group) for group in groups]), return_inverse=True)[1]
    count, draws = int(numbers.max()) + 1, np.random.default_rng(seed)
    at_once = max(1, MOST_WEIGHTS // len(numbers))
    for start in range(0, rounds, at_once):
        size = min(at_once, rounds - start)
        yield draws.multinomial(count, np.full(count, 1 / count), size)[:, numbers].astype(np.float64)


def percentile_interval(values: Figures) -> tuple[float, float] | None:
    """Return the central 95 % interval of a bootstrap's values, without NaN; None where all are NaN."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, high = np.percentile(known, (2.5, 97.5))
    return float(low), float(high)


@dataclass(frozen=True)
class LabelScores:
    """One label over all samples: whether each has it, and its score."""

    truth: Figures
    scores: Figures

    @cached_property
    def threshold(self) -> float:
        """The last of THRESHOLDS nearest to the corner of the ROC curve where every sample is right."""
        above = self.scores > THRESHOLDS[:, None]
        found = (above * self.truth).sum(1) / self.truth.sum()
        wrong = (above * (1 - self.truth)).sum(1) / (1 - self.truth).sum()
        far = np.sqrt((1 - found) ** 2 + wrong**2)
        return float(THRESHOLDS[np.flatnonzero(far <= far.min())[-1]])

    @property
    def predicted(self) -> Figures:
        """1 where the score is above the threshold, else 0."""
        return (self.scores > self.threshold).astype(np.float64)

    def f1(self, weights: Figures) -> Figures:
        """Return [rounds]: F1, the mean over both classes by their samples; `weights` [rounds, samples] is
        the number of times that a sample counts."""
        true_positive, false_positive, positive, samples = self._counts(weights)
        negative, false_negative = samples - positive, positive - true_positive
        errors = false_positive + false_negative
        of_positive = _share(2 * true_positive, 2 * true_positive + errors)
        of_negative = _share(2 * (negative - false_positive), 2 * (negative - false_positive) + errors)
        return (positive * of_positive + negative * of_negative) / samples

    def precision(self, weights: Figures) -> Figures:
        """Return [rounds]: the share of samples above the threshold that have the label."""
        true_positive, false_positive, *_ = self._counts(weights)
        return _share(true_positive, true_positive + false_positive)

    def _counts(self, weights: Figures) -> tuple[Figures, Figures, Figures, Figures]:
        """Return true positives, false positives, positives and samples, by round."""
        right, wrong = self.truth * self.predicted, (1 - self.truth) * self.predicted
        return weights @ right, weights @ wrong, weights @ self.truth, weights.sum(1)


def _share(part: Figures, whole: Figures) -> Figures:
    """Return the share, and 0 where the whole is 0, as scikit-learn does."""
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
