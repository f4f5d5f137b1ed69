from __future__ import annotations

import math
import random

import pytest

from tasks.runs.curve import WINDOWS, LossCurve

CHANCE = math.log(64)


def curve(losses: list[float]) -> LossCurve:
    made = LossCurve()
    made.add(losses)
    return made


def noisy(level: float, steps: int, noise: float = 0.003, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [level + draw.gauss(0, noise) for _ in range(steps)]


@pytest.mark.parametrize("steps", [96, 500, 20_000])
def test_a_loss_that_stands_at_chance_is_found_at_any_length(steps: int) -> None:
    assert curve(noisy(CHANCE, steps)).is_at_chance(CHANCE)


@pytest.mark.parametrize(
    "losses",
    [
        noisy(CHANCE, 40),
        noisy(CHANCE - 0.2, 200),
        [CHANCE - 0.0005 * step for step in range(100)],
        noisy(CHANCE, 60) + [CHANCE - 0.02 * step for step in range(60)],
    ],
    ids=["too few steps", "below chance", "falls slowly", "begins to fall"],
)
def test_others_are_not(losses: list[float]) -> None:
    assert not curve(losses).is_at_chance(CHANCE)


def test_what_came_before_the_warm_up_ended_does_not_count() -> None:
    losses = [6.0] * 100 + noisy(CHANCE, 100)
    assert curve(losses).is_at_chance(CHANCE, after=100)
    assert not curve(losses).is_at_chance(CHANCE, after=160)


def test_a_rise_is_half_of_what_was_gained() -> None:
    falling = [4.0 - 0.02 * step for step in range(100)]
    risen = curve(falling + [3.4] * 12).rise()
    assert risen is not None and risen.best < 2.2 and risen.now == pytest.approx(3.4)
    assert curve(falling + [2.6] * 12).rise() is None


def test_noise_about_a_low_loss_is_no_rise() -> None:
    assert curve(noisy(0.02, 200, 0.01)).rise(scale=CHANCE) is None
    assert curve(noisy(0.02, 200, 0.001) + [1.0] * 16).rise(scale=CHANCE) is not None


def test_memory_is_bounded_and_what_is_not_finite_is_left_out() -> None:
    made = curve([1.0, math.nan, math.inf] * 10_000)
    assert made.steps == 10_000 and len(made._means) < WINDOWS and made.newest == 1.0
