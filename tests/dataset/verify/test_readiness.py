"""What is set aside does not keep a version from being trained on; what is not does."""

from pathlib import Path

import pytest

from tasks.dataset.verify.verifier import BadSample, verify, verify_version
from tasks.dataset.version import quarantine, versions
from tasks.dataset.version.index import read_index
from tasks.dataset.version.quarantine import Quarantined


@pytest.fixture
def version(dataset: Path) -> Path:
    """The version in its dataset."""
    return versions.resolve(dataset)


def spoil(version: Path, row: int) -> None:
    entry = read_index(version, "train")[row]
    path = version / "train" / f"{entry['shard']:06d}.tar"
    data = bytearray(path.read_bytes())
    data[int(entry["offset"]) + 600] ^= 1
    path.write_bytes(data)


def set_aside(version: Path) -> None:
    bad: list[BadSample] = []
    verify(version, on_bad=bad.append)
    entries = [Quarantined(version.name, one.split, one.shard, one.key, one.reason) for one in bad]
    quarantine.add(quarantine.home(version), entries)


def test_a_sound_version_is_ready(version: Path) -> None:
    assert verify_version(version).findings == []


def test_what_is_set_aside_is_a_warning(version: Path) -> None:
    spoil(version, 3)
    assert not verify_version(version).ok
    set_aside(version)
    report = verify_version(version)
    assert report.ok and {found.severity for found in report.findings} == {"warning"}
    spoil(version, 4)
    assert not verify_version(version).ok, "another sample of the same shard is bad"


def test_what_no_quarantine_covers_stays_an_error(version: Path) -> None:
    spoil(version, 3)
    set_aside(version)
    (version / "shards.parquet").unlink()
    assert not verify_version(version).ok
