"""Shards that are copied to a disk of the node: what is read stays the same, whatever becomes of the copies."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UsageError
from tasks.loader import staging
from tasks.loader.batches import TRAIN
from tasks.loader.feed import Feed
from tasks.loader.staging import CHUNK, Stager, folder_of
from tasks.loader.staging import StagedShard as OneShard
from tests.disks import small_disk
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, flip
from tests.loader.feeds import feed_of
from tests.loader.test_batches import same

SHARDS = [10, 10, 6, 14]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disk of the node."""
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    monkeypatch.setattr(staging, "SPARE", 0.0)  # however full this machine's disk is
    return tmp_path / "node"


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def copies(version: Path) -> list[str]:
    return sorted(path.name for path in (folder_of(version) / TRAIN).glob("*.tar"))


def feeds(version: Path, **changes: Any) -> tuple[Feed, Feed]:
    """Staged, and not."""
    options: dict[str, Any] = {"batch_size": 8, "seed": 3, **changes}
    return feed_of(version, transforms.plain, stage="node", **options), feed_of(
        version, transforms.plain, **options
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_copies_are_read_in_the_place_of_shards(make_version: MakeVersion, node: Path, workers: int) -> None:
    version = make_version(train=SHARDS)
    staged, plain = feeds(version, workers=workers)
    with plain.train() as batches:
        expected = list(islice(batches, 10))
    with staged.train() as batches:
        first = next(batches)
        wait_for(lambda: len(copies(version)) == len(SHARDS))
        for shard in (version / TRAIN).glob("*.tar"):
            shard.rename(shard.with_suffix(".away"))
        assert same([first, *islice(batches, 9)], expected)
    wait_for(lambda: copies(version) == [])


def test_a_copy_that_changed_is_no_bad_sample(make_version: MakeVersion, node: Path) -> None:
    version = make_version(train=SHARDS)
    staged, plain = feeds(version)
    with plain.train() as batches:
        expected = list(islice(batches, 10))
    with staged.train() as batches:
        first = next(batches)
        wait_for(lambda: len(copies(version)) == len(SHARDS))
        flip(folder_of(version) / TRAIN / "000001.tar", b"caption 13")
        os.truncate(folder_of(version) / TRAIN / "000003.tar", 3000)
        assert same([first, *islice(batches, 9)], expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_disk_without_room_costs_speed_alone(
    make_version: MakeVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = make_version(train=SHARDS)
    staged, plain = feeds(version)
    with plain.train() as batches:
        expected = list(islice(batches, 10))
    with small_disk(tmp_path / "disk", "64k") as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with staged.train() as batches:
            assert same(list(islice(batches, 10)), expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_what_was_passed_makes_room(tmp_path: Path) -> None:
    """On a disk that holds two copies."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        shards = [OneShard(tmp_path / f"{number}.tar", disk / f"{number}.tar") for number in range(3)]
        for shard in shards:
            shard.path.write_bytes(bytes(100_000))
        stager = Stager(lambda positions: [shards[positions.start // CHUNK % 3]], 0, 3 * CHUNK)
        stager.start()
        wait_for(lambda: shards[1].copy.exists())
        stager.reach(CHUNK)
        wait_for(lambda: shards[2].copy.exists())
        assert [shard.copy.exists() for shard in shards] == [False, True, True]
        stager.close()
        assert not list(disk.glob("*"))


def test_a_folder_of_somebody_else_is_refused(make_version: MakeVersion, node: Path) -> None:
    (node / f"tarmac-{os.getuid()}").mkdir(mode=0o700)
    (node / f"tarmac-{os.getuid()}").chmod(0o777)
    with pytest.raises(UsageError, match=r"loader\.stage: .* is not this user's alone"):
        feeds(make_version(train=[4]))[0].train()
