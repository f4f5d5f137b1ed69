"""One value says what a training is fed with, and where it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Loader
from tasks.loader.feed import Data, Feed, FeedState, split_parts
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, flip, members_of
from tests.loader.feeds import One, feed_of

FEED: dict[str, Any] = {"batch_size": 4, "seed": 3}


def keys(feed: Feed, state: FeedState, batches: int) -> list[str]:
    with feed.train(state) as source:
        return [key for _ in range(batches) for key in next(source)["key"]]


@pytest.mark.parametrize("reader", ["indexed", "streaming"])
def test_goes_on_from_a_state(make_version: MakeVersion, reader: str) -> None:
    feed = feed_of(make_version(train=[10, 10, 10]), transforms.plain, reader=reader, **FEED)
    ranks = 1 if reader == "streaming" else None
    assert feed.state() == FeedState(0, ranks=ranks) and feed.state(5) == FeedState(20, "sample", ranks)
    whole = keys(feed, feed.state(), 8)
    assert keys(feed, feed.state(5), 3) == whole[20:]
    assert keys(feed, FeedState.of(feed.state(5).to_json()), 3) == whole[20:]


def test_is_one_frozen_value_of_which_ranks_have_copies(make_version: MakeVersion) -> None:
    feed = feed_of(make_version(train=[10, 10]), transforms.plain, **FEED)
    with pytest.raises(dataclasses.FrozenInstanceError):
        feed.rank = 1  # type: ignore[misc]
    ranks = [keys(dataclasses.replace(feed, rank=rank, world_size=2), feed.state(2), 1) for rank in (0, 1)]
    assert [*ranks[0], *ranks[1]] == keys(feed, feed.state(2), 1)
    positions = [
        [p for p in range(8, 12) if dataclasses.replace(feed, rank=rank, world_size=2).is_read_here(p)]
        for rank in (0, 1)
    ]
    assert positions == [[8, 9], [10, 11]]


@pytest.mark.parametrize("state", [FeedState(6), FeedState(8, "pack")])
def test_a_state_that_is_not_between_two_batches_is_refused(
    make_version: MakeVersion, state: FeedState
) -> None:
    feed = feed_of(make_version(train=[10]), transforms.plain, **FEED)
    with pytest.raises(DataError, match=f"cannot go on at {state.unit} {state.position}"):
        feed.train(state)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"position": -1, "unit": "sample"},
        {"position": 4, "unit": "word"},
        {"position": 4, "unit": "sample", "ranks": 0},
    ],
)
def test_a_state_that_is_none_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="no position of a loader"):
        FeedState.of(values)


@pytest.fixture
def mixed(make_version: MakeVersion, tmp_path: Path) -> Feed:
    """Two datasets of 60 and 40 samples with weights 3 and 1; captions of the second begin with `other`."""
    others = {number: members_of(number, txt=f"other {number}".encode()) for number in range(40)}
    second = make_version(train=[20, 20], change=others).rename(tmp_path / "second")
    first = make_version(train=[30, 30], val=[6])
    feed = feed_of(first, transforms.plain, batch_size=40, seed=3)
    return dataclasses.replace(feed, datasets=(Data(first, weight=3), Data(second, weight=1)))


def captions(feed: Feed, batches: int, start: int = 0) -> list[str]:
    with feed.train(feed.state(start)) as source:
        return [caption for _ in range(batches) for caption in next(source)["caption"]]


def test_datasets_are_mixed_by_their_weights(mixed: Feed) -> None:
    read = captions(mixed, 25)
    others = [caption for caption in read if caption.startswith("other")]
    assert (len(read), len(others)) == (1000, 250)
    assert len(set(others[:40])) == 40 and set(others[40:80]) == set(others[:40]), "by its own epochs"
    own = [caption for caption in read if not caption.startswith("other")]
    assert len(set(own[:60])) == 60 and own[60:120] != own[:60]
    shares = [
        sum(one.startswith("other") for one in read[start : start + 40]) for start in range(0, 1000, 40)
    ]
    assert min(shares) >= 1 and max(shares) <= 20, "and every batch holds some of both"


def test_a_mix_goes_on_from_a_state_on_any_ranks_and_workers(mixed: Feed) -> None:
    whole = captions(mixed, 6)
    assert captions(dataclasses.replace(mixed, workers=2), 3, start=3) == whole[120:]
    ranks = [captions(dataclasses.replace(mixed, rank=rank, world_size=2), 3, start=3) for rank in (0, 1)]
    assert ranks[0][:20] + ranks[1][:20] == whole[120:160]


def test_of_a_mix_the_first_datasets_splits_are_judged(mixed: Feed) -> None:
    with mixed.split("val") as batches:
        assert [caption for batch in batches for caption in batch["caption"]] == [
            f"caption {number}" for number in range(6)
        ]


def test_a_bad_sample_of_a_mix_is_replaced_by_one_of_its_own_dataset(mixed: Feed) -> None:
    second = mixed.datasets[1].version
    flip(second / "train/000001.tar", b"other 33")
    feed = dataclasses.replace(mixed, loader=Loader(on_bad="replace"))
    with feed.train() as batches:
        for _ in range(25):
            batch = next(batches)
            for one in batches.passed_over:
                place = one.position % 40
                assert one.defect.key == "k000033" and batch["caption"][place].startswith("other")
                return
    raise AssertionError("it never came")


def test_a_stream_mixes_nothing(mixed: Feed) -> None:
    with pytest.raises(UsageError, match=r"train\.data: reader: streaming reads one dataset"):
        dataclasses.replace(mixed, loader=Loader(reader="streaming"))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("reader", ["indexed", "streaming"])
def test_the_collate_is_the_recipes(make_version: MakeVersion, workers: int, reader: str) -> None:
    version = make_version(train=[10, 10])
    feed = feed_of(version, transforms.plain, reader=reader, shuffle="none", workers=workers, **FEED)
    other = dataclasses.replace(feed, shapes=One(transforms.plain, transforms.together))
    with feed.train() as plain, other.train() as packed:
        mine, theirs = next(packed), next(plain)
    assert mine["key"] == theirs["key"][:1]
    assert mine["sum"].shape == (1,) and torch.equal(mine["sum"][0], theirs["grey"].sum())


def test_ranks_share_a_split_batch_by_batch(make_version: MakeVersion) -> None:
    feed = feed_of(make_version(train=[4], val=[10]), transforms.plain, judged_at_once=3, **FEED)
    with feed.split("val") as batches:
        whole = [batch["key"] for batch in batches]
    assert [len(batch) for batch in whole] == [3, 3, 3, 1]
    for rank in range(3):
        with dataclasses.replace(feed, rank=rank, world_size=3).split("val") as batches:
            assert [batch["key"] for batch in batches] == whole[rank::3]
    with dataclasses.replace(feed, rank=4, world_size=5).split("val") as batches:
        assert list(batches) == []


def test_a_large_split_is_cut_to_whole_batches_that_are_spread_over_it() -> None:
    assert split_parts(10, 4) == split_parts(10, 4, 10) == [range(0, 4), range(4, 8), range(8, 10)]
    assert split_parts(1000, 10, 30) == [range(0, 10), range(330, 340), range(660, 670)]
    assert split_parts(1000, 10, 3) == [range(0, 10)]
