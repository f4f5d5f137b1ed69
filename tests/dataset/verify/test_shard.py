"""The examination of one shard: what is sound has no faults whoever made it, and every damage is named."""

import errno
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.files import blake3_file
from tasks.dataset.tar.format import END
from tasks.dataset.tar.reader import BUFFER
from tasks.dataset.verify import scan
from tasks.dataset.verify.scan import ShardTask
from tasks.dataset.verify.shard import ShardResult, check_shard
from tasks.dataset.version.index import INDEX
from tests.dataset import raw
from tests.dataset.handmade import MEMBERS as GOOD
from tests.dataset.handmade import Members, write_shard
from tests.dataset.raw import shards

NAME = "train/000000.tar"
Samples = list[tuple[str, Members]]


def own(folder: Path, samples: Samples, **task: Any) -> Any:
    """A shard as the build writes it, and its rows of the tables."""
    spans, blake3 = write_shard(folder / NAME, samples)
    index = np.array([(0, *span) for span in spans], INDEX)
    recorded = {
        "blake3": blake3,
        "samples": len(samples),
        "index": index,
        "keys": [key for key, _ in samples],
    }
    return ShardTask(str(folder), NAME, **{**recorded, "is_own": True, "modality": "image_text", **task})


def foreign(folder: Path, data: bytes, **task: Any) -> ShardTask:
    (folder / "a.tar").write_bytes(data)
    return ShardTask(str(folder), "a.tar", **task)


def pairs(count: int, members: Members = GOOD) -> Samples:
    return [(f"{number:04d}", members) for number in range(count)]


def entries(samples: Samples) -> bytes:
    """The members of a foreign tar, without its end."""
    return b"".join(
        shards.entry(f"{key}.{suffix}", content)
        for key, members in samples
        for suffix, content in members.items()
    )


def codes(found: ShardResult) -> set[str]:
    return {one.code for one in found.faults}


def faults(found: ShardResult) -> list[tuple[str, str | None, str | None]]:
    """The faults of samples."""
    return [
        (one.code, one.where["key"], one.where.get("member")) for one in found.faults if "key" in one.where
    ]


def problem(found: ShardResult, code: str) -> str:
    (finding,) = [one for one in found.faults if one.code == code]
    return str(finding.evidence["problem"])


def sets(found: ShardResult) -> dict[tuple[str, ...], list[str]]:
    """The keys of whole samples by their sorted members."""
    by_set: dict[tuple[str, ...], list[str]] = {}
    for key, members in found.keys.items():
        if members is not None:
            by_set.setdefault(tuple(sorted(members)), []).append(key)
    return by_set


@pytest.mark.parametrize("decodes", [False, True])
def test_a_sound_shard_has_no_faults(tmp_path: Path, decodes: bool) -> None:
    task = own(tmp_path, pairs(50), decodes=decodes)
    found = check_shard(task)
    assert not found.faults and not found.bad and not found.undecoded
    assert found.blake3 == blake3_file(tmp_path / NAME)
    assert list(found.keys) == [key for key, _ in pairs(50)]
    without_tables = check_shard(ShardTask(task.folder, NAME, decodes=decodes))
    assert sets(without_tables) == {("json", "png", "txt"): list(found.keys)}
    assert without_tables.faults == []


@pytest.mark.parametrize("decodes", [False, True])
def test_members_longer_than_what_is_read_at_once(tmp_path: Path, decodes: bool) -> None:
    large = {**GOOD, "bin": os.urandom(3 * BUFFER + 100)}
    found = check_shard(own(tmp_path, pairs(3, large), decodes=decodes))
    assert not found.faults and found.blake3 == blake3_file(tmp_path / NAME)


def test_upper_case_suffixes_are_those_that_loaders_see(tmp_path: Path) -> None:
    data = entries(pairs(20, {"JPG": raw.png(1, kind="JPEG"), "Txt": b"x"})) + END
    assert set(sets(check_shard(foreign(tmp_path, data, decodes=True)))) == {("jpg", "txt")}


