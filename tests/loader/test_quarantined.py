"""Samples in quarantine do not exist for any reader, on any rank."""

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.errors import DataError
from tasks.dataset.version.quarantine import Quarantined
from tasks.loader.bad import BadSampleError
from tasks.loader.indexed import IndexedReader
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, flip
from tests.loader.feeds import split_batches, train_batches
from tests.loader.test_batches import same

SHARDS = [6, 4, 6, 8, 4, 8]
COUNT = sum(SHARDS)
SHARD_OF = np.repeat(np.arange(len(SHARDS)), SHARDS)
GONE = [0, 1, 5, *range(10, 16), 17, 18, 35]
"""The ends, neighbours, and all of shard 2."""
LEFT = {f"k{number:06d}" for number in range(COUNT)} - {f"k{number:06d}" for number in GONE}


def entries(version: Path, numbers: list[int] = GONE, split: str = "train") -> list[Quarantined]:
    return [
        Quarantined(version.name, split, f"{split}/{SHARD_OF[n]:06d}.tar", f"k{n:06d}", "member.checksum")
        for n in numbers
    ]


def take(version: Path, steps: int, **changes: Any) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"batch_size": 4, "seed": 3, "shuffle": "windows", "workers": 0, "prefetch": 2}
    options |= {"quarantined": entries(version), **changes}
    with train_batches(version, transforms.plain, **options) as batches:
        return [next(batches) for _ in range(steps)]


def keys_of(batches: list[dict[str, Any]]) -> list[str]:
    return [key for batch in batches for key in batch["key"]]


@pytest.mark.parametrize("excluded", [[], [0], [35], [0, 1, 2], [3, 5, 34, 35], GONE, list(range(1, 36))])
def test_the_samples_are_the_rows_that_are_left(make_version: MakeVersion, excluded: list[int]) -> None:
    version = make_version(train=SHARDS)
    reader = pickle.loads(pickle.dumps(IndexedReader(version, "train", np.array(excluded, np.int64))))
    left = [row for row in range(COUNT) if row not in excluded]
    assert [reader.row(number) for number in range(len(reader))] == left
    assert [reader.read(number).key for number in range(len(reader))] == [f"k{row:06d}" for row in left]


@pytest.mark.parametrize("shuffle", ["windows", "samples", "none"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_epoch_holds_each_other_sample_once(
    make_version: MakeVersion, shuffle: str, world_size: int
) -> None:
    version = make_version(train=SHARDS)
    steps = 2 * len(LEFT) // 4
    ranks = [take(version, steps, shuffle=shuffle, rank=r, world_size=world_size) for r in range(world_size)]
    keys = [key for step in zip(*ranks, strict=True) for part in step for key in part["key"]]
    for start in (0, len(LEFT)):
        assert Counter(keys[start : start + len(LEFT)]) == dict.fromkeys(LEFT, 1)


def test_an_empty_quarantine_changes_nothing(make_version: MakeVersion) -> None:
    version = make_version(train=SHARDS)
    other = [
        Quarantined("another one", "train", "train/000000.tar", "k000000", "x"),
        *entries(version, [1], "val"),
    ]
    assert same(take(version, 9, quarantined=other), take(version, 9, quarantined=[]))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
@pytest.mark.parametrize("reader", ["indexed", "streaming"])
def test_workers_and_resume_change_nothing(make_version: MakeVersion, reader: str) -> None:
    version = make_version(train=SHARDS)
    batches = take(version, 12, reader=reader)
    for workers in (1, 2, 4):
        assert same(take(version, 12, reader=reader, workers=workers), batches)
        assert same(take(version, 5, reader=reader, workers=workers, start_step=7), batches[7:])


@pytest.mark.parametrize("shuffle", ["windows", "none"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_stream_skips_them_too(make_version: MakeVersion, shuffle: str, world_size: int) -> None:
    version = make_version(train=SHARDS)
    options = {"shuffle": shuffle, "world_size": world_size, "reader": "streaming"}
    keys = [key for rank in range(world_size) for key in keys_of(take(version, 24, rank=rank, **options))]
    assert set(keys) == LEFT


def test_each_pass_of_a_stream_holds_every_other_sample_once(make_version: MakeVersion) -> None:
    version = make_version(train=[6, 6])
    gone = entries(version, [0, 3]) + [
        Quarantined(version.name, "train", "train/000001.tar", f"k{number:06d}", "x") for number in (7, 11)
    ]
    keys = keys_of(take(version, 6, reader="streaming", quarantined=gone))
    left = [f"k{number:06d}" for number in (1, 2, 4, 5, 6, 8, 9, 10)]
    assert Counter(keys) == dict.fromkeys(left, 3)


@pytest.mark.parametrize("reader", ["indexed", "streaming"])
def test_what_is_broken_around_them_is_in_nobodys_way(make_version: MakeVersion, reader: str) -> None:
    """A shard that is gone, one that is cut, and a header torn in the middle: all that is lost is listed."""
    version = make_version(train=SHARDS)
    (version / "train/000002.tar").unlink()
    cut = version / "train/000005.tar"
    os.truncate(cut, cut.read_bytes().index(b"k000035.png") + 100)
    flip(version / "train/000003.tar", b"k000017.txt", 130)
    batches = take(version, 2 * len(LEFT) // 4, reader=reader)
    assert set(keys_of(batches)) == LEFT
    with pytest.raises(DataError):
        take(version, 2 * len(LEFT) // 4, reader=reader, quarantined=[])


def test_a_bad_sample_beside_them_is_still_named(make_version: MakeVersion) -> None:
    version = make_version(train=SHARDS)
    flip(version / "train/000003.tar", b"caption 20")
    with pytest.raises(BadSampleError, match=r"^train/000003\.tar row 4, key 'k000020'"):
        take(version, 8)
    with pytest.raises(BadSampleError, match=r"^train/000003\.tar row 4, key 'k000020'"):
        take(version, 8, reader="streaming")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_held_out_split_is_read_without_them(make_version: MakeVersion, workers: int) -> None:
    version = make_version(val=SHARDS)
    read = split_batches(
        version,
        "val",
        transforms.plain,
        batch_size=5,
        workers=workers,
        quarantined=entries(version, split="val"),
    )
    assert keys_of(list(read)) == sorted(LEFT)


@pytest.mark.parametrize("reader", ["indexed", "streaming"])
def test_when_all_are_in_quarantine_it_is_an_error_and_no_wait(
    make_version: MakeVersion, reader: str
) -> None:
    version = make_version(train=SHARDS)
    with pytest.raises(
        DataError, match=r"all 36 samples of split train are left out: quarantine\.jsonl; `tarmac repair"
    ):
        take(version, 1, reader=reader, quarantined=entries(version, list(range(COUNT))))
