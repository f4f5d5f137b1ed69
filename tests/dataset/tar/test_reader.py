"""What the tolerant reader makes of tars: those of every tool, and every kind of damage."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from tasks.dataset.tar.gunzip import unzipped
from tasks.dataset.tar.reader import (
    BUFFER,
    RECORD,
    Cut,
    Gap,
    Member,
    StoredSample,
    TarReader,
    group_samples,
)
from tests.dataset.raw.shards import END, entry, pax_record, tar_bytes

MEMBERS = [(f"{number:03d}.{suffix}", f"{number}{suffix}".encode()) for number in range(20) for suffix in ("json", "txt")]  # fmt: skip
SOUND = b"".join(entry(*member) for member in MEMBERS)
SPAN = 4 * 512
"""Bytes of a sample."""


def read(data: bytes, **options: Any) -> list[Member | Gap | Cut]:
    return list(TarReader(io.BytesIO(data), **options))  # type: ignore[arg-type]


def names(found: list[Member | Gap | Cut]) -> list[str]:
    return [one.name for one in found if isinstance(one, Member)]


def damage(found: list[Member | Gap | Cut]) -> list[str]:
    return [str(one) for one in found if not isinstance(one, Member)]


def grouped(data: bytes, **options: Any) -> list[StoredSample]:
    found = group_samples(TarReader(io.BytesIO(data)), **options)
    return [one for one in found if isinstance(one, StoredSample)]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("base", ["{}", "./{}", "a/b.c/{}", "é 図 {}", "n" * 90 + "/" + "k" * 60 + "{}"])
def test_every_format_gives_names_and_contents(form: int, base: str) -> None:
    folder = tarfile.TarInfo("folder")
    folder.type = tarfile.DIRTYPE
    members = [(base.format(name), content) for name, content in MEMBERS]
    beside = [("README", b"x"), ("._000.jpg", b"x"), ("__meta__.json__", b"x"), (folder, b"")]
    found = read(tar_bytes([*beside, *members], form), keeps=lambda member: True)
    assert [(one.name, one.content) for one in found if isinstance(one, Member)] == members
    assert not damage(found)
    assert (found[0].key, found[0].suffix) == (base.removeprefix("./").format("000"), "json")  # type: ignore[union-attr]


def test_v7_headers_with_checksums_of_signed_bytes_are_followed() -> None:
    block = bytearray(512)
    for at, field in {0: b"b\xe9.txt", 100: b"0000644\0", 124: b"%011o\0" % 1, 148: b" " * 8}.items():
        block[at : at + len(field)] = field
    block[148:156] = b"%06o\0 " % sum(byte - 256 * (byte > 127) for byte in block)
    (member,) = read(bytes(block) + b"x".ljust(512, b"\0") + END)
    assert isinstance(member, Member) and (member.name, member.oddity) == ("b\udce9.txt", None)


def test_global_records_and_names_of_sparse_files_count() -> None:
    """Shared by verify and by the source of tars, which read alike."""
    of_all = entry("pax", pax_record("size", "3") + pax_record("path", "all.txt"), type=b"g")
    sparse = pax_record("GNU.sparse.name", "real.txt") + pax_record("GNU.sparse.major", "1")
    of_one = entry("pax", sparse, type=b"x")
    data = of_all + entry("a.txt", b"abc") + of_one + entry("GNUSparseFile.0/b.txt", b"abc") + END
    first, second = read(data, keeps=lambda member: True)
    assert isinstance(first, Member) and (first.name, first.content) == ("all.txt", b"abc")
    assert isinstance(second, Member) and (second.name, second.oddity) == ("real.txt", "a sparse file")


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        (END, None),
        (END + bytes(RECORD - 512), None),
        (b"", "ends without end blocks"),
        (bytes(512), "has one end block instead of two"),
        (bytes(700), "has one end block instead of two"),
        (END + bytes(RECORD), "zeros after the end blocks that stand"),
        (END + b"x" * 512, "goes on after the end blocks"),
        (END + SOUND + END, "goes on after the end blocks"),
        (b"\x1f" * 100, "ends within a header"),
        (entry("z.txt", b"x" * 600)[:700], "ends within a member"),
        (entry("z.txt", b"", b"7" * 11 + b"\0"), "ends within a member"),
    ],
)
def test_how_a_tar_ends(tail: bytes, problem: str | None) -> None:
    found = read(SOUND + tail)
    assert names(found) == [name for name, _ in MEMBERS]
    assert [problem in one for one in damage(found)] == ([] if problem is None else [True])  # type: ignore[operator]


def hole(data: bytearray) -> None:
    data[SPAN * 5 : SPAN * 6] = bytes(SPAN)


def broken_header(data: bytearray) -> None:
    data[SPAN * 5 + 3] ^= 1


def torn_records(data: bytearray) -> None:
    data[SPAN * 5 : SPAN * 6] = entry("pax", b"99 path=b.txt\n", type=b"x") * 2


@pytest.mark.parametrize(
    ("change", "options", "lost"),
    [
        (broken_header, {}, ["005.json"]),
        (torn_records, {}, ["005.json", "005.txt"]),
        (hole, {"least": len(SOUND)}, ["005.json", "005.txt"]),
        (hole, {"past_zeros": True}, ["005.json", "005.txt"]),
        (hole, {}, [name for name, _ in MEMBERS[10:]]),
    ],
)
def test_behind_damage_reading_goes_on(
    change: Callable[[bytearray], None], options: dict[str, Any], lost: list[str]
) -> None:
    data = bytearray(SOUND + END)
    change(data)
    found = read(bytes(data), **options)
    assert names(found) == [name for name, _ in MEMBERS if name not in lost]
    assert damage(found)
    assert isinstance(
        next(one for one in found if not isinstance(one, Member)), Cut if len(lost) > 2 else Gap
    )


def test_a_cut_anywhere_is_reported_and_keeps_the_members_before_it() -> None:
    for size in range(0, 5 * SPAN, 97):
        found = read((SOUND + END)[:size])
        assert isinstance(found[-1], Cut) and found[-1].offset <= size
        assert names(found) == [name for name, _ in MEMBERS[: size // 1024]]


def test_members_larger_than_the_buffer() -> None:
    large = os.urandom(2 * BUFFER + 77)
    data = entry("a.bin", large) + SOUND + END
    assert read(data, keeps=lambda member: True)[0].content == large  # type: ignore[union-attr]
    assert names(read(data)) == names(read(data, seeks=True)) == ["a.bin", *(name for name, _ in MEMBERS)]
    cut = read(data[: BUFFER + 600], seeks=True)
    assert [str(one)[:20] for one in cut] == ["ends within a member"]


def test_adjacent_members_of_one_key_are_a_sample() -> None:
    again = entry("001.txt", b"again")
    data = (
        entry("001.json", b"{}")
        + again * 2
        + entry("002.txt", b"")
        + entry("002.md5", b"")
        + entry("3.md5", b"")
        + again
        + END
    )
    assert [[one.suffix for one in sample.members] for sample in grouped(data)] == [
        ["json", "txt", "txt"],
        ["txt", "md5"],
        ["txt"],
    ]
    assert [len(sample.members) for sample in grouped(data, splits_repeats=True)] == [2, 1, 2, 1]
    assert [len(sample.members) for sample in grouped(data, starts={2 * 1024})] == [2, 1, 2, 1]


def test_samples_beside_damage_are_torn() -> None:
    data = bytearray(SOUND)
    data[SPAN * 5 + 3] ^= 1
    torn = [sample.key for sample in grouped(bytes(data)) if sample.is_torn]
    assert torn == ["004", "005", "019"], "the last one, as no end blocks follow"
    starts = set(range(0, len(SOUND), SPAN))
    assert [one.key for one in grouped(bytes(data) + END, starts=starts) if one.is_torn] == ["005"]


@pytest.mark.parametrize("cut", [None, 10, 300])
def test_gzip_is_read_as_the_tar_within(cut: int | None) -> None:
    zipped = gzip.compress(SOUND + END, mtime=0)[:cut]
    with unzipped(io.BytesIO(zipped), "a.tar.gz") as file:
        found = list(TarReader(file))
    assert (len(found) == len(MEMBERS) and not damage(found)) is (cut is None)


def test_a_compressed_tar_with_another_name_is_recognised() -> None:
    (gap, cut) = read(b"\x1f\x8b\x08" + os.urandom(10_000))
    assert isinstance(gap, Gap) and gap.problem == "is compressed by gzip"
    assert isinstance(cut, Cut)
