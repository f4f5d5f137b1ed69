"""`on_bad`, by faults in real shards: batches stay full and the same, nothing ends early and nothing hangs."""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.core.errors import DataError, UsageError
from tasks.loader.bad import BadSampleError, Budget, PassedOver, most_left_out, most_replaced
from tasks.loader.order import stand_ins
from tasks.loader.workers import Transform
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, flip, members_of
from tests.loader.feeds import split_batches, train_batches
from tests.loader.test_batches import same

SHARDS = [10, 10, 6, 14]
COUNT = sum(SHARDS)
Fault = Callable[[Path], set[str]]


def key(number: int) -> str:
    return f"k{number:06d}"


def flipped(version: Path) -> set[str]:
    flip(version / "train/000001.tar", b"caption 13")
    return {key(13)}


def missing(version: Path) -> set[str]:
    (version / "train/000002.tar").unlink()
    return {key(number) for number in range(20, 26)}


def truncated(version: Path) -> set[str]:
    shard = version / "train/000003.tar"
    os.truncate(shard, shard.read_bytes().index(b"k000036.json") + 700)
    return {key(number) for number in range(36, 40)}


def every_fault(version: Path) -> set[str]:
    return flipped(version) | missing(version) | truncated(version)


FAULTS = [flipped, missing, truncated]


