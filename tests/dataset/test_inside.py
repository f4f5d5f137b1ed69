"""The look into one shard: what is sound has no faults whoever made it, and every damage is named."""

import errno
import io
import os
import random
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from tasks.core.files import blake3_file
from tasks.dataset.index import INDEX
from tasks.dataset.tar.writer import END, ShardWriter
from tasks.dataset.verify import inside as inside_module
from tasks.dataset.verify import structure
from tasks.dataset.verify.inside import Inside, Kind, Task, inspect
from tasks.dataset.verify.judging import MOST_KINDS
from tasks.dataset.verify.reader import BUFFER
from tasks.dataset.verify.tables import Shard
from tests.dataset import raw
from tests.dataset.raw import shards

NAME = "train/000000.tar"
GOOD = {"png": raw.png(0), "txt": b"a caption", "json": b"{}"}
Samples = list[tuple[str, dict[str, bytes]]]


def own(folder: Path, samples: Samples, **task: Any) -> Task:
    """A shard as the build writes it, and its rows of the tables."""
    path = folder / NAME
    path.parent.mkdir(exist_ok=True)
    with ShardWriter(path) as writer:
        spans = [writer.add(key, members) for key, members in samples]
        blake3 = writer.finish()
    rows = [(0, span.offset, span.length, span.crc32c) for span in spans]
    shard = Shard(NAME, "train", blake3, writer.size_bytes, len(samples))
    told = {"expected": shard, "index": np.array(rows, INDEX), "keys": [key for key, _ in samples]}
    return Task(str(folder), NAME, **{**told, "is_confirmed": True, "modality": "image_text", **task})


def foreign(folder: Path, data: bytes, **task: Any) -> Task:
    (folder / "a.tar").write_bytes(data)
    return Task(str(folder), "a.tar", **task)


def pairs(count: int, members: dict[str, bytes] = GOOD) -> Samples:
    return [(f"{number:04d}", members) for number in range(count)]


def entries(samples: Samples) -> bytes:
    """The members of a foreign tar, without its end."""
    return b"".join(
        shards.entry(f"{key}.{suffix}", content)
        for key, members in samples
        for suffix, content in members.items()
    )


def codes(found: Inside) -> set[str]:
    return {one.code for one in [*found.findings, *found.faults]}


def faults(found: Inside) -> list[tuple[str, str | None, str | None]]:
    return [(one.code, one.key, one.member) for one in found.faults]


def problem(found: Inside, code: str) -> str:
    (finding,) = [one for one in found.findings if one.code == code]
    return str(finding.evidence["problem"])


def hashes(keys: list[str]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(key.encode()) for key in keys]


@pytest.mark.parametrize("decodes", [False, True])
def test_a_sound_shard_has_no_faults(tmp_path: Path, decodes: bool) -> None:
    task = own(tmp_path, pairs(50), decodes=decodes)
    found = inspect(task)
    assert not found.findings and not found.faults and not found.kinds and not found.undecoded
    assert found.blake3 == blake3_file(tmp_path / NAME) and found.lost == range(50, 50)
    assert found.size_bytes == (tmp_path / NAME).stat().st_size
    assert found.keys.tolist() == hashes([key for key, _ in pairs(50)])
    nobody_s = inspect(Task(task.folder, NAME, decodes=decodes))
    assert nobody_s.kinds == {("json", "png", "txt"): Kind(50, tuple(f"{n:04d}" for n in range(50)))}
    assert nobody_s == replace(found, kinds=nobody_s.kinds, keys=nobody_s.keys, lost=range(0))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    "base", ["{}", "./{}", "folder/{}", "v1.2/a.b/{}", "é {} 図", "n" * 90 + "/" + "k" * 90 + "{}"]
)
def test_tars_of_every_format_are_sound(tmp_path: Path, form: int, base: str) -> None:
    if form == tarfile.USTAR_FORMAT and len(base) > 150:
        base = base[45:]
    folder = tarfile.TarInfo("folder")
    folder.type = tarfile.DIRTYPE
    beside = [("README", b"x"), ("._0001.jpg", b"x"), ("0001.idx", b"x"), ("__meta__.json__", b"x")]
    named = [
        (f"{base.format(f'{n:04d}')}.{suffix}", content)
        for n in range(30)
        for suffix, content in GOOD.items()
    ]
    keys = [base.removeprefix("./").format(f"{n:04d}") for n in range(30)]
    for among in ([(folder, b""), *beside], [], *([one] for one in beside)):
        data = shards.tar_bytes([*named[:45], *among, *named[45:]], form)
        for decodes in (False, True):
            found = inspect(foreign(tmp_path, data, decodes=decodes))
            assert not found.findings and not found.faults
            assert [(suffixes, kind.count) for suffixes, kind in found.kinds.items()] == [
                (("json", "png", "txt"), 30)
            ]
            assert found.keys.tolist() == hashes(keys)


