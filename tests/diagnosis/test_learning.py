"""What the lines of a training show of its learning."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from tasks.diagnosis.causes.learning import Learning
from tasks.trainers import GENERIC
from tasks.trainers.contract import Trainer
from tasks.trainers.open_clip import OPEN_CLIP

PARAMETERS = {"accum_freq": "1", "batch_size": "64", "siglip": "False", "warmup": "10", "world_size": "2"}


def open_clip(loss: Callable[[int], float], **parameters: str) -> Iterator[str]:
    """The log of open_clip 3.3.0 with a step per line, 128 pairs each."""
    for name, value in {**PARAMETERS, **parameters}.items():
        yield f"2026-11-26,10:00:00 | INFO |   {name}: {value}"
    for step in range(300):
        done, now = 128 * step, loss(step)
        yield (
            f"2026-11-26,10:00:01 | INFO | Train Epoch: 0 [ {done:>6}/100000 (0%)] Data (t): 0.011 "
            f"Batch (t): 0.2, 640/s, 320/s/gpu LR: 0.000500 Logit Scale: 14.286 "
            f"Contrastive_loss: {now:.4f} ({now:.4f}) Loss: {now:.4f} ({now:.4f})"
        )


def fairseq(loss: Callable[[int], float]) -> Iterator[str]:
    return (f"epoch 001:  {step:>5} / 1102 loss={loss(step):.3f}, ppl=9.4" for step in range(1, 300))


def codes(lines: Iterator[str], trainer: Trainer) -> list[str]:
    learning = Learning(trainer)
    for line in lines:
        if (progress := trainer.progress(line)) is not None:
            learning.note(progress)
        else:
            learning.hear(line)
        learning.look()
    return [one.code for one in learning.found]


def noise(size: float, random: random.Random = random.Random(0)) -> float:  # noqa: B008
    return random.gauss(0.0, size)


def test_a_loss_that_stands_at_the_logarithm_of_the_batch_is_named() -> None:
    assert codes(open_clip(lambda step: 4.852 + noise(0.01)), OPEN_CLIP) == ["loss.chance"]


@pytest.mark.parametrize(
    ("parameters", "loss"),
    [
        ({}, lambda step: 4.85 - 0.01 * step),
        ({}, lambda step: 4.0),
        ({"siglip": "True"}, lambda step: 4.852),
        ({"world_size": "4"}, lambda step: 4.852),
        ({"warmup": "1000"}, lambda step: 4.852),
    ],
    ids=["falls", "stands below", "sigmoid", "another batch", "warms up"],
)
def test_a_loss_that_is_not_at_chance_is_not(
    parameters: dict[str, str], loss: Callable[[int], float]
) -> None:
    assert codes(open_clip(loss, **parameters), OPEN_CLIP) == []


def test_a_loss_above_where_it_began_is_named() -> None:
    diverging = lambda step: 9.0 - step / 50 if step < 150 else 6.0 + (step - 150) / 20  # noqa: E731
    assert codes(fairseq(diverging), GENERIC) == ["loss.diverging"]
    assert codes(fairseq(lambda step: 9.0 - step / 100 + noise(0.5)), GENERIC) == []
    assert codes(fairseq(lambda step: 2.0 + noise(0.4)), GENERIC) == []
    assert codes(fairseq(lambda step: noise(0.1)), GENERIC) == []


@pytest.mark.parametrize(
    "line",
    [
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}",
        "| INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {}",
        "[loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, "
        "reducing to {}",
    ],
)
def test_a_loss_scale_that_falls_is_named(line: str) -> None:
    assert codes(iter([line.format("32768.0"), line.format("0.5")]), GENERIC) == ["precision.overflow"]
    assert codes(iter([line.format("128.0"), line.format("8")]), GENERIC) == []
