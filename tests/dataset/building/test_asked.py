"""What a user may ask of a build: to accept a loss, to compare contents, to convert a shard again."""

import os
import shutil
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.lock import Lease
from tasks.core.schema import Config
from tasks.dataset import versions
from tasks.dataset.building.run import BuildResult, build
from tests.dataset import raw

COUNT = 100


@pytest.fixture
def config(tmp_path: Path) -> Config:
    raw.pictures(tmp_path / "raw", COUNT)
    return raw.config(tmp_path / "raw", tmp_path / "out")


def built(config: Config, *, accept_loss: bool = False, rehash: bool = False) -> BuildResult:
    result = build(config, accept_loss=accept_loss, rehash=rehash)
    versions.publish(config.dataset.output, result.version, config.dataset.keep)
    return result


def keep_rows(folder: Path, count: int, first: int = 0) -> None:
    rows = [(f"{n:04d}.png", f"picture {n}", f"label {n % 3}") for n in range(first, first + count)]
    raw.write_table(folder, rows)


def test_a_great_loss_waits_for_a_word(config: Config, tmp_path: Path) -> None:
    first = built(config)
    keep_rows(tmp_path / "raw", 94)
    with pytest.raises(
        DataError, match=rf"6 of the 100 samples of version {first.version.name} are gone.*--accept-loss"
    ):
        build(config)
    assert versions.current(tmp_path / "out") == first.version
    second = built(config, accept_loss=True)
    assert (second.lost, second.gained, second.accepted) == (6, 0, 94)
    keep_rows(tmp_path / "raw", 90)
    third = built(config)
    assert (third.lost, third.gained) == (4, 0)


def test_samples_that_are_replaced_are_lost_too(config: Config, tmp_path: Path) -> None:
    built(config)
    for number in range(COUNT, COUNT + 10):
        (tmp_path / "raw" / f"{number:04d}.png").write_bytes(raw.png(number))
    keep_rows(tmp_path / "raw", COUNT, first=10)
    with pytest.raises(DataError, match="10 of the 100 samples"):
        build(config)
    result = built(config, accept_loss=True)
    assert (result.gained, result.lost) == (10, 10)


def test_a_loss_that_cannot_be_told_waits_for_a_word_too(config: Config, tmp_path: Path) -> None:
    first = built(config)
    keep_rows(tmp_path / "raw", 50)
    [table] = (first.version / "samples").glob("train*")
    os.truncate(table, 100)
    with pytest.raises(DataError, match="50 of the 100 samples"):
        build(config)  # the sidecars tell the keys too
    os.truncate(first.version / "inputs.arrow", 100)
    with pytest.raises(
        DataError, match=r"keys of \d+ of the 100 samples.*cannot be read.*tarmac repair DATASET"
    ):
        build(config)
    assert build(config, accept_loss=True).accepted == 50


@pytest.mark.parametrize(
    "lost", [["manifest.json"], ["manifest.json", "samples"], ["manifest.json", "samples", "inputs.arrow"]]
)
def test_a_loss_waits_for_a_word_though_the_version_has_lost_its_manifest(
    config: Config, tmp_path: Path, lost: list[str]
) -> None:
    first = built(config)
    keep_rows(tmp_path / "raw", 50)
    for name in lost:
        path = first.version / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=r"of the 100 samples.*--accept-loss"):
        build(config)
    assert os.readlink(tmp_path / "out" / "current") == f"versions/{first.version.name}"
    second = built(config, accept_loss=True)
    assert (second.previous, second.accepted) == (first.version.name, 50)


def test_a_version_that_says_nothing_more_is_not_replaced_without_a_word(config: Config) -> None:
    first = built(config)
    for path in first.version.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=r"neither manifest nor tables.*--accept-loss"):
        build(config)
    assert built(config, accept_loss=True).accepted == COUNT


def test_rejects_count_as_loss(config: Config, tmp_path: Path) -> None:
    built(config)
    for number in range(8):
        (tmp_path / "raw" / f"{number:04d}.png").write_bytes(b"torn")
    with pytest.raises(DataError, match="8 of the 100 samples"):
        build(raw.config(tmp_path / "raw", tmp_path / "out", reject_budget=0.2))


def test_rehash_finds_what_size_and_time_hide(config: Config, tmp_path: Path) -> None:
    first = built(config)
    image = tmp_path / "raw" / "0042.png"
    before = image.stat()
    image.write_bytes(raw.png(4242).ljust(before.st_size, b"\0"))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert image.stat().st_size == before.st_size
    assert built(config).up_to_date
    second = built(config, rehash=True)
    assert second.shards_rewritten == 1 and second.version != first.version
    third = built(config)
    assert third.up_to_date and third.version == second.version


def test_rehash_of_an_unchanged_source_changes_nothing(config: Config) -> None:
    first = built(config)
    second = built(config, rehash=True)
    assert second.version == first.version and second.shards_rewritten == 0


def test_nobody_has_to_wait(config: Config, tmp_path: Path) -> None:
    with Lease(tmp_path / "out" / "lease.json"), pytest.raises(DataError, match=f"process {os.getpid()}"):
        build(config, waits=False)
