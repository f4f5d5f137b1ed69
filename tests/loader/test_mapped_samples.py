"""Volumes in a map of their shard: the same voxels and the same errors as by reading all, and less is read."""

import json
import os
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasks.core import mapped
from tasks.core.errors import DataError
from tasks.dataset.formats.volumes import stored
from tasks.loader import indexed
from tasks.loader.bad import BadSampleError
from tasks.loader.batches import LoaderSource, PositionBatches
from tasks.loader.collate import WorkerFailure, stack, unpack
from tasks.loader.decoders import decode_volume
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import sample_seeds
from tasks.loader.staging import copy_name
from tasks.loader.workers import Batches
from tasks.models.recipes import load_recipe
from tests.loader.conftest import MakeVersion, flip
from tests.models.examples import train_block

VOXELS = np.random.default_rng(0).integers(-1000, 1000, (40, 130, 125)).astype(np.int16)
CROP = (slice(3, 14), slice(10, 60), slice(100, 119))
SHARD = "train/000000.tar"
pytestmark = pytest.mark.parametrize("encoding", ["blosc2", "npy"])


@pytest.fixture(autouse=True)
def _small_samples_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed, "SMALLEST", 1)


def sample(encoding: str, voxels: NDArray[np.int16] = VOXELS) -> dict[str, bytes]:
    voxels = voxels.copy()
    voxels[16:32, :120, :120] = 0  # a chunk without bytes of its own
    name, content = stored.encode(voxels, encoding)
    facts = {"chunk_crc32c": stored.checksums(stored.open_volume(name, content)), "note": "as it was"}
    return {name: bytes(content), "json": json.dumps(facts).encode(), "txt": b"clear lungs"}


class Cropping:
    """A transform that takes a crop, and the text."""

    reads_crops = True

    def __call__(self, members: dict[str, bytes], seed: int | None) -> dict[str, Any]:
        return {"volume": decode_volume(members, CROP).copy(), "text": members["txt"].decode()}


def batch_of(reader: IndexedReader, positions: range) -> Any:
    source = LoaderSource(reader, reader.order("none"))
    made = PositionBatches([source], Cropping(), None, "raise", stack)[positions]
    if isinstance(made, WorkerFailure):
        raise made.error
    return unpack(made)[0]


def test_members_and_voxels_are_those_of_a_whole_read(make_version: MakeVersion, encoding: str) -> None:
    reader = IndexedReader(make_version(train=[3], change={1: sample(encoding)}), "train")
    whole, mapped = reader.read(1), reader.read(1, crops=True)
    assert mapped.key == whole.key and mapped.members.keys() == whole.members.keys()
    name = stored.member_of(whole.members) or ""
    assert isinstance(whole.members[name], bytes) and not isinstance(mapped.members[name], bytes)
    assert {**mapped.members, name: bytes(mapped.members[name])} == whole.members
    for crop in (None, CROP):
        found = decode_volume(mapped.members, crop)
        np.testing.assert_array_equal(found, decode_volume(whole.members, crop))
    assert isinstance(reader.read(0, crops=True).members["png"], bytes), "which holds no volume"


