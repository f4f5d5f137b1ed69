import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.core.errors import DataError, UsageError
from tasks.loader.feed import Feed
from tasks.loader.workers import Transform
from tests.loader import transforms
from tests.loader.conftest import MakeVersion
from tests.loader.feeds import feed_of, split_batches, train_batches


def take(
    version: Path, steps: int, transform: Transform = transforms.plain, **changes: Any
) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"batch_size": 8, "seed": 3, "shuffle": "windows", "workers": 0, "prefetch": 2}
    with train_batches(version, transform, **{**options, **changes}) as batches:
        return list(itertools.islice(batches, steps))


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys()
        and all(torch.equal(a[n], b[n]) if isinstance(a[n], torch.Tensor) else a[n] == b[n] for n in a)
        for a, b in zip(one, other, strict=True)
    )


def test_a_batch_holds_what_the_transform_gave_and_the_keys(make_version: MakeVersion) -> None:
    [batch] = take(make_version(train=[5, 6]), 1)
    assert batch["noise"].shape == (8, 3)
    assert [f"k{grey:06d}" for grey in batch["grey"].tolist()] == batch["key"]
    assert [f"caption {grey}" for grey in batch["grey"].tolist()] == batch["caption"]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
@pytest.mark.parametrize("reader", ["indexed", "streaming"])
def test_workers_and_prefetch_do_not_change_the_batches(make_version: MakeVersion, reader: str) -> None:
    version = make_version(train=[10, 10, 3, 8, 9, 5, 7])
    alone = take(version, 20, reader=reader)
    for workers, prefetch in [(1, 1), (2, 2), (4, 3)]:
        assert same(alone, take(version, 20, reader=reader, workers=workers, prefetch=prefetch)), workers


@pytest.mark.parametrize("reader", ["indexed", "streaming"])
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_from_any_step_gives_the_same_batches(
    make_version: MakeVersion, reader: str, workers: int
) -> None:
    version = make_version(train=[10, 10, 3])
    whole = take(version, 12, reader=reader)
    for start in (1, 2, 5, 9):
        assert same(
            whole[start:], take(version, 12 - start, reader=reader, start_step=start, workers=workers)
        )


@pytest.mark.parametrize("shuffle", ["windows", "samples", "none"])
def test_every_epoch_holds_every_sample_once(make_version: MakeVersion, shuffle: str) -> None:
    keys = [key for batch in take(make_version(train=[10, 6]), 6, shuffle=shuffle) for key in batch["key"]]
    epochs = [keys[start : start + 16] for start in (0, 16, 32)]
    assert all(len(set(epoch)) == 16 for epoch in epochs)
    assert (epochs[0] == sorted(epochs[0])) == (shuffle == "none")
    assert (epochs[0] == epochs[1]) == (shuffle == "none")


def test_augmentation_differs_by_epoch_and_seed(make_version: MakeVersion) -> None:
    version = make_version(train=[8])
    first, second = (batch["noise"] for batch in take(version, 2))
    [other] = (batch["noise"] for batch in take(version, 1, seed=4))
    assert len(torch.cat([first, second, other]).unique(dim=0)) == 24


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_together_read_the_global_batch(make_version: MakeVersion, world_size: int) -> None:
    version = make_version(train=[10, 10, 3])
    ranks = [take(version, 4, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step, whole in enumerate(take(version, 4)):
        parts = [rank[step] for rank in ranks]
        assert [key for part in parts for key in part["key"]] == whole["key"]
        assert torch.equal(torch.cat([part["noise"] for part in parts]), whole["noise"])


def test_an_uneven_share_is_refused_before_reading(make_version: MakeVersion) -> None:
    with pytest.raises(UsageError, match=r"train\.batch_size"):
        take(make_version(train=[10]), 1, world_size=3)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callers_random_numbers_are_not_touched(make_version: MakeVersion, workers: int) -> None:
    version = make_version(train=[10])
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    take(version, 3, workers=workers)
    assert torch.equal(torch.rand(3), expected)


def test_an_empty_split_is_an_error_and_no_wait(make_version: MakeVersion) -> None:
    with pytest.raises(DataError, match="train holds no samples"):
        take(make_version(train=[0]), 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_split_is_read_once_in_storage_order_unaugmented(make_version: MakeVersion, workers: int) -> None:
    version = make_version(train=[2], val=[9, 4])
    batches = list(split_batches(version, "val", transforms.plain, batch_size=5, workers=workers))
    assert [len(batch["key"]) for batch in batches] == [5, 5, 3]
    assert [key for batch in batches for key in batch["key"]] == [f"k{n:06d}" for n in range(13)]
    assert len(torch.cat([batch["noise"] for batch in batches]).unique(dim=0)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_worker_makes_one_micro_batch_at_a_time(make_version: MakeVersion, workers: int) -> None:
    """Also where it does not divide a rank's share, and from any step on."""
    feed = feed_of(
        make_version(train=[10, 10, 3]), transforms.plain, batch_size=16, seed=3, rank=1, world_size=2
    )
    whole = take_from(feed, 4)
    apart = dataclasses.replace(feed, micro_batch=3, workers=workers)
    assert (feed.parts, apart.parts) == (1, 3)
    parts = take_from(apart, 12)
    assert [len(part["key"]) for part in parts] == [3, 3, 2] * 4
    for step, batch in enumerate(whole):
        mine = parts[3 * step : 3 * step + 3]
        assert [key for part in mine for key in part["key"]] == batch["key"]
        assert torch.equal(torch.cat([part["noise"] for part in mine]), batch["noise"])
    assert same(take_from(apart, 6, start=2), parts[6:])


def take_from(feed: Feed, count: int, start: int = 0) -> list[dict[str, Any]]:
    with feed.train(feed.state(start)) as batches:
        return list(itertools.islice(batches, count))
