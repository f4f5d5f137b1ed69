"""A sample that cannot be read is named by shard, row, key and member, by faults in real shards."""

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tasks.core.errors import DataError
from tasks.dataset.formats.volumes import stored
from tasks.dataset.version.index import read_index
from tasks.loader import culprit
from tasks.loader.bad import BadSampleError
from tasks.loader.indexed import IndexedReader
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, flip, members_of
from tests.loader.feeds import split_batches, train_batches

SHARD = "train/000001.tar"


def read_error(version: Path, number: int) -> BadSampleError:
    with pytest.raises(BadSampleError) as caught:
        IndexedReader(version, "train").read(number)
    return caught.value


@pytest.mark.parametrize(
    ("needle", "at", "bit", "member"),
    [
        (b"caption 5", 0, 0x80, "txt"),  # no UTF-8 any more
        (b"caption 5", 0, 0x01, "json|txt"),  # still UTF-8, and PNG carries checksums
        (b'{"label": "5"}', 0, 0x40, "json"),  # no JSON any more
        (b'{"label": "5"}', 11, 0x01, "json|txt"),
        (b"k000005.png", 512 + 20, 0x01, "png"),  # its size
        (b"k000005.png", 512 + 50, 0x01, "png"),  # its pixels
        (b"k000005.txt", 130, 0x01, "txt"),  # the size in its tar header
        (b"k000005.txt", 148, 0x02, "txt"),  # the header's own checksum
        (b"k000005.txt", 8, 0x01, "uxt"),  # its name
        (b"k000005.txt", 0, 0x80, "txt"),  # its key
        (b"caption 5", 300, 0x01, "txt"),  # its padding
        (b"k000005.json", 0, 0x80, "json"),
    ],
)
def test_a_flipped_bit_is_named(
    make_version: MakeVersion, needle: bytes, at: int, bit: int, member: str
) -> None:
    version = make_version(train=[3, 4])
    flip(version / SHARD, needle, at, bit)
    error = read_error(version, 5)
    defect = error.defect
    assert (defect.split, defect.shard, defect.row, defect.key) == ("train", SHARD, 2, "k000005")
    assert (defect.reason, defect.member) == ("member.checksum", member)
    found = f"member {member}" if "|" not in member else f"member one of {member.replace('|', ', ')}"
    assert str(error).startswith(f"{SHARD} row 2, key 'k000005', {found}: its CRC32C differs from the index")
    assert str(error).endswith(f"; `tarmac repair {version}` repairs it, or leaves it out with --quarantine")
    assert IndexedReader(version, "train").read(4).members == members_of(4)


def test_without_checksums_a_changed_byte_passes_and_a_changed_header_does_not(
    make_version: MakeVersion,
) -> None:
    version = make_version(train=[3, 4])
    flip(version / SHARD, b"caption 5")
    flip(version / SHARD, b"k000006.txt", at=124, bit=0x40)
    read = train_batches(version, transforms.plain, batch_size=1, shuffle="none", checksums=False)
    with read:
        captions = [next(read)["caption"][0] for _ in range(6)]
        assert captions[5] == "baption 5"
        with pytest.raises(BadSampleError, match=r"000001\.tar row 3, key 'k000006', member txt: .*changed"):
            next(read)
    with pytest.raises(BadSampleError, match="key 'k000005', member one of json, txt: its CRC32C"):
        list(islice(train_batches(version, transforms.plain, batch_size=1, shuffle="none"), 7))


def test_zeros_in_place_of_a_member_and_its_header(make_version: MakeVersion) -> None:
    version = make_version(train=[3, 4])
    data = bytearray((version / SHARD).read_bytes())
    start = data.index(b"k000005.png")
    data[start : start + 1024] = bytes(1024)
    (version / SHARD).write_bytes(data)
    assert (read_error(version, 5).defect.key, read_error(version, 5).defect.member) == ("k000005", None)


def test_a_truncated_shard(make_version: MakeVersion) -> None:
    version = make_version(train=[3, 4])
    os.truncate(version / SHARD, 7000)
    error = read_error(version, 5)
    assert (error.defect.reason, error.defect.key) == ("shard.truncated", "k000005")
    entry = read_index(version, "train")[5]
    missing = int(entry["offset"] + entry["length"]) - 7000
    assert f"the shard is truncated, {missing:,} of its bytes are missing; " in str(error)
    os.truncate(version / SHARD, 0)
    assert "the shard is truncated, all of its bytes are missing; " in str(read_error(version, 5))
    assert read_error(version, 3).defect.reason == "shard.truncated"


def test_a_missing_shard(make_version: MakeVersion) -> None:
    version = make_version(train=[3, 7])
    (version / SHARD).unlink()
    for number in (3, 9):  # keys of two row groups
        error = read_error(version, number)
        assert (error.defect.reason, error.defect.key) == ("shard.missing", f"k{number:06d}")
        assert str(error).startswith(f"{SHARD} row {number - 3}, key 'k{number:06d}': No such file")