def test_upper_case_suffixes_are_those_that_loaders_see(tmp_path: Path) -> None:
    data = entries(pairs(20, {"JPG": raw.png(1, kind="JPEG"), "Txt": b"x"})) + END
    assert set(inspect(foreign(tmp_path, data, decodes=True)).kinds) == {("jpg", "txt")}


def test_old_headers_are_followed(tmp_path: Path) -> None:
    """V7: no magic, a NUL for the kind of a plain file; checksums of signed bytes."""

    def old(name: bytes, content: bytes) -> bytes:
        block = bytearray(512)
        fields = {0: name, 100: b"0000644\0", 124: b"%011o\0" % len(content), 148: b" " * 8}
        for at, field in fields.items():
            block[at : at + len(field)] = field
        signed = sum(byte - 256 * (byte > 127) for byte in block)
        block[148:156] = b"%06o\0 " % signed
        return bytes(block) + content + bytes(-len(content) % 512)

    names = ["a.txt", "b\xe9.txt", "c.txt"]
    found = inspect(foreign(tmp_path, b"".join(old(name.encode("latin-1"), b"x") for name in names) + END))
    assert not found.findings and found.kinds[("txt",)].keys == ("a", "b\\udce9", "c")


def test_a_member_larger_than_the_buffer(tmp_path: Path) -> None:
    samples = [("a", GOOD), ("b", {**GOOD, "bin": os.urandom(2 * BUFFER + 77)}), *pairs(20)]
    for decodes in (False, True):
        found = inspect(own(tmp_path, samples, decodes=decodes))
        assert not found.findings and not found.faults and len(found.keys) == 22
    os.truncate(tmp_path / NAME, 2 * BUFFER)
    found = inspect(own_again(tmp_path, samples))
    assert codes(found) == {"shard.truncated"} and "ends within a member" in problem(found, "shard.truncated")


def own_again(folder: Path, samples: Samples, **task: Any) -> Task:
    """The tables of a shard that has been damaged since."""
    damaged = (folder / NAME).read_bytes()
    made = own(folder, samples, **task)
    (folder / NAME).write_bytes(damaged)
    return made


def test_what_a_sample_lacks_or_has_too_much_of(tmp_path: Path) -> None:
    samples = pairs(20)
    samples[3] = ("0003", {"png": GOOD["png"]})
    samples[5] = ("0005", {**GOOD, "txt": b""})
    samples[7] = ("0007", {**GOOD, "pyd": b"x", "extra.PKL": b"x"})
    samples[9] = ("0007", GOOD)
    samples[11] = ("../0011", GOOD)
    found = inspect(own(tmp_path, samples))
    assert not found.findings
    assert faults(found) == [
        ("sample.missing_member", "0003", "txt"),
        ("member.empty", "0005", "txt"),
        ("member.unsafe", "0007", "extra.pkl"),
        ("member.unsafe", "0007", "pyd"),
        ("sample.duplicate_key", "0007", None),
        *(("member.unsafe", "../0011", suffix) for suffix in ("json", "png", "txt")),
    ]
    assert [one.row for one in found.faults] == [3, 5, 7, 7, 9, 11, 11, 11]
    assert found.keys.tolist() == hashes(list(dict.fromkeys(key for key, _ in samples)))


