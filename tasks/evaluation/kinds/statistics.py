"""Metrics and their uncertainty when they are measured on few samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Figures = NDArray[np.float64]
MOST_WEIGHTS = 1 << 22
"""How many weights a bootstrap holds at once: 32 MB."""
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