@pytest.mark.parametrize("harm", ["missing", "torn"])
def test_without_the_table_of_samples_the_header_tells_the_key(make_version: MakeVersion, harm: str) -> None:
    version = make_version(train=[3, 4])
    table = version / "samples" / "train.parquet"
    table.unlink() if harm == "missing" else table.write_bytes(table.read_bytes()[:40])
    flip(version / SHARD, b"caption 5", bit=0x80)
    assert read_error(version, 5).defect.key == "k000005"
    (version / SHARD).unlink()
    assert read_error(version, 5).defect.key == ""
    assert str(read_error(version, 5)).startswith(f"{SHARD} row 2: No such file")


def test_storage_that_does_not_answer_says_nothing_of_a_sample(make_version: MakeVersion) -> None:
    version = make_version(train=[3, 4])
    (version / SHARD).unlink()
    (version / SHARD).mkdir()
    with pytest.raises(DataError, match=rf"{SHARD}: .*Is a directory") as caught:
        IndexedReader(version, "train").read(5)
    assert not isinstance(caught.value, BadSampleError)


@pytest.mark.parametrize(("field", "value"), [("length", 1 << 40), ("length", 1 << 62), ("offset", 1 << 63)])
def test_an_index_that_asks_for_the_impossible_is_named(
    make_version: MakeVersion, field: str, value: int
) -> None:
    version = make_version(train=[3, 4])
    path = version / "index/train.npy"
    index = np.load(path)
    index[5][field] = value
    np.save(path, index)
    with pytest.raises(DataError, match=f"^train/000001.tar row 2: .* `tarmac repair {version}`") as caught:
        IndexedReader(version, "train").read(5)
    assert not isinstance(caught.value, BadSampleError) and f"{value:,}" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_member_that_was_bad_when_it_was_written(make_version: MakeVersion, workers: int) -> None:
    torn = {**members_of(5), "png": members_of(5)["png"][:40]}
    version = make_version(train=[3], val=[3, 4], change={5: torn})
    with pytest.raises(BadSampleError) as caught:
        list(split_batches(version, "val", transforms.plain, batch_size=2, workers=workers))
    defect = caught.value.defect
    assert (defect.shard, defect.row, defect.key) == ("val/000001.tar", 2, "k000005")
    assert (defect.member, defect.reason) == ("png", "member.undecodable")
    assert "member png: picture cannot be decoded: " in str(caught.value)
    assert str(caught.value).endswith(
        f"`tarmac repair {version} --full` repairs it, or leaves it out with --quarantine"
    )


@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fits_the_index", [False, True])
def test_a_flipped_chunk_of_a_volume_is_named(
    make_version: MakeVersion, encoding: str, workers: int, fits_the_index: bool
) -> None:
    """By the CRC32C of the sample; or, where only a part of it is read or the index fits, of the chunk."""
    voxels = np.random.default_rng(0).integers(-1000, 1000, (33, 50, 40)).astype(np.int16)
    name, content = stored.encode(voxels, encoding)
    sound = bytes(content)
    facts = {"chunk_crc32c": stored.checksums(stored.open_volume(name, sound))}
    sample = {name: sound, "json": json.dumps(facts).encode(), "txt": b"clear"}
    torn = bytearray(sound)
    torn[len(torn) // 2] ^= 1
    if fits_the_index:
        version = make_version(train=[2], change={1: {**sample, name: bytes(torn)}})
    else:
        version = make_version(train=[2], change={1: sample})
        flip(version / "train/000000.tar", sound, len(sound) // 2)
    with pytest.raises(BadSampleError) as caught:
        list(split_batches(version, "train", transforms.cropping, batch_size=2, workers=workers))
    defect = caught.value.defect
    assert (defect.key, defect.member) == ("k000001", name)
    assert defect.reason == ("member.undecodable" if fits_the_index else "member.checksum")
    assert "chunk " in str(caught.value)


def test_other_members_are_judged_by_their_decoders() -> None:
    def member(**members: bytes) -> str | None:
        return culprit.in_members({name.replace("_", "."): data for name, data in members.items()})[0]

    assert member(txt=b"a", npy=b"\x93NUMPY torn") == "npy"
    assert member(txt=b"a", npz=b"PK torn") == "npz"
    assert member(syn_json=b"{", txt=b"a") == "syn.json"
    assert member(pth_gz=b"\x1f\x8b torn") == "pth.gz"
    assert member(abc=b"\xff", txt=b"a") == "abc|txt", "what no decoder knows stays in doubt"
    assert member(jpg=members_of(1)["png"][:60]) == "jpg"
