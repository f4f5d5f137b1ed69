from __future__ import annotations

import pytest

from tasks.evaluation.kinds.statistics import wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_gives_the_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    """Method 3 of R. G. Newcombe, Statistics in Medicine 17 (1998), 857-872, table I."""
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_is_symmetric_and_exact_at_the_ends() -> None:
    low, high = wilson_interval(258, 258)
    assert high == 1.0 and 0.98 < low < 1
    none = wilson_interval(0, 258)
    assert none == pytest.approx((1 - high, 1 - low)) and none[0] == 0.0


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 2)])
def test_refuses_what_is_no_share(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="trials"):
        wilson_interval(successes, trials)
