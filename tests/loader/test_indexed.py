import os
import pickle

import pytest

from tasks.loader.indexed import IndexedReader
from tests.loader.conftest import MakeVersion, members_of


def test_reads_every_sample_with_its_key_and_members(make_version: MakeVersion) -> None:
    reader = IndexedReader(make_version(train=[3, 1, 2]), "train")
    assert len(reader) == 6
    for number in (5, 0, 3, 1, 2, 4):
        sample = reader.read(number)
        assert sample.key == f"k{number:06d}"
        assert sample.members == members_of(number)


def test_a_sample_is_one_read_of_its_span(make_version: MakeVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = IndexedReader(make_version(train=[5]), "train")
    reads = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *of: reads.append(of[1]) or pread(*of))
    reader.read(2)
    assert reads == [sum(512 + 512 * -(-len(data) // 512) for data in members_of(2).values())]


def test_few_descriptors_stay_open_however_many_shards(make_version: MakeVersion) -> None:
    before = len(os.listdir("/proc/self/fd"))
    reader = IndexedReader(make_version(train=[1] * 30), "train", open_shards=4)
    for number in [*range(30), *range(30)]:
        assert reader.read(number).key == f"k{number:06d}"
        assert len(os.listdir("/proc/self/fd")) <= before + 4 + 1  # and one for the mapped index
    del reader
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_copy_by_pickle_is_small_and_reads(make_version: MakeVersion) -> None:
    reader = IndexedReader(make_version(train=[50]), "train")
    reader.read(1)
    data = pickle.dumps(reader)
    assert len(data) < 1000
    assert pickle.loads(data).read(7).members == members_of(7)
