"""What was verified is not read again, unless it was written since, copied, or a person asks."""

import os
import shutil
import time
from pathlib import Path

import pytest

from tasks.dataset.building.builder import build
from tasks.dataset.verify import remembered
from tasks.dataset.verify.verifier import verify, verify_anew, verify_version
from tasks.dataset.version import versions
from tasks.dataset.version.layout import VERIFIED
from tests.dataset import raw
from tests.dataset.verify.test_readiness import set_aside, spoil


@pytest.fixture
def version(dataset: Path) -> Path:
    """The version in its dataset, whose files were written some time ago."""
    version = versions.resolve(dataset)
    for path in version.rglob("*.*"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    return version


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tars whose content was read, in order."""
    from tasks.dataset.verify import examination

    names: list[str] = []
    really = examination.blake3_of

    def blake3_of(folder: str, name: str, threads: int) -> str:
        names.append(name)
        return really(folder, name, threads)

    monkeypatch.setattr(examination, "blake3_of", blake3_of)
    return names


def tars(version: Path) -> set[str]:
    return {path.relative_to(version).as_posix() for path in version.rglob("*.tar")}


def test_a_version_is_remembered_at_its_level_and_the_lower_ones(version: Path) -> None:
    assert remembered.found_sound(version, "default") is None
    verify(version, "quick")
    assert remembered.found_sound(version, "quick") is None, "nothing was read"
    verify(version, "default")
    assert remembered.found_sound(version, "default") is not None
    assert remembered.found_sound(version, "full") is None
    assert remembered.known_shards(version, "full") == set()
    verify(version, "full")
    seen = remembered.found_sound(version, "default")
    assert seen is not None and seen.level == "full"
    assert remembered.known_shards(version, "full") == tars(version)


def test_the_sealed_content_is_as_before(version: Path) -> None:
    before = {path: path.read_bytes() for path in version.rglob("*.*")}
    verify(version)
    assert {path: path.read_bytes() for path in version.rglob("*.*")} == before
    assert (version.parent.parent / VERIFIED).is_file()


def test_what_was_written_since_is_read_again_and_nothing_else(version: Path, hashed: list[str]) -> None:
    verify_version(version)
    assert set(hashed) == tars(version)
    hashed.clear()
    verify_version(version)
    assert hashed == []
    spoil(version, 3)
    assert remembered.found_sound(version, "default") is None
    report = verify_version(version)
    assert hashed == ["train/000000.tar"] and not report.ok
    assert f"{len(tars(version)) - 1} shards found sound before" in " ".join(report.not_seen)
    hashed.clear()
    assert not verify_version(version).ok and hashed == ["train/000000.tar"], "the fault was forgotten"
    assert not verify(version).ok and len(hashed) == 1 + len(tars(version)), "a person asks for all"


def test_damage_that_a_person_has_found_is_not_forgotten(version: Path, hashed: list[str]) -> None:
    """As when bits rot: neither size nor time of the file shows it."""
    verify_version(version)
    shard = version / "train/000000.tar"
    before = shard.stat()
    spoil(version, 3)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verify_version(version).ok, "this is the price"
    assert not verify(version).ok
    assert remembered.found_sound(version, "default") is None
    assert "train/000000.tar" not in remembered.known_shards(version, "default")
    assert not verify_version(version).ok


@pytest.mark.parametrize("gone", ["train/000001.tar", "samples/train.parquet"])
def test_a_version_that_lacks_a_file_is_not_the_one_that_was_verified(version: Path, gone: str) -> None:
    verify(version)
    (version / gone).unlink()
    assert remembered.found_sound(version, "default") is None
    assert not verify_version(version).ok


def test_what_is_set_aside_is_read_each_time_and_the_rest_is_not(version: Path, hashed: list[str]) -> None:
    spoil(version, 3)
    set_aside(version)
    hashed.clear()
    for _ in range(2):
        report = verify_version(version)
        assert report.ok and report.findings
        assert hashed == ["train/000000.tar"]
        hashed.clear()


def test_nothing_of_a_copy_counts_as_verified(version: Path, tmp_path: Path) -> None:
    verify(version)
    there = shutil.copytree(version.parent.parent, tmp_path / "copy", symlinks=True)
    assert remembered.found_sound(versions.resolve(there), "default") is None
    assert remembered.known_shards(versions.resolve(there), "default") == set()


def test_a_version_outside_of_a_dataset_leaves_nothing_behind(version: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(version, tmp_path / "alone"))
    assert verify(alone).ok
    assert not (tmp_path / VERIFIED).exists() and not (alone / VERIFIED).exists()


def test_of_the_next_version_only_the_new_shards_are_read(tmp_path: Path, hashed: list[str]) -> None:
    raw.pictures(tmp_path / "raw", 120)
    config = raw.config(tmp_path / "raw", tmp_path / "out", splits={"val": 0.25})
    first = build(config)
    versions.publish(tmp_path / "out", first.version, 3)
    time.sleep(2 * remembered.TICK_S)
    assert verify(first.version, "full").ok
    image = sorted((tmp_path / "raw").rglob("*.png"))[0]
    image.write_bytes(sorted((tmp_path / "raw").rglob("*.png"))[1].read_bytes())
    second = build(config)
    assert second.version != first.version and 0 < second.shards_rewritten < second.shards
    hashed.clear()
    assert verify_version(second.version).ok
    assert len(hashed) == second.shards_rewritten
    report = verify_anew(str(second.version), "full")
    assert report.ok
    assert f"{second.shards - second.shards_rewritten} shard" in " ".join(report.not_seen)
