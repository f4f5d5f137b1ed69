"""Single samples of a version: a caption is read without the picture or volume beside it."""

from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.dataset.building.builder import build
from tasks.dataset.sample_reader import SMALL, SampleReader
from tests.dataset import raw


def bytes_read() -> int:
    """The bytes that this process has read from files, pipes and the like."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    raw.pictures(folder / "raw", 6, side=700)  # noise, of 1.4 MB each
    return build(raw.config(folder / "raw", folder / "data", splits={})).version


def test_of_a_large_sample_little_more_than_its_caption_is_read(version: Path) -> None:
    reader = SampleReader(version, "train")
    before = bytes_read()
    captions = {reader.read_text(row, 1000) for row in range(len(reader))}
    assert bytes_read() - before < 6 * SMALL < 6_000_000
    assert captions == {f"picture {number}".encode() for number in range(6)}
    assert all(reader.read(row).members["txt"] in captions for row in range(len(reader)))
    assert reader.read_text(0, 4) == b"pict"


def test_of_a_small_sample_too(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 2)
    reader = SampleReader(build(raw.config(tmp_path / "raw", tmp_path / "data", splits={})).version, "train")
    assert {reader.read_text(row, 4) for row in range(2)} == {b"pict"}


@pytest.mark.parametrize("damage", [b"\0" * 512, b"x" * 512, b""], ids=["zeros", "noise", "cut"])
def test_damage_names_the_shard(version: Path, damage: bytes) -> None:
    tar = version / "train" / "000000.tar"
    whole = tar.read_bytes()
    header = whole.index(b".txt\0") // 512 * 512
    tar.write_bytes(whole[:header] + damage + (whole[header + 512 :] if damage else b""))
    try:
        with pytest.raises(DataError, match=r"train/000000\.tar: no sample at 0: "):
            SampleReader(version, "train").read_text(0, 1000)
    finally:
        tar.write_bytes(whole)