def test_missing_and_surplus_members_are_named(tmp_path: Path) -> None:
    samples = pairs(20)
    samples[3] = ("0003", {"png": GOOD["png"]})
    samples[5] = ("0005", {**GOOD, "txt": b""})
    samples[7] = ("0007", {**GOOD, "pyd": b"x", "extra.PKL": b"x"})
    samples[9] = ("0007", GOOD)
    samples[11] = ("../0011", GOOD)
    found = check_shard(own(tmp_path, samples))
    assert len(found.faults) == len(faults(found))
    assert faults(found) == [
        ("sample.missing_member", "0003", "txt"),
        ("member.empty", "0005", "txt"),
        ("member.unsafe", "0007", "extra.pkl"),
        ("member.unsafe", "0007", "pyd"),
        *(("member.unsafe", "../0011", suffix) for suffix in ("json", "png", "txt")),
        ("sample.duplicate_key", "0007", None),
    ]
    assert list(found.bad) == ["0003", "0005", "0007", "../0011"]
    assert list(found.keys) == list(dict.fromkeys(key for key, _ in samples))


def test_two_samples_of_a_key_side_by_side_and_a_member_twice(tmp_path: Path) -> None:
    found = check_shard(own(tmp_path, [("a", GOOD), ("b", GOOD), ("b", GOOD), ("c", GOOD)]))
    assert faults(found) == [("sample.duplicate_key", "b", None)] and len(found.faults) == 1
    twice = entries([("a", GOOD)]) + shards.entry("a.txt", b"again") + entries([("b", GOOD)]) + END
    assert faults(check_shard(foreign(tmp_path, twice))) == [("sample.duplicate_key", "a", "txt")]


def test_members_apart_are_judged_together(tmp_path: Path) -> None:
    halves = [(key, {suffix: GOOD[suffix]}) for suffix in ("png", "txt") for key in "abc"]
    found = check_shard(foreign(tmp_path, entries(halves) + END, modality="image_text"))
    assert faults(found) == [("sample.split_members", key, None) for key in "abc"]
    found = check_shard(foreign(tmp_path, entries(halves) + END))
    assert sets(found) == {("png", "txt"): ["a", "b", "c"]}


@pytest.mark.parametrize("member", [0, 1, 2])
def test_behind_a_broken_header_samples_are_still_judged(tmp_path: Path, member: int) -> None:
    samples = pairs(40)
    samples[30] = ("0002", GOOD)
    data = bytearray(entries(samples) + END)
    start = len(entries(samples[:10])) + len(entries([("a", dict(list(GOOD.items())[:member]))]))
    data[start + 3] ^= 1
    for modality in ("image_text", None):
        found = check_shard(foreign(tmp_path, bytes(data), modality=modality))
        assert problem(found, "shard.checksum") == f"no sound tar header at byte {start:,}"
        assert codes(found) == {"shard.checksum", "sample.duplicate_key"} and len(found.keys) == 39
    assert sum(members is not None for members in found.keys.values()) == (38 if member == 1 else 37)


def test_samples_are_named_by_their_keys_where_places_have_shifted(tmp_path: Path) -> None:
    samples = pairs(20)
    task = own(tmp_path, samples)
    samples[12] = ("0012", {"txt": b"x"})
    own(tmp_path, samples[:3] + samples[4:])
    found = check_shard(task)
    assert [one for one in faults(found) if one[0] != "member.checksum"] == [
        ("sample.missing_member", "0012", "jpg|png|webp")
    ]


def test_empty_members_among_many(tmp_path: Path) -> None:
    samples = pairs(100)
    samples[50] = ("0050", {**GOOD, "TXT2": b""})
    samples[70] = ("0070", {"json": b"", "png": GOOD["png"], "txt": b""})
    found = check_shard(foreign(tmp_path, entries(samples) + END))
    empty = [("0050", "txt2"), ("0070", "json"), ("0070", "txt")]
    assert faults(found) == [("member.empty", key, member) for key, member in empty]