def test_a_crop_reads_no_chunk_but_its_own(
    make_version: MakeVersion, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = IndexedReader(make_version(train=[1], change={0: sample(encoding)}), "train")
    checked = []
    value = google_crc32c.value
    monkeypatch.setattr(google_crc32c, "value", lambda data: checked.append(len(data)) or value(data))
    monkeypatch.setattr(os, "pread", None)
    members = reader.read(0, crops=True).members
    assert sum(checked) < 0.02 * len(members[stored.member_of(members) or ""])
    checked.clear()
    decode_volume(members, CROP)
    assert len(checked) == (1 if encoding == "blosc2" else 11)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_volumes_is_made_in_place(make_version: MakeVersion, encoding: str, workers: int) -> None:
    """Also one in which another sample stands in for a damaged one; no later batch writes into it."""
    noise = np.random.default_rng(0)
    volumes = [noise.integers(-1000, 1000, (60, 130, 125)).astype(np.int16) for _ in range(6)]
    samples = [sample(encoding, volume) for volume in volumes]
    version = make_version(train=[6], change=dict(enumerate(samples)))
    spoilt = samples[1][stored.member_of(samples[1]) or ""]
    flip(version / SHARD, spoilt[len(spoilt) // 2 :][:50])
    recipe = load_recipe(train_block("ct_clip", vision="tarmac/phantoms", shape=[56, 128, 112]))
    reader = IndexedReader(version, "train")
    source = LoaderSource(reader, reader.order("none"))
    dataset = PositionBatches([source], recipe.transform(True), 3, "replace", recipe.collate)
    steps = [range(2, 4), range(4, 6), range(3)]
    with Batches(dataset, "train", steps, dataset.transform, workers, 2, False) as batches:
        found = [next(batches) for _ in steps]
    for step, batch in zip(steps, found, strict=True):
        for key, volume, position in zip(batch["key"], batch["volume"], step, strict=True):
            seed = sample_seeds(np.array([position]), 3).item()
            expected = recipe.transform(True)(samples[int(key[1:])], seed)["volume"]
            assert torch.equal(volume, expected)
    assert found[2]["key"][1] != "k000001" and found[2]["volume"].shape == (3, 56, 128, 112)


def torn(version: Path, needle: bytes, at: int = 0) -> IndexedReader:
    flip(version / SHARD, needle, at)
    return IndexedReader(version, "train")


def test_a_changed_byte_outside_the_chunks_is_noticed_at_once(
    make_version: MakeVersion, encoding: str
) -> None:
    """In the text, in other facts, in a chunk's checksum, in a tar header: with the error of a whole read."""
    members = sample(encoding)
    name = stored.member_of(members) or ""
    places = [b"clear", b"as it was", members["json"][20:30], b"k000000.txt", members[name][:12]]
    for needle in places:
        reader = torn(make_version(train=[1], change={0: members}), needle, 3)
        with pytest.raises(BadSampleError) as whole:
            reader.read(0)
        with pytest.raises(BadSampleError) as mapped:
            batch_of(reader, range(1))
        assert str(mapped.value) == str(whole.value), needle
        assert mapped.value.defect.reason == "member.checksum"


def test_a_changed_chunk_is_noticed_where_it_is_used(make_version: MakeVersion, encoding: str) -> None:
    members = sample(encoding)
    content = members[stored.member_of(members) or ""]
    start, stop = stored.open_volume(stored.member_of(members) or "", content).spans[
        0 if encoding == "blosc2" else 5
    ]
    reader = torn(make_version(train=[1], change={0: members}), content, (start + stop) // 2)
    with pytest.raises(BadSampleError) as whole:
        reader.read(0)
    with pytest.raises(BadSampleError) as mapped:
        batch_of(reader, range(1))
    assert mapped.value.defect == whole.value.defect
    assert mapped.value.defect.reason == "member.checksum"
    with pytest.raises(DataError, match="differs from its checksum"):
        decode_volume(reader.read(0, crops=True).members)
    start, _ = stored.open_volume(stored.member_of(members) or "", content).spans[-1]
    reader = torn(make_version(train=[1], change={0: members}), content, start + 99)
    np.testing.assert_array_equal(batch_of(reader, range(1))["volume"][0], VOXELS[CROP])


def test_nothing_is_mapped_that_cannot_be_read_beforehand(
    make_version: MakeVersion, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "CAN_READ_AHEAD", False)
    reader = IndexedReader(make_version(train=[1], change={0: sample(encoding)}), "train")
    members = reader.read(0, crops=True).members
    assert all(isinstance(content, bytes) for content in members.values())


def test_without_checksums_only_chunks_are_compared(make_version: MakeVersion, encoding: str) -> None:
    version = make_version(train=[1], change={0: sample(encoding)})
    flip(version / SHARD, b"clear")
    reader = IndexedReader(version, "train", checksums=False)
    assert batch_of(reader, range(1))["text"] == ["blear lungs"]


def test_a_shard_that_is_cut_is_reported_as_before(make_version: MakeVersion, encoding: str) -> None:
    version = make_version(train=[2], change={1: sample(encoding)})
    reader = IndexedReader(version, "train")
    members = reader.read(1, crops=True).members
    os.truncate(version / SHARD, 40_000)
    with pytest.raises(DataError, match="cannot be read"):
        decode_volume(members, CROP)
    with pytest.raises(BadSampleError) as caught:
        batch_of(reader, range(1, 2))
    assert caught.value.defect.reason == "shard.truncated"


def test_a_damaged_copy_makes_way_for_the_shard(
    make_version: MakeVersion, encoding: str, tmp_path: Path
) -> None:
    members = sample(encoding)
    content = members[stored.member_of(members) or ""]
    version = make_version(train=[1], change={0: members})
    copy = tmp_path / "staged" / copy_name(version.resolve(), "train", 0)
    copy.parent.mkdir()
    copy.write_bytes((version / SHARD).read_bytes())
    start, _ = stored.open_volume(stored.member_of(members) or "", content).spans[0]
    flip(copy, content, start + 99)
    reader = IndexedReader(version, "train", staged=tmp_path / "staged")
    np.testing.assert_array_equal(batch_of(reader, range(1))["volume"][0], VOXELS[CROP])
    assert not copy.exists()
