"""What a file, a folder and a pattern stand for, and how a mistake in one reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.core.patterns import base_folder, expand
from tests.core.conftest import TRAIN


def found(folder: Path, pattern: str) -> list[str]:
    return [file.removeprefix(f"{folder}/") for file in expand(f"{folder}/{pattern}", (".tar",), "the.key")]


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("val/000000.tar", ["val/000000.tar"]),
        ("train", TRAIN),
        ("", [*TRAIN, "val/000000.tar"]),
        ("t*", TRAIN),
        ("train/*", TRAIN),
        ("*/*.tar", ["train/000000.tar", "train/000002.tar", "val/000000.tar"]),
        ("train/00000[12].*", TRAIN[1:]),
        ("train/00000[!1].*", [TRAIN[0], TRAIN[2]]),
        ("**/00000[!1].*", [TRAIN[0], TRAIN[2], "val/000000.tar"]),
        ("**/000000.tar", ["train/000000.tar", "val/000000.tar"]),
        ("**/train/**", TRAIN),
        ("{val,train}/000000.tar", ["val/000000.tar", "train/000000.tar"]),
        ("{val,train}", ["val/000000.tar", *TRAIN]),
        ("train/{000000..000000}.tar", TRAIN[:1]),
        ("{train,val}/{000000..000000}.tar", ["train/000000.tar", "val/000000.tar"]),
        ("train/{000000,000002}.t?r", [TRAIN[0], TRAIN[2]]),
        ("{{val,train}/000000,train/000002}.tar", ["val/000000.tar", TRAIN[0], TRAIN[2]]),
    ],
)
def test_a_file_a_folder_and_patterns(folder: Path, pattern: str, files: list[str]) -> None:
    assert found(folder, pattern) == files


@pytest.mark.parametrize("last", [3, 11])
def test_a_gap_in_a_range_is_named(folder: Path, last: int) -> None:
    """Few members are looked for one by one, many in a list of their folder."""
    (folder / "train/000001.TAR").rename(folder / "train/000001.tar")
    for number in range(3, last + 1):
        (folder / f"train/{number:06d}.tar").write_bytes(b"")
    assert len(found(folder, f"train/{{000000..{last:06d}}}.tar")) == last + 1
    (folder / "train/000002.tar").unlink()
    with pytest.raises(UsageError, match=r"^the\.key: there is no .*/train/000002\.tar of .*\{000000\.\."):
        found(folder, f"train/{{000000..{last:06d}}}.tar")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nowhere", r"^the\.key: there is no .*/nowhere"),
        ("nowhere/*.tar", r"^the\.key: there is no .*nowhere/\*\.tar"),
        ("*.tar", r"^the\.key: there is no .*\.tar file"),
        ("train/{2..0}.tar", r"^the\.key: \{2\.\.0\}"),
        ("{0..99999}/{0..99999}.tar", r"^the\.key: .* more than"),
        ("{0..99999999999999999999}.tar", r"^the\.key: .* more than"),
        (f"{{0..{'9' * 5000}}}.tar", r"^the\.key: .* more than"),
        ("{{" + "{a,b}" * 40 + "},x}.tar", r"^the\.key: .* more than"),
        ("read.me", r"^the\.key"),
    ],
)
def test_what_is_not_there_is_one_line(folder: Path, pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        found(folder, pattern)


def test_a_relative_pattern_starts_at_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "train")
    assert expand("*.tar", (".tar",)) == [f"{folder}/train/000000.tar", f"{folder}/train/000002.tar"]
    assert expand("../val", (".tar",)) == [f"{folder}/val/000000.tar"]
    assert base_folder("*.tar") == base_folder("000000.tar") == base_folder(".") == f"{folder}/train"


def test_a_name_that_looks_like_a_pattern_is_a_file_when_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "x[1]{a,b}.tar").write_bytes(b"")
    assert found(tmp_path, "x[1]{a,b}.tar") == ["x[1]{a,b}.tar"]
    assert base_folder(f"{tmp_path}/x[1]{{a,b}}.tar") == str(tmp_path)


@pytest.mark.parametrize(
    ("location", "base"),
    [
        ("s3://b/x/*.tar", "s3://b/x"),
        ("s3://b/x{0..3}/y/*.tar", "s3://b"),
        ("/data/x/[ab]/y.tar", "/data/x"),
        ("/data/x", "/data/x"),
        ("https://h/x/{0..2}.tar?token=1", "https://h/x"),
    ],
)
def test_the_folder_in_front_of_a_pattern(location: str, base: str) -> None:
    assert base_folder(location) == base


@pytest.mark.parametrize("name", ["raw[1]", "r{a,b}", "what?", "all*"])
def test_a_folder_that_looks_like_a_pattern_is_a_folder_when_there_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "x.tar").write_bytes(b"")
    assert found(tmp_path, name) == [f"{name}/x.tar"]
    assert base_folder(f"{tmp_path}/{name}") == f"{tmp_path}/{name}"


def test_a_question_mark_in_a_local_name_begins_no_query(tmp_path: Path) -> None:
    (tmp_path / "what?.tar").write_bytes(b"")
    assert found(tmp_path, "what?.tar") == ["what?.tar"]


def test_a_package_that_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError) as caught:
        expand("s3://b/x.csv", (".csv",), "dataset.source.path")
    assert str(caught.value) == (
        "dataset.source.path: s3:// needs the package s3fs: pip install 'tarmac[remote]'"
    )