def test_two_samples_of_a_key_side_by_side_and_a_member_twice(tmp_path: Path) -> None:
    found = inspect(own(tmp_path, [("a", GOOD), ("b", GOOD), ("b", GOOD), ("c", GOOD)]))
    assert not found.findings and faults(found) == [("sample.duplicate_key", "b", None)]
    twice = entries([("a", GOOD)]) + shards.entry("a.txt", b"again") + entries([("b", GOOD)]) + END
    assert faults(inspect(foreign(tmp_path, twice))) == [("sample.duplicate_key", "a", "txt")]


def test_members_apart_are_judged_together(tmp_path: Path) -> None:
    halves = [(key, {suffix: GOOD[suffix]}) for suffix in ("png", "txt") for key in "abc"]
    found = inspect(foreign(tmp_path, entries(halves) + END, modality="image_text"))
    assert faults(found) == [("sample.split_members", key, None) for key in "abc"]
    found = inspect(foreign(tmp_path, entries(halves) + END))
    assert found.kinds == {("png", "txt"): Kind(3, ("a", "b", "c"))} and len(found.keys) == 3


@pytest.mark.parametrize("member", [0, 1, 2])
def test_behind_a_broken_header_samples_are_still_judged(tmp_path: Path, member: int) -> None:
    samples = pairs(40)
    samples[30] = ("0002", GOOD)
    data = bytearray(entries(samples) + END)
    start = len(entries(samples[:10])) + len(entries([("a", dict(list(GOOD.items())[:member]))]))
    data[start + 3] ^= 1
    for modality in ("image_text", None):
        found = inspect(foreign(tmp_path, bytes(data), modality=modality))
        assert problem(found, "shard.checksum") == f"no sound tar header at byte {start:,}"
        assert codes(found) == {"shard.checksum", "sample.duplicate_key"} and len(found.keys) == 39
    assert sum(kind.count for kind in found.kinds.values()) == (38 if member == 1 else 37)


def test_samples_are_named_by_their_keys_where_places_have_shifted(tmp_path: Path) -> None:
    samples = pairs(20)
    task = own(tmp_path, samples)
    samples[12] = ("0012", {"txt": b"x"})
    own(tmp_path, samples[:3] + samples[4:])
    found = inspect(task)
    assert [one for one in faults(found) if one[0] != "member.checksum"] == [
        ("sample.missing_member", "0012", "jpg|png|webp")
    ]
    assert {one.row for one in found.faults if one.code == "sample.missing_member"} == {12}


def test_empty_members_among_many(tmp_path: Path) -> None:
    samples = pairs(100)
    samples[50] = ("0050", {**GOOD, "TXT2": b""})
    samples[70] = ("0070", {"json": b"", "png": GOOD["png"], "txt": b""})
    found = inspect(foreign(tmp_path, entries(samples) + END))
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
    found = inspect(task)
    assert [(one.key, one.row) for one in found.faults if one.code == "member.checksum"] == [
        (f"{row:04d}", row)
        for row in (4, 9, 20, 30, 31, 32, 33)
        if row < 30 or starts[row] < starts[30] + 4096
    ]
    assert codes(found) == {"shard.checksum", "member.checksum"}
    nameless = {one.row: one.key for one in inspect(replace(task, keys=None)).faults}
    assert (nameless[4], nameless[9], nameless[30]) == ("0004", "0009", None)