def test_with_an_index_damage_names_the_samples_it_hit(tmp_path: Path) -> None:
    samples = pairs(40)
    task = own(tmp_path, samples)
    starts = task.index["offset"]
    data = bytearray((tmp_path / NAME).read_bytes())
    for row, at in ((4, 2), (4, 1100), (9, 600), (20, 0)):
        data[starts[row] + at] ^= 1
    data[starts[30] : starts[30] + 4096] = bytes(4096)
    (tmp_path / NAME).write_bytes(data)
    found = check_shard(task)
    assert [(one[1], found.bad[one[1]]) for one in faults(found) if one[0] == "member.checksum"] == [
        (f"{row:04d}", "member.checksum")
        for row in (4, 9, 20, 30, 31, 32, 33)
        if row < 30 or starts[row] < starts[30] + 4096
    ]
    assert codes(found) == {"shard.checksum", "member.checksum"}
    of_samples = [one for one in check_shard(replace(task, keys=None)).faults if "row" in one.evidence]
    nameless = {one.evidence["row"]: one.where.get("key") for one in of_samples}
    assert (nameless[4], nameless[9], nameless[30]) == ("0004", "0009", None)


@pytest.mark.parametrize("decodes", [False, True])
def test_a_cut_anywhere_is_found_and_its_lost_samples_are_named(tmp_path: Path, decodes: bool) -> None:
    samples = pairs(4, {"png": b"x" * 600, "txt": b"a caption"})
    task = replace(own(tmp_path, samples), decodes=False)
    data = (tmp_path / NAME).read_bytes()
    stops = task.index["offset"] + task.index["length"]
    for size in range(0, len(data), 100 if decodes else 31):
        (tmp_path / NAME).write_bytes(data[:size])
        found = check_shard(task)
        assert codes(found) == {"shard.truncated"}, size
        assert list(found.bad) == [f"{row:04d}" for row in range(int((stops <= size).sum()), 4)], size
        assert codes(check_shard(ShardTask(task.folder, NAME, decodes=decodes))) <= {
            "shard.truncated",
            "member.undecodable",
        }
        assert "shard.truncated" in codes(check_shard(ShardTask(task.folder, NAME)))


def test_a_disk_that_cannot_be_read_is_reported_with_the_lost_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = own(tmp_path, pairs(4, {**GOOD, "bin": os.urandom(BUFFER)}))

    class Failing(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            if self.tell() > BUFFER:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(buffer)

        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > BUFFER:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    data = (tmp_path / NAME).read_bytes()
    monkeypatch.setattr(scan, "open_tar", lambda folder, name: Failing(data))
    found = check_shard(task)
    assert "Input/output error" in problem(found, "shard.checksum") and found.blake3 is None
    assert codes(found) == {"shard.checksum"} and list(found.bad) == ["0001", "0002", "0003"]


def test_a_wrong_index_and_wrong_keys_are_distinguished_from_a_wrong_tar(tmp_path: Path) -> None:
    task = replace(own(tmp_path, pairs(20)), compares=True)
    index = task.index.copy()
    index["crc32c"][7] ^= 1
    found = check_shard(replace(task, index=index))
    assert faults(found) == [("index.mismatch", "0007", None)] and found.faults[0].evidence["row"] == 7
    keys = [*task.keys[:5], "other", *task.keys[6:]]
    assert faults(check_shard(replace(task, keys=keys))) == [("manifest.invalid", "other", None)]
    merged = task.index[:-1].copy()
    merged["length"][-1] += task.index["length"][-1]
    fewer = replace(task, index=merged, samples=19, keys=task.keys[:-1], compares=False)
    assert codes(check_shard(fewer)) == {"shard.count"}
    shifted = task.index.copy()
    shifted["length"][3] -= 512
    shifted["offset"][4] -= 512
    shifted["length"][4] += 512
    assert codes(check_shard(replace(task, index=shifted, compares=False))) == {"index.mismatch"}


@pytest.mark.parametrize("at", [0, 50, 99, 100, 124, 130, 136, 148, 153, 156, 257, 345, 400, 511])
def test_every_field_of_a_header_counts(tmp_path: Path, at: int) -> None:
    data = bytearray(entries(pairs(30)) + END)
    data[len(entries(pairs(12))) + at] ^= 2
    found = check_shard(foreign(tmp_path, bytes(data), modality="image_text"))
    assert codes(found) == {"shard.checksum"} and len(found.keys) >= 29
