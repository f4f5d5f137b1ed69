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
from tasks.core.remote import remote_shards
from tasks.core.remote.remote_shards import ShardCache, stage_cache
from tasks.loader.batches import TRAIN
from tasks.loader.feed import Feed
from tasks.loader.staging import CHUNK, ShardsAhead, staged_shard
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
    monkeypatch.setattr(remote_shards, "SPARE", 0.0)  # however full this machine's disk is
    return tmp_path / "node"


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def copies() -> list[Path]:
    return sorted(stage_cache().folder.glob("*.tar"))


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
        wait_for(lambda: len(copies()) == len(SHARDS))
        for shard in (version / TRAIN).glob("*.tar"):
            shard.rename(shard.with_suffix(".away"))
        assert same([first, *islice(batches, 9)], expected)
    wait_for(lambda: copies() == [])


def test_a_copy_that_changed_is_no_bad_sample(make_version: MakeVersion, node: Path) -> None:
    version = make_version(train=SHARDS)
    staged, plain = feeds(version)
    with plain.train() as batches:
        expected = list(islice(batches, 10))
    with staged.train() as batches:
        first = next(batches)
        wait_for(lambda: len(copies()) == len(SHARDS))
        flip(copies()[1], b"caption 13")
        os.truncate(copies()[3], 3000)
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
def test_what_was_passed_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that holds two copies."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        for number in range(3):
            (tmp_path / TRAIN).mkdir(exist_ok=True)
            (tmp_path / TRAIN / f"{number:06d}.tar").write_bytes(bytes(100_000))
        shards = [staged_shard(tmp_path, TRAIN, number) for number in range(3)]
        monkeypatch.setattr(remote_shards, "SPARE", 0.0)
        cache = ShardCache(disk, None)
        ahead = ShardsAhead(
            lambda positions: [shards[positions.start // CHUNK % 3]], 0, cache, 3 * CHUNK, CHUNK
        )
        ahead.start()
        wait_for(lambda: (disk / shards[1].copy).exists())
        assert (disk / shards[0].copy).exists()
        ahead.reach(CHUNK)
        wait_for(lambda: (disk / shards[2].copy).exists())
        assert [(disk / shard.copy).exists() for shard in shards] == [False, True, True]
        ahead.close()
        assert not list(disk.glob("*.tar"))


def test_a_folder_of_somebody_else_is_refused(make_version: MakeVersion, node: Path) -> None:
    (node / f"tarmac-{os.getuid()}").mkdir(mode=0o700)
    (node / f"tarmac-{os.getuid()}").chmod(0o777)
    with pytest.raises(UsageError, match=r"loader\.stage: .* is not private to this user"):
        feeds(make_version(train=[4]))[0].train()
