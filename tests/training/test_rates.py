from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from open_clip_train.scheduler import const_lr, const_lr_cooldown, cosine_lr  # type: ignore[import-untyped]

from tasks.core.schema import Train
from tasks.training.rates import RateSchedule

NANOVLM_RATES = {
    0: 0.03333333333333333,
    15: 0.5333333333333333,
    29: 1.0,
    30: 1.0,
    200: 0.9334975706451861,
    515: 0.55,
    999: 0.10000236014353187,
}


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


@pytest.mark.parametrize(("cooldown", "power", "floor"), [(0, 1, 0), (300, 1, 0), (300, 2.5, 0.2)])
def test_constant_is_the_one_of_open_clip(cooldown: int, power: float, floor: float) -> None:
    optimizer = SimpleNamespace(param_groups=[{}])
    plain = const_lr(optimizer, 5e-4, 100, 1000)
    cooled = const_lr_cooldown(optimizer, 5e-4, 100, 1000, cooldown, power, floor * 5e-4)
    mine = RateSchedule(5e-4, 100, 1000, "constant", floor, cooldown, power)
    for step in (0, 50, 99, 100, 699, 700, 701, 850, 999):
        assert mine.rate(step) == pytest.approx((cooled if cooldown else plain)(step)) and mine.rate(step) > 0


def test_a_cosine_with_a_floor_is_nanovlms() -> None:
    """Its rates at some steps of 1,000, from `get_lr(step, 1.0, 1000)` in its train.py (4e0c096)."""
    mine = RateSchedule(1.0, 30, 1000, "cosine", 0.1)
    for step, rate in NANOVLM_RATES.items():
        assert mine.rate(step) == pytest.approx(rate, abs=1e-12)


def test_a_default_warmup_is_at_most_a_tenth_of_the_steps() -> None:
    """open_clip's default, 10,000 steps, would be all of a short training."""
    block = {"recipe": "clip", "model": {}, "batch_size": 2, "lr": 1.0, "checkpoint_every": 1}
    for steps, expected in ((1_000_000, 10_000), (100_000, 10_000), (600, 60), (5, 0)):
        assert Train.model_validate({**block, "steps": steps}).warmup_steps == expected


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"schedule": "constant", "lr_floor": 0.1}, "lr_floor: has an effect only with"),
        ({"schedule": "constant", "cooldown_power": 2}, "cooldown_power: has an effect only with"),
        ({"decay": "none", "weight_decay": 0.1}, "weight_decay: has an effect only with"),
    ],
)
def test_a_key_without_effect_is_refused(keys: dict[str, Any], says: str) -> None:
    block = {"recipe": "vlm", "model": {}, "batch_size": 2, "lr": 1.0, "checkpoint_every": 1, "steps": 9}
    with pytest.raises(ValueError, match=says):
        Train.model_validate({**block, **keys})
    quiet = {key: value for key, value in keys.items() if key in ("schedule", "decay")}
    assert Train.model_validate({**block, **quiet}), "the recipe's own floor or weight decay is no mistake"


def test_warmup_is_a_number_of_steps_or_a_share() -> None:
    block = {"recipe": "clip", "model": {}, "batch_size": 2, "lr": 1.0, "checkpoint_every": 1}
    for warmup, steps, expected in ((50, 600, 50), (0.03, 40_000, 1200), (0, 600, 0), (0.99, 10, 10)):
        assert Train.model_validate({**block, "warmup": warmup, "steps": steps}).warmup_steps == expected
