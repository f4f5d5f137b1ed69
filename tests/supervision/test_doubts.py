"""A setting that is most likely a mistake is reported, and still carried out."""

from pathlib import Path

import pytest

from tasks.core.schema import Config
from tasks.runs.data import overfull
from tasks.supervision.beforehand import doubts, doubts_of
from tests.runs.test_plan import make_version
from tests.supervision.fakes import make_config


@pytest.mark.parametrize(
    ("key", "splits", "is_doubted"),
    [
        (["file", "caption"], {"val": 0.1}, True),
        (["file", "caption"], {"val": 0.1, "group_by": "file"}, False),
        (["file", "caption"], {"from": "split"}, False),
        ("id", {"val": 0.1}, False),
    ],
)
def test_rows_of_one_image_belong_into_one_split(
    tmp_path: Path, key: object, splits: object, is_doubted: bool
) -> None:
    values = make_config(tmp_path).model_dump(mode="json")
    source = {"kind": "table", "path": "x.csv", "image": "file", "caption": "caption", "key": key}
    values["dataset"] |= {"source": source, "splits": splits}
    found = list(doubts_of(Config.model_validate(values)))
    assert [one.endswith("add group_by: file") for one in found] == [True] * is_doubted


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"batch_size": 80, "steps": 60, "warmup": 59}, []),
        ({"batch_size": 81}, []),
        ({"steps": 60, "warmup": 60}, ["train.warmup: all 60 steps are among the 60 of the warm-up"]),
        ({"steps": 60, "warmup": 0.98}, []),
        ({"steps": 60, "warmup": 0.999}, ["train.warmup: all 60 steps are among the 60 of the warm-up"]),
    ],
)
def test_doubts(tmp_path: Path, train: dict[str, object], expected: list[str]) -> None:
    version = make_version(tmp_path, samples=80)
    config = make_config(tmp_path, train=train)
    found = list(doubts(config, version))
    assert len(found) == len(expected)
    assert all(one.startswith(start) for one, start in zip(found, expected, strict=True))


def test_a_batch_that_holds_samples_twice_is_wrong_for_a_loss_that_compares_them(tmp_path: Path) -> None:
    """Other losses only see these samples more often, so the training starts and a doubt is reported."""
    version = make_version(tmp_path, samples=80)
    config = make_config(tmp_path, train={"batch_size": 81})
    found = overfull(config, version)
    assert found is not None and found.is_wrong and found.fitting == 40
    assert overfull(make_config(tmp_path, train={"batch_size": 80}), version) is None
    chat = config.model_copy(update={"train": config.train.model_copy(update={"recipe": "vlm"})})
    (doubt,) = doubts(chat, version)
    assert doubt == "train.batch_size: a batch takes 81 of 80 samples to train on, so it holds some twice"
