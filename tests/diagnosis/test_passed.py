"""What a worker has just passed in a tar is read again up to there and no further."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.diagnosis.observation.passed import ReplayReader, passed_in
from tests.stalls.open_clip import write_shards


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    write_shards(tmp_path, ("jpg", "json"), shards=1, samples=50)
    return tmp_path / "train-000000.tar"


def test_only_samples_between_the_offsets_count(tar: Path) -> None:
    half = tar.stat().st_size // 2
    first, second = passed_in(tar, "x", 0, half), passed_in(tar, "x", half, tar.stat().st_size)
    assert first is not None and second is not None
    assert (first.samples_before, first.samples + second.samples) == (0, 50)
    assert second.samples_before == first.samples
    (kind,) = first.kinds
    assert list(kind.members) == ["jpg", "json"] and kind.pixels == 96 * 96


def test_nothing_behind_the_place_is_read(tar: Path) -> None:
    whole = tar.read_bytes()
    os.truncate(tar, len(whole) // 2)
    cut = passed_in(tar, "x", 0, len(whole) // 2)
    tar.write_bytes(whole)
    assert cut == passed_in(tar, "x", 0, len(whole) // 2)


def test_a_reader_that_goes_round_has_passed_all(tar: Path) -> None:
    reader = ReplayReader()
    reader.ask([(os.getpid(), str(tar), 0, 4096, 10 * tar.stat().st_size), (0, str(tar) + ".gone", 0, 1, 0)])
    replayed = reader.answer(60)
    assert replayed.is_whole
    assert {pid: [one.samples for one in passed] for pid, passed in replayed.passed.items()} == {
        os.getpid(): [50]
    }


@pytest.mark.proof
def test_a_file_that_does_not_answer_costs_no_other_its_answer(tar: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hangs.tar")
    reader = ReplayReader()
    size = tar.stat().st_size
    reader.ask([(os.getpid(), str(tar), 0, size, 0), (os.getpid(), str(tmp_path / "hangs.tar"), 0, 9999, 0)])
    replayed = reader.answer(12)
    assert not replayed.is_whole and [one.samples for one in replayed.passed[os.getpid()]] == [50]
