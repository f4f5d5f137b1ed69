from __future__ import annotations

from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.evaluation.expected import expected
from tests.conftest import digits_config


def test_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    config = digits_config(tmp_path, tmp_path)
    assert expected(config) == [(200, "zero_shot"), (400, "zero_shot"), (600, "zero_shot")]


def test_the_last_step_is_no_multiple(tmp_path: Path) -> None:
    config = digits_config(
        tmp_path, tmp_path, "train.steps=500", "evaluate.tasks=[zero_shot,{kind: zero_shot, name: other}]"
    )
    steps = [(step, task) for step in (200, 400, 500) for task in ("zero_shot", "other")]
    assert expected(config) == steps


def test_a_run_shorter_than_the_interval_is_still_judged(tmp_path: Path) -> None:
    assert expected(digits_config(tmp_path, tmp_path, "train.steps=20")) == [(20, "zero_shot")]


def test_nothing_without_an_evaluate_block(tmp_path: Path) -> None:
    assert expected(digits_config(tmp_path, tmp_path, "evaluate=null")) == []


def test_weights_that_were_trained_before_are_judged_before_the_first_step(tmp_path: Path) -> None:
    tuned, few = "train.model={name: tarmac/digits, pretrained: old.pt}", "train.steps=200"
    first, then = (0, "zero_shot"), (200, "zero_shot")
    for overrides, steps in (
        ((tuned, few), [first, then]),
        ((tuned, few, "evaluate.start=false"), [then]),
        ((few, "evaluate.start=true"), [first, then]),
        ((few,), [then]),
    ):
        assert expected(digits_config(tmp_path, tmp_path, *overrides)) == steps, overrides
    with pytest.raises(
        UsageError, match=r"evaluate\.start: a command saves no checkpoint before its first step"
    ):
        digits_config(tmp_path, tmp_path, "train.recipe=external", "train.warmup=0", "evaluate.start=true")
