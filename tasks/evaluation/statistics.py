"""How sure a share is that was counted on few samples."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054
"""The normal distribution lies within so many standard deviations in 95 % of cases."""


def wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """The score interval of a share `successes / trials`; within [0, 1] and never of width 0.

    Holds its confidence where the textbook interval p ± z sqrt(p (1 - p) / n) fails: for shares near 0 or 1
    and for small n. ValueError without trials.

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