@pytest.mark.parametrize("decodes", [False, True])
def test_a_cut_anywhere_is_seen_and_tells_what_is_lost(tmp_path: Path, decodes: bool) -> None:
    samples = pairs(4, {"png": b"x" * 600, "txt": b"a caption"})
    task = replace(own(tmp_path, samples), decodes=False)
    data = (tmp_path / NAME).read_bytes()
    stops = task.index["offset"] + task.index["length"]
    for size in range(0, len(data), 100 if decodes else 31):
        (tmp_path / NAME).write_bytes(data[:size])
        found = inspect(task)
        assert codes(found) == {"shard.truncated"}, size
        assert found.lost == range(int((stops <= size).sum()), 4), size
        assert codes(inspect(Task(task.folder, NAME, decodes=decodes))) <= {
            "shard.truncated",
            "member.undecodable",
        }
        assert "shard.truncated" in codes(inspect(Task(task.folder, NAME)))


def test_a_tail_of_zeros_is_a_cut(tmp_path: Path) -> None:
    samples = pairs(200)
    task = own(tmp_path, samples)
    data = (tmp_path / NAME).read_bytes()
    start = int(task.index["offset"][150])
    (tmp_path / NAME).write_bytes(data[:start] + bytes(len(data) - start))
    found = inspect(task)
    assert codes(found) == {"shard.truncated"} and found.lost == range(150, 200)
    assert "shard.truncated" in codes(inspect(Task(task.folder, NAME)))


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (END, None),
        (END + bytes(10_240 - 512), None),
        (b"", "ends without end blocks"),
        (bytes(512), "has one end block instead of two"),
        (END + bytes(10_240), "zeros after the end blocks"),
        (END + b"x" * 512, "goes on after the end blocks"),
        (END + entries([("a", GOOD)]) + END, "goes on after the end blocks"),
        (b"\0" * 700, "has one end block instead of two"),
        (b"\x1f" * 100, "ends within a header"),
    ],
)  # fmt: skip
def test_how_a_foreign_tar_ends(tmp_path: Path, tail: bytes, expected: str | None) -> None:
    found = inspect(foreign(tmp_path, entries(pairs(20)) + tail))
    assert codes(found) == (set() if expected is None else {"shard.truncated"})
    assert expected is None or expected in problem(found, "shard.truncated")
    assert len(found.keys) == 20


def test_a_compressed_tar_says_so(tmp_path: Path) -> None:
    found = inspect(foreign(tmp_path, b"\x1f\x8b\x08" + os.urandom(100_000)))
    assert "compressed by gzip" in problem(found, "shard.checksum")


