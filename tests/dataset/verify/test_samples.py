"""Faults that only all shards together show, such as a key in two of them; each bad sample is reported once."""

import json
import os
import random
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flows.cli import main
from flows.commands.soundness import report_lines
from tasks.dataset.tar.format import END
from tasks.dataset.verify import findings as report
from tasks.dataset.verify.examination import BadSample, SampleKeys
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import quarantine
from tests.dataset import tampering
from tests.dataset.handmade import MEMBERS, write_shard
from tests.dataset.raw import shards
from tests.dataset.tampering import flip


def write_tar(path: Path, number: int) -> None:
    write_shard(path, [(f"{number}-{key}", MEMBERS) for key in range(20)])


def duplicates(keys: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    with closing(SampleKeys()) as one:
        for shard in sorted(keys, reverse=True):
            one.add(shard, dict.fromkeys(keys[shard]), ())
        return [(found.shard, found.key, found.fault.evidence["also_in"]) for found in one.duplicates()]


def test_the_later_shard_has_the_duplicate() -> None:
    keys = {"a": ["x", "y"], "b": ["z", "x"], "c": ["x", "z", "w"]}
    assert duplicates(keys) == [("b", "x", "a"), ("c", "x", "a"), ("c", "z", "b")]


def test_a_folder_twice_is_counted_whole(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / "a" / f"{number}.tar", number)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    bad: list[BadSample] = []
    findings = verify(tmp_path, on_bad=bad.append).findings
    assert {finding.code for finding in findings} == {"sample.duplicate_key"}
    assert Counter(finding.where["shard"] for finding in findings) == {
        f"b/{number}.tar": 20 for number in range(3)
    }
    assert {finding.evidence["also_in"] for finding in findings} == {f"a/{number}.tar" for number in range(3)}
    assert len(bad) == 60 and {one.shard[0] for one in bad} == {"b"}


def test_a_key_in_two_splits_is_named(version: Path) -> None:
    key = tampering.read(version / "train" / "000000.tar")[2][0].key
    with tampering.taken_apart(version / "val" / "000000.tar") as samples:
        samples.append(tampering.read(version / "train" / "000000.tar")[2])
    tampering.forge(version)
    bad: list[BadSample] = []
    (finding,) = verify(version, "full", on_bad=bad.append).findings
    assert finding.where == {"split": "val", "shard": "val/000000.tar", "key": key}
    assert finding.evidence == {"also_in": "train/000000.tar"}
    assert bad == [BadSample("val", "val/000000.tar", key, "sample.duplicate_key")]


def test_a_duplicate_that_lacks_a_member_is_one_bad_sample(version: Path) -> None:
    sample = tampering.read(version / "train" / "000000.tar")[2]
    with tampering.taken_apart(version / "val" / "000000.tar") as samples:
        samples.append([entry for entry in sample if entry.suffix != "txt"])
    tampering.forge(version)
    assert {one.code for one in verify(version, "full").findings} == {
        "sample.duplicate_key",
        "sample.missing_member",
    }
    assert bad_samples(version, "full") == {("val/000000.tar", sample[0].key): "sample.missing_member"}


def keys_of(version: Path, shard: str) -> list[str]:
    split, number = shard.split("/")[0], int(shard.split("/")[1].removesuffix(".tar"))
    rows = pq.read_table(version / "samples" / f"{split}.parquet", columns=["key", "shard"]).to_pylist()
    return [row["key"] for row in rows if row["shard"] == number]


def bad_samples(version: Path, level: Any = "default") -> dict[tuple[str, str], str]:
    bad: list[BadSample] = []
    verify(version, level, on_bad=bad.append)
    assert len({(one.shard, one.key) for one in bad}) == len(bad), "each sample is reported once"
    return {(one.shard, one.key): one.reason for one in bad}


def test_every_bad_sample_is_reported_once_with_its_first_reason(version: Path) -> None:
    gone, cut, flipped, swapped, other = (f"train/{number:06d}.tar" for number in range(5))
    expected = {(gone, key): "shard.missing" for key in keys_of(version, gone)}
    (version / gone).unlink()
    index = np.load(version / "index" / "train.npy")
    rows = index[index["shard"] == 1]
    os.truncate(version / cut, int(rows[4]["offset"]) + 700)
    expected |= {(cut, key): "shard.truncated" for key in keys_of(version, cut)[4:]}
    rows = index[index["shard"] == 2]
    for row in (1, 3):
        flip(version / flipped, int(rows[row]["offset"]) + 600)
        expected[flipped, keys_of(version, flipped)[row]] = "member.checksum"
    (version / swapped).rename(version / "aside")
    (version / other).rename(version / swapped)
    (version / "aside").rename(version / other)
    for shard in (swapped, other):
        expected |= {(shard, key): "shard.checksum" for key in keys_of(version, shard)}
    assert bad_samples(version) == expected
    quick = {
        place: reason for place, reason in expected.items() if reason in ("shard.missing", "shard.truncated")
    }
    assert {
        place: reason for place, reason in bad_samples(version, "quick").items() if place[0] in (gone, cut)
    } == quick
    entries = [
        quarantine.Quarantined(version.name, "train", shard, key, reason)
        for (shard, key), reason in expected.items()
    ]
    assert len(quarantine.rows(version, "train", entries)) == len(expected)


def test_without_an_index_all_of_a_changed_shard_is_in_doubt(version: Path) -> None:
    shard = "train/000002.tar"
    flip(version / shard, 700)
    (version / "index" / "train.npy").unlink()
    assert bad_samples(version) == {(shard, key): "shard.checksum" for key in keys_of(version, shard)}


def test_findings_are_bounded_and_bad_samples_are_all(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = version / "val" / "000000.tar"
    with tampering.taken_apart(path) as samples:
        for sample in samples:
            sample[:] = [entry for entry in sample if entry.suffix != "txt"]
    tampering.forge(version)
    bad = bad_samples(version, "full")
    assert set(bad.values()) == {"sample.missing_member"} and len(bad) > 6
    assert {finding.where["key"] for finding in verify(version, "full").findings} == {key for _, key in bad}
    monkeypatch.setattr(report, "LISTED", 5)
    findings = verify(version, "full").findings
    assert len(findings) == 5 and findings[-1].evidence["and_more_of_its_kind"] == len(bad) - 5
    assert json.loads(json.dumps(verify(version, "full").to_json()))["ok"] is False


def write_apart(path: Path, keys: range) -> None:
    """A tar in which no member stands beside another of its sample."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [shards.entry(f"{key:05d}.{suffix}", b"x") for suffix in ("txt", "cls", "id") for key in keys]
    path.write_bytes(b"".join(entries) + END)


def test_a_sample_in_many_pieces_is_one_finding_whose_remedy_is_to_sort_the_tar(tmp_path: Path) -> None:
    write_apart(tmp_path / "0.tar", range(40))
    findings = verify(tmp_path).findings
    assert Counter(finding.where["key"] for finding in findings) == {f"{key:05d}": 1 for key in range(40)}
    assert {finding.code for finding in findings} == {"sample.split_members"}
    assert all("tar --sort=name" in finding.remedy for finding in findings)


def test_init_sees_that_members_stand_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    entries = [
        shards.entry(f"{key:03d}.{suffix}", MEMBERS[suffix]) for key in range(60) for suffix in MEMBERS
    ]
    for name, is_mixed in (("sorted", False), ("mixed", True)):
        if is_mixed:
            random.Random(0).shuffle(entries)
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.tar").write_bytes(b"".join(entries) + END)
        assert main(["init", name]) == (2 if is_mixed else 0)
        assert ("tar --sort=name" in "".join(capsys.readouterr())) == is_mixed


def test_what_is_not_listed_is_counted_on_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_apart(tmp_path / "0.tar", range(40))
    write_apart(tmp_path / "1.tar", range(40, 80))
    found = list(report_lines(verify(tmp_path), "x", "default", "1 s"))
    assert Counter(line.split()[2] for line in found if line.startswith("✗ sample")) == {
        "0.tar": 5,
        "1.tar": 5,
    }
    assert found[-2:] == [
        "… sample.split_members: 70 more; --json lists all",
        "✗ 80 findings in 2 shards, 1 s",
    ]
    monkeypatch.setattr(report, "LISTED", 30)
    monkeypatch.setattr(report, "MOST", 30)
    found = list(report_lines(verify(tmp_path), "x", "default", "1 s"))
    assert found[-2:] == [
        "… sample.split_members: 70 more; --json lists 35 of 80",
        "✗ 80 findings in 2 shards, 1 s",
    ]
    assert not any("and_more" in line for line in found)


def test_a_foreign_sample_that_lacks_two_members_is_bad_once(tmp_path: Path) -> None:
    for number in range(4):
        write_tar(tmp_path / f"{number}.tar", number)
    write_shard(tmp_path / "4.tar", [("x", {"json": b"{}", "png": b""}), ("y", {"json": b"{}"})])
    assert bad_samples(tmp_path) == {("4.tar", "x"): "member.empty", ("4.tar", "y"): "sample.missing_member"}
    lacking = [
        finding.where for finding in verify(tmp_path).findings if finding.code == "sample.missing_member"
    ]
    assert [(where["key"], where["member"]) for where in lacking] == [
        ("x", "txt"),
        ("y", "png"),
        ("y", "txt"),
    ]