def take(
    version: Path, steps: int, transform: Transform = transforms.plain, **changes: Any
) -> tuple[list[dict[str, Any]], list[PassedOver]]:
    """The batches, and what they do without."""
    options: dict[str, Any] = {"batch_size": 8, "seed": 3, "shuffle": "windows", "workers": 0, "prefetch": 2}
    taken: list[dict[str, Any]] = []
    passed_over: list[PassedOver] = []
    with train_batches(version, transform, **{**options, "on_bad": "replace", **changes}) as batches:
        for _ in range(steps):
            taken.append(next(batches))
            passed_over += batches.passed_over
    return taken, passed_over


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_raise_names_the_sample(make_version: MakeVersion, fault: Fault, workers: int) -> None:
    version = make_version(train=SHARDS)
    bad = fault(version)
    started = time.monotonic()
    with pytest.raises(BadSampleError) as caught:
        take(version, COUNT // 8, workers=workers, on_bad="raise")
    assert caught.value.defect.key in bad
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("shuffle", ["windows", "samples", "none"])
@pytest.mark.parametrize("fault", FAULTS)
def test_all_other_samples_come_once_an_epoch_and_batches_stay_full(
    make_version: MakeVersion, fault: Fault, shuffle: str
) -> None:
    version = make_version(train=SHARDS)
    bad = fault(version)
    batches, passed_over = take(version, 3 * COUNT // 8, shuffle=shuffle)
    assert all(len(batch["key"]) == len(batch["grey"]) == 8 for batch in batches)
    keys = [key for batch in batches for key in batch["key"]]
    for epoch in range(3):
        mine = [one for one in passed_over if one.position // COUNT == epoch]
        assert {one.defect.key for one in mine} == bad and len(mine) == len(bad)
        came = Counter(keys[epoch * COUNT : (epoch + 1) * COUNT])
        came.subtract(Counter(one.stand_in for one in mine))
        assert +came == dict.fromkeys({key(number) for number in range(COUNT)} - bad, 1)
    assert all(keys[one.position] == one.stand_in and one.stand_in not in bad for one in passed_over)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
def test_workers_prefetch_and_resume_change_nothing(make_version: MakeVersion) -> None:
    version = make_version(train=SHARDS)
    every_fault(version)
    batches, passed_over = take(version, 15)
    for workers, prefetch in [(1, 1), (2, 2), (4, 1)]:
        again = take(version, 15, workers=workers, prefetch=prefetch)
        assert same(again[0], batches) and again[1] == passed_over
        resumed = take(version, 8, workers=workers, start_step=7)
        assert same(resumed[0], batches[7:])
        assert resumed[1] == [one for one in passed_over if one.position >= 7 * 8]


def test_ranks_stay_even_and_read_what_one_alone_would(make_version: MakeVersion) -> None:
    version = make_version(train=SHARDS)
    every_fault(version)
    whole, passed_over = take(version, 10)
    ranks = [take(version, 10, rank=rank, world_size=2) for rank in (0, 1)]
    for step, batch in enumerate(whole):
        parts = [batches[step] for batches, _ in ranks]
        assert [len(part["key"]) for part in parts] == [4, 4]
        assert [name for part in parts for name in part["key"]] == batch["key"]
        assert torch.equal(torch.cat([part["noise"] for part in parts]), batch["noise"])
    assert sorted((one for _, mine in ranks for one in mine), key=lambda one: one.position) == passed_over


def test_a_stand_in_is_augmented_as_its_position_and_drawn_by_the_seed(make_version: MakeVersion) -> None:
    version = make_version(train=SHARDS)
    sound, _ = take(version, 5)
    flipped(version)
    batches, [lost] = take(version, 5)
    step, place = divmod(lost.position, 8)
    assert torch.equal(batches[step]["noise"], sound[step]["noise"])
    assert sound[step]["key"][place] == lost.defect.key != lost.stand_in
    bad = missing(version) | {lost.defect.key}
    for one in take(version, 5)[1]:
        numbers = stand_ins(one.position, COUNT, seed=3)
        assert one.stand_in == next(key(number) for number in numbers if key(number) not in bad)
    drawn = {take(version, 5, seed=seed)[1][0].stand_in for seed in range(6)}
    assert len(drawn) > 1


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_transform_cannot_take_is_replaced(make_version: MakeVersion, workers: int) -> None:
    _, passed_over = take(make_version(train=SHARDS), 5, transforms.refusing, workers=workers)
    [lost] = passed_over
    assert (lost.defect.key, lost.defect.reason) == (key(13), "member.undecodable")


@pytest.mark.parametrize("workers", [0, 2])
def test_when_every_sample_is_bad_it_is_an_error_and_no_wait(make_version: MakeVersion, workers: int) -> None:
    version = make_version(train=SHARDS)
    for shard in (version / "train").glob("*.tar"):
        shard.unlink()
    started = time.monotonic()
    with pytest.raises(BadSampleError, match="16 samples drawn in its place are bad as well"):
        take(version, 1, workers=workers)
    assert time.monotonic() - started < 60


def test_a_stream_replaces_nothing(make_version: MakeVersion) -> None:
    with pytest.raises(UsageError, match=r"loader\.on_bad: replace draws other samples by the index"):
        take(make_version(train=SHARDS), 1, reader="streaming")


def read_split(version: Path, workers: int = 0, **changes: Any) -> list[list[str]]:
    options = {"batch_size": 4, "workers": workers, "on_bad": "replace", "bad_budget": 0.5, **changes}
    return [batch["key"] for batch in split_batches(version, "train", transforms.plain, **options)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_held_out_split_leaves_bad_samples_out(
    make_version: MakeVersion, fault: Fault, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    version = make_version(train=SHARDS)
    bad = fault(version)
    batches = read_split(version, workers)
    assert [name for batch in batches for name in batch] == [
        key(number) for number in range(COUNT) if key(number) not in bad
    ]
    assert all(batches), "no batch is empty"
    assert all(name in caplog.text for name in bad)
    with pytest.raises(BadSampleError):
        read_split(version, workers, on_bad="raise")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_split_of_too_many_bad_samples_is_an_error(make_version: MakeVersion, workers: int) -> None:
    version = make_version(train=SHARDS)
    bad = len(missing(version))
    with pytest.raises(DataError, match=r"loader\.bad_budget lets 4 be passed over; see `tarmac verify"):
        read_split(version, workers, bad_budget=0.1)
    assert len(read_split(version, workers, bad_budget=bad / COUNT)) > 0


def test_a_split_without_any_sound_sample_is_an_error(make_version: MakeVersion) -> None:
    version = make_version(train=[1])
    flip(version / "train/000000.tar", b"caption 0")
    with pytest.raises(DataError, match="lets 0 be passed over"):
        read_split(version, bad_budget=1.0)


def test_the_budget_counts_by_epoch() -> None:
    budget = Budget("data/train", samples=100, most=2, hint="look at it")
    budget.spend([3, 99])
    budget.spend([100, 150])
    budget.spend([350])
    with pytest.raises(DataError, match=r"^data/train: 3 samples .* lets 2 be passed over; look at it$"):
        budget.spend([351, 399])


def test_an_epoch_that_ends_within_a_batch_is_judged_too() -> None:
    with pytest.raises(DataError, match="data/train: 4 samples of an epoch"):
        Budget("data/train", samples=10, most=1, hint="look at it").spend([6, 7, 8, 9, 10])


def test_the_budget_is_a_share_and_one_in_any_case() -> None:
    assert most_replaced(0.01, 1000) == 10
    assert most_replaced(0.01, 1000, ranks=8) == 1
    assert most_replaced(0.01, 8000, ranks=8) == 10
    assert most_replaced(0.01, 10) == 1
    assert [most_left_out(0.5, samples) for samples in (1, 2, 10)] == [0, 1, 5]
    assert most_left_out(1.0, 10) == 9, "a split of which nothing is left has no measure"


def test_a_member_that_is_torn_is_replaced_too(make_version: MakeVersion) -> None:
    version = make_version(train=SHARDS, change={5: {**members_of(5), "png": b"<html>"}})
    _, [lost] = take(version, 5)
    assert (lost.defect.key, lost.defect.member) == (key(5), "png")