def test_an_unreadable_disk_is_told_with_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = own(tmp_path, pairs(4, {**GOOD, "bin": os.urandom(BUFFER)}))

    class Failing(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            if self.tell() > 2 * BUFFER:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(buffer)

        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 2 * BUFFER:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    data = (tmp_path / NAME).read_bytes()
    monkeypatch.setattr(inside_module, "opened", lambda folder, name: Failing(data))
    found = inspect(task)
    assert "Input/output error" in problem(found, "shard.checksum") and found.blake3 is None
    assert codes(found) == {"shard.checksum"} and found.lost == range(1, 4)


def test_a_wrong_index_and_wrong_keys_are_told_apart_from_a_wrong_tar(tmp_path: Path) -> None:
    task = own(tmp_path, pairs(20))
    index = task.index.copy()
    index["crc32c"][7] ^= 1
    found = inspect(replace(task, index=index, is_confirmed=False))
    assert faults(found) == [("index.mismatch", "0007", None)] and found.faults[0].row == 7
    keys = [*task.keys[:5], "other", *task.keys[6:]]
    assert faults(inspect(replace(task, keys=keys))) == [("manifest.invalid", "other", None)]
    merged = task.index[:-1].copy()
    merged["length"][-1] += task.index["length"][-1]
    fewer = replace(task.expected, samples=19)
    assert codes(inspect(replace(task, index=merged, expected=fewer, keys=task.keys[:-1]))) == {"shard.count"}
    shifted = task.index.copy()
    shifted["length"][3] -= 512
    shifted["offset"][4] -= 512
    shifted["length"][4] += 512
    assert codes(inspect(replace(task, index=shifted))) == {"index.mismatch"}


def test_many_kinds_are_told_by_what_most_samples_have(tmp_path: Path) -> None:
    samples = [(f"{n}", {"txt": b"x", f"{n}": b"x"}) for n in range(MOST_KINDS + 1)]
    found = inspect(foreign(tmp_path, entries([*samples, *pairs(10, {"png": b"x"})]) + END))
    assert {suffixes: kind.count for suffixes, kind in found.kinds.items()} == {
        ("txt",): MOST_KINDS + 1,
        (): 10,
    }


def _flip(data: bytearray, random_: random.Random) -> None:
    data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _cut(data: bytearray, random_: random.Random) -> None:
    del data[random_.randrange(len(data)) :]


def _zeros(data: bytearray, random_: random.Random) -> None:
    start = random_.randrange(len(data))
    stop = min(start + random_.choice([100, 512, 4096, 20_000]), len(data))
    data[start:stop] = bytes(stop - start)


def _shifted(data: bytearray, random_: random.Random) -> None:
    start = random_.randrange(len(data))
    data[start:start] = random_.randbytes(random_.choice([1, 512, 1000]))


def _repeated(data: bytearray, random_: random.Random) -> None:
    start, stop = sorted(random_.randrange(len(data) // 512) * 512 for _ in range(2))
    data[stop:stop] = data[start:stop]


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [_flip, _cut, _zeros, _shifted, _repeated]


def dated(samples: Samples) -> bytes:
    """A tar whose members have times in fractions of a second, which pax records tell."""
    members = [
        (tarfile.TarInfo(f"{key}.{suffix}"), data) for key, one in samples for suffix, data in one.items()
    ]
    for number, (info, _) in enumerate(members):
        info.mtime = 1_700_000_000 + number / 7
    return shards.tar_bytes(members)


@pytest.mark.parametrize("decodes", [False, True])
def test_records_of_times_change_nothing(tmp_path: Path, decodes: bool) -> None:
    samples = pairs(60)
    samples[40] = ("0040", {**GOOD, "png": GOOD["png"][:-30], "txt": b""})
    found = inspect(foreign(tmp_path, dated(samples), decodes=decodes))
    assert not found.findings and len(found.keys) == 60
    torn = [("member.undecodable", "0040", "png")] if decodes else []
    assert sorted(faults(found)) == [("member.empty", "0040", "txt"), *torn]


@pytest.mark.parametrize("make", [None, dated])
@pytest.mark.parametrize("seed", range(40))
def test_headers_judged_together_and_one_by_one_are_judged_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, make: Callable[[Samples], bytes] | None
) -> None:
    random_ = random.Random(seed)
    task = own(tmp_path, pairs(60))
    if make is not None:
        (tmp_path / NAME).write_bytes(make(pairs(60)))
    data = bytearray((tmp_path / NAME).read_bytes())
    for damage in random_.choices(DAMAGES, k=random_.randint(1, 3)):
        if data:
            damage(data, random_)
    (tmp_path / NAME).write_bytes(data)
    nobody_s = Task(task.folder, NAME)
    some = [
        task,
        replace(task, is_confirmed=False),
        replace(task, index=None),
        nobody_s,
        replace(nobody_s, decodes=True),
    ]
    together = [inspect(one) for one in some]
    monkeypatch.setattr(structure, "WORTH_IT", 1 << 60)
    for one, found in zip(some, together, strict=True):
        alone = inspect(one)
        assert found.keys.tolist() == alone.keys.tolist()
        assert replace(found, keys=alone.keys) == alone
        if one.expected is not None and data:
            assert {"shard.checksum", "shard.truncated"} & codes(found)


@pytest.mark.parametrize("at", [0, 50, 99, 100, 124, 130, 136, 148, 153, 156, 257, 345, 400, 511])
def test_every_field_of_a_header_counts(tmp_path: Path, at: int) -> None:
    data = bytearray(entries(pairs(30)) + END)
    data[len(entries(pairs(12))) + at] ^= 2
    found = inspect(foreign(tmp_path, bytes(data), modality="image_text"))
    assert codes(found) == {"shard.checksum"} and len(found.keys) >= 29
