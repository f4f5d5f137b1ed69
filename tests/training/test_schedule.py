from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from open_clip_train.scheduler import const_lr, const_lr_cooldown, cosine_lr  # type: ignore[import-untyped]

from tasks.core.schema import Train
from tasks.training.step import RateSchedule


def test_rises_in_a_line_and_falls_to_nothing() -> None:
    rates = [RateSchedule(peak=1.0, warmup=10, steps=110).rate(step) for step in range(110)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert 0 < rates[-1] < 0.001


def test_no_warmup_starts_at_the_peak() -> None:
    assert RateSchedule(peak=0.3, warmup=0, steps=5).rate(0) == 0.3


def test_is_the_one_of_open_clip() -> None:
    optimizer = SimpleNamespace(param_groups=[{}])
    set_rate = cosine_lr(optimizer, base_lr=5e-4, warmup_length=100, steps=1000)
    for step in (0, 50, 99, 100, 101, 550, 999):
        assert set_rate(step) == pytest.approx(RateSchedule(peak=5e-4, warmup=100, steps=1000).rate(step))


@pytest.mark.parametrize("cooldown", [0, 300])
def test_constant_is_the_one_of_open_clip(cooldown: int) -> None:
    optimizer = SimpleNamespace(param_groups=[{}])
    plain = const_lr(optimizer, 5e-4, 100, 1000)
    cooled = const_lr_cooldown(optimizer, 5e-4, 100, 1000, cooldown)
    for step in (0, 50, 99, 100, 699, 700, 701, 850, 999):
        mine = RateSchedule(peak=5e-4, warmup=100, steps=1000, schedule="constant", cooldown=cooldown).rate(
            step
        )
        assert mine == pytest.approx((cooled if cooldown else plain)(step)) and mine > 0


def test_warmup_is_a_number_of_steps_or_a_share() -> None:
    block = {"recipe": "clip", "model": {}, "batch_size": 2, "lr": 1.0, "checkpoint_every": 1}
    for warmup, steps, expected in ((50, 600, 50), (0.03, 40_000, 1200), (0, 600, 0), (0.99, 10, 10)):
        assert Train.model_validate({**block, "warmup": warmup, "steps": steps}).warmup_steps == expected
