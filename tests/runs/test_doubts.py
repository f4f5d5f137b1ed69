"""What a person has most likely not meant is told, and done."""

from pathlib import Path

import pytest

from tasks.runs.doubts import doubts
from tests.runs.test_plan import make_version
from tests.supervision.fakes import make_config


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ({"batch_size": 80, "steps": 60, "warmup": 59}, []),
        ({"batch_size": 81}, ["train.batch_size: a batch of 81 holds samples twice, as there are 80"]),
        ({"steps": 60, "warmup": 60}, ["train.warmup: all 60 steps are among the 60 of the warm-up"]),
        ({"steps": 60, "warmup": 0.98}, []),
        ({"steps": 60, "warmup": 0.999}, ["train.warmup: all 60 steps are among the 60 of the warm-up"]),
    ],
)
def test_doubts(tmp_path: Path, train: dict[str, object], told: list[str]) -> None:
    version = make_version(tmp_path, samples=80)
    found = list(doubts(make_config(tmp_path, train=train), version))
    assert len(found) == len(told)
    assert all(one.startswith(start) for one, start in zip(found, told, strict=True))
