"""Tars made to do harm: nothing in them is executed, extracted or unpacked without limit, and each is named.

Tars that may not be read, or that have something else in their place, are reported as such.
"""

import contextlib
import ctypes
import gzip
import io
import os
import pickle
import resource
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.dataset.formats import checks
from tasks.dataset.formats.checks import CHECKS
from tasks.dataset.tar.format import END, header
from tasks.dataset.verify.examination import BadSample
from tasks.dataset.verify.findings import LEFT, LISTED
from tasks.dataset.verify.scan import ShardTask
from tasks.dataset.verify.shard import ShardResult, check_shard
from tasks.dataset.verify.verifier import verify
from tests.dataset import raw
from tests.dataset.raw.shards import entry, pax_record

MOST_S = 20.0
MOST_BYTES = 1 << 30
GOOD = {"jpg": raw.png(0, kind="JPEG"), "txt": b"a caption"}


class Trap:
    """It makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def sample(key: str, **members: bytes) -> bytes:
    return b"".join(
        entry(f"{key}.{suffix.replace('_', '.')}", content) for suffix, content in members.items()
    )


BEFORE, AFTER = (b"".join(sample(f"{n}", **GOOD) for n in numbers) for numbers in (range(20), range(20, 40)))
"""Twenty sound samples each."""


def most_memory() -> int:
    """The most bytes that this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def judged(folder: Path, data: bytes | Callable[[Any], object], decodes: bool = True) -> ShardResult:
    """Examine a tar within the limits of time and memory."""
    with (folder / "a.tar").open("wb") as file:
        _ = file.write(data) if isinstance(data, bytes) else data(file)
    before = most_memory()
    began = time.process_time()
    found = check_shard(ShardTask(str(folder), "a.tar", decodes=decodes))
    assert time.process_time() - began < MOST_S
    assert most_memory() - before < MOST_BYTES
    assert sorted(path.name for path in folder.iterdir()) == ["a.tar"], "nothing else was made"
    return found


def codes(found: ShardResult) -> set[str]:
    return {one.code for one in found.faults}


def places_of(found: ShardResult, code: str) -> list[tuple[str | None, str | None]]:
    return [(one.where.get("key"), one.where.get("member")) for one in found.faults if one.code == code]


def _object_array(trap: Trap) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([trap], dtype=object), allow_pickle=True)
    return file.getvalue()


def _short_object_array(trap: Trap) -> bytes:
    """Its pickle is as long as the array's pointers would be."""
    pickled = pickle.dumps(trap)
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|O", "fortran_order": False, "shape": (len(pickled) // 8 + 1,)}
    )
    return file.getvalue() + pickled.ljust(len(pickled) // 8 * 8 + 8, b"\0")


def _object_npz(trap: Trap) -> bytes:
    file = io.BytesIO()
    np.savez(file, sound=np.zeros(3), trap=np.array([trap], dtype=object))
    return file.getvalue()


def _torch_zip(trap: Trap) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"image_emb": trap}))
        archive.writestr("archive/version", "3")
    return file.getvalue()


PICKLES: dict[str, Callable[[Trap], bytes]] = {
    "npy": _object_array,
    "more.npy": _short_object_array,
    "npz": _object_npz,
    "pth": _torch_zip,
    "pt": pickle.dumps,
    "pth.gz": lambda trap: gzip.compress(_torch_zip(trap)),
    "pyd": pickle.dumps,
    "pkl": pickle.dumps,
    "more.pickle": pickle.dumps,
    "json": pickle.dumps,
    "gz": lambda trap: gzip.compress(pickle.dumps(trap)),
    "bin": pickle.dumps,
}


@pytest.mark.parametrize("suffix", PICKLES)
@pytest.mark.parametrize("decodes", [False, True])
def test_no_pickle_is_executed(tmp_path: Path, suffix: str, decodes: bool) -> None:
    trap = Trap(tmp_path / "sprung")
    found = judged(tmp_path, BEFORE + entry(f"20.{suffix}", PICKLES[suffix](trap)) + END, decodes)
    is_by_name = suffix.endswith(("pyd", "pkl", "pickle"))
    is_seen = is_by_name or (decodes and suffix not in ("gz", "bin"))
    assert places_of(found, "member.unsafe" if is_by_name else "member.undecodable") == (
        [("20", suffix)] if is_seen else []
    )
    assert found.undecoded == ({"bin"} if decodes and suffix == "bin" else set())


MOST_UNPACKED = 1 << 26
"""Less than the real limit, so that bombs are quickly made."""
BOMB_BYTES = MOST_UNPACKED + (1 << 25)


def _zip_bomb(name: str) -> bytes:
    file = io.BytesIO()
    archive = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open(name, "w", force_zip64=True) as inside:
        for _ in range(BOMB_BYTES >> 24):
            inside.write(bytes(1 << 24))
    return file.getvalue()


def _many_entries() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(5000):
            archive.writestr(f"{number}.npy", b"")
    return file.getvalue()


def _gzip_bomb() -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(1 << 24)) for _ in range(BOMB_BYTES >> 24)), packer.flush()])


def _claiming_npy() -> bytes:
    file = io.BytesIO()
    head = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 1 << 20)}
    np.lib.format.write_array_header_1_0(file, head)
    return file.getvalue() + bytes(64)


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a zip bomb as npz": ("npz", lambda: _zip_bomb("x.npy")),
    "a zip bomb in another entry": ("npz", lambda: _zip_bomb("x.bin")),
    "an npz of many entries": ("npz", _many_entries),
    "a zip bomb as pth": ("pth", lambda: _zip_bomb("archive/data.pkl")),
    "a gzip bomb": ("nii.gz", _gzip_bomb),
    "a gzip bomb as pth.gz": ("pth.gz", _gzip_bomb),
    "an image of 30,000 x 30,000": ("png", lambda: raw.giant_png(30_000, 30_000, bytes(1 << 20))),
    "an image of all pixels there can be": ("png", lambda: raw.giant_png(0x7FFFFFFF, 0x7FFFFFFF)),
    "an array that claims to be endless": ("npy", _claiming_npy),
    "nested JSON": ("json", lambda: b"[" * 10_000_000),
    "a number of many digits": ("cls", lambda: b"9" * 1_000_000),
    "an endless number in JSON": ("json", lambda: b"9" * 1_000_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_no_bomb_goes_off(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_UNPACKED", MOST_UNPACKED)
    suffix, make = BOMBS[name]
    found = judged(tmp_path, sample("a", **GOOD) + entry(f"b.{suffix}", make()) + END)
    assert places_of(found, "member.undecodable") == [("b", suffix)]


UNSAFE: dict[str, tuple[dict[str, Any], str]] = {
    "/etc/passwd.txt": ({}, "an absolute path"),
    "../../b.txt": ({}, "leaves its folder"),
    "a/../../b.txt": ({}, "leaves its folder"),
    "link.txt": ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "a symbolic link"),
    "hard.txt": ({"type": tarfile.LNKTYPE, "linkname": "../secret"}, "a hard link"),
    "character.txt": ({"type": tarfile.CHRTYPE}, "a device"),
    "block.txt": ({"type": tarfile.BLKTYPE}, "a device"),
    "pipe.txt": ({"type": tarfile.FIFOTYPE}, "a pipe"),
    "sparse.txt": ({"type": tarfile.GNUTYPE_SPARSE}, "a sparse file"),
    "volume.txt": ({"type": b"M"}, "of kind 'M'"),
    "unknown.txt": ({"type": b"Z"}, "of kind 'Z'"),
    "pipe": ({"type": tarfile.FIFOTYPE}, "a pipe"),
    "n" * 100_000 + ".txt": ({}, "a name of 100,004 bytes"),
}


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("decodes", [False, True])
def test_unsafe_entries_are_named(tmp_path: Path, name: str, decodes: bool) -> None:
    options, oddity = UNSAFE[name]
    found = judged(tmp_path, BEFORE + entry(name, **options) + AFTER + END, decodes)
    assert len(found.keys) == 41
    (fault,) = found.faults
    assert fault.code == "member.unsafe" and oddity in fault.evidence["problem"]
    assert sum(members is not None for members in found.keys.values()) == 40
    assert len(fault.where["key"]) < 500


def test_names_act_on_no_terminal(tmp_path: Path) -> None:
    data = b"".join(entry(f"{n}\x1b[2J\nx.txt") for n in range(20)) + END
    assert all(fault.where["key"].isprintable() for fault in judged(tmp_path, data).faults)


def _pax(records: bytes, size: int | None = None) -> bytes:
    digits = None if size is None else b"%011o\0" % size
    return entry("pax", records, size=digits, type=b"x")


LIES: dict[str, tuple[bytes, set[str]]] = {
    "a pax header of 1 GB": (_pax(pax_record("path", "b.txt"), 1 << 30), {"shard.truncated"}),
    "a pax header of 2 MB": (_pax(pax_record("comment", "x" * (2 << 20))), {"shard.checksum"}),
    "a torn pax header": (_pax(b"99 path=b.txt\n"), {"shard.checksum"}),
    "a pax header of another length than it claims": (_pax(b"13 mtime=17\n"), {"shard.checksum"}),
    "a pax record of no length": (_pax(b"0 path=b.txt\n"), {"shard.checksum"}),
    "a pax header of nonsense": (_pax(b"\xff" * 700), {"shard.checksum"}),
    "a size that is no number": (_pax(pax_record("size", "many")), {"shard.checksum"}),
    "a size of many digits": (_pax(pax_record("size", "9" * 5000)), {"shard.checksum"}),
    "a size beyond the file": (_pax(pax_record("size", "9" * 18)), {"shard.truncated"}),
    "a long name of 1 GB": (entry("long", b"x", size=b"%011o\0" % (1 << 30), type=b"L"), {"shard.truncated"}),
    "a negative size": (entry("b.txt", size=b"\xff" * 12), {"shard.checksum"}),
    "a huge size": (entry("b.txt", size=b"\x80" + b"\x7f" * 11), {"shard.truncated"}),
    "a size of 8 GB": (entry("b.txt", size=b"7" * 11 + b"\0"), {"shard.truncated"}),
    "a size with a sign": (entry("b.txt", size=b"-0000000512\0"), {"shard.checksum"}),
    "a size that leads back": (entry("b.txt", size=b"-0000001000\0"), {"shard.checksum"}),
    "a size with underscores": (entry("b.txt", size=b"0_0_0_0_512\0"), {"shard.checksum"}),
    "a sparse file's map without end": (entry("b.txt", type=b"S").ljust(1 << 20, b"\x01"), {"shard.checksum"}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("decodes", [False, True])
def test_lies_about_sizes_cost_nothing(tmp_path: Path, name: str, decodes: bool) -> None:
    lie, expected = LIES[name]
    found = judged(tmp_path, BEFORE + lie + AFTER + END, decodes)
    assert codes(found) - {"member.unsafe"} == expected
    if expected == {"shard.truncated"}:  # of which the lie itself may be one, torn
        assert len(found.keys) in (20, 21)
    else:
        assert len(found.keys) == 40 + ("sparse" in name)


MANY = 50_000


def _empty(file: Any) -> None:
    for number in range(MANY):
        file.write(header(f"{number:07d}.txt", 0))
    file.write(END)


def _of_one_key(file: Any) -> None:
    for number in range(MANY):
        file.write(header(f"a.{number}", 0))
    file.write(END)


def _long_name(file: Any) -> None:
    """It is really there, as a hole in the file."""
    file.write(sample("a", **GOOD) + entry("long", size=b"%011o\0" % (1 << 30), type=b"L"))
    file.seek(1 << 30, os.SEEK_CUR)
    file.write(sample("b", **GOOD) + END)


def _extended(file: Any) -> None:
    """Headers that describe the next one, and no member."""
    found = _pax(pax_record("comment", "x"))
    file.write(found * 100_000 + END)


def _broken(file: Any) -> None:
    for number in range(25_000):
        file.write(bytes(b"x" * 512) + header(f"{number}.txt", 0))
    file.write(END)


def test_very_many_empty_members(tmp_path: Path) -> None:
    found = judged(tmp_path, _empty, decodes=False)
    assert codes(found) == {"member.empty"} and len(found.faults) == LISTED
    assert found.faults[-1].evidence[LEFT] == MANY - LISTED
    assert len(found.keys) == len(found.bad) == MANY


def test_very_many_members_of_one_sample(tmp_path: Path) -> None:
    found = judged(tmp_path, _of_one_key, decodes=False)
    assert codes(found) == {"member.empty"} and len(found.keys) == 1


def test_a_name_of_a_gigabyte_is_not_held(tmp_path: Path) -> None:
    found = judged(tmp_path, _long_name)
    assert codes(found) == {"shard.checksum"} and len(found.keys) == 2


def test_headers_about_headers(tmp_path: Path) -> None:
    assert codes(judged(tmp_path, _extended)) == {"shard.checksum"}


def test_every_second_header_broken(tmp_path: Path) -> None:
    found = judged(tmp_path, _broken)
    assert len(found.keys) == found.faults[0].evidence["gaps"] == 25_000


STARTS = (
    *(b"\x93NUMPY\x01\0", b"PK\x03\x04", b"\x1f\x8b\x08\0", b"\x9e\xa8b2frame\0"),
    *(b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"II*\0", b"RIFF", b"\x89PNG\r\n\x1a\n"),
)


@pytest.mark.parametrize("suffix", CHECKS)
def test_no_decoder_is_brought_down(tmp_path: Path, suffix: str) -> None:
    """A decoder survives what another decoder reads, and noise."""
    bombs = [make() for name, (_, make) in BOMBS.items() if "zip" not in name]
    noise = [np.random.default_rng(seed).bytes(5000) for seed in range(5)]
    starts = [start + noise[0] for start in STARTS]
    for content in [*bombs, *GOOD.values(), b"{}", *noise, *starts]:
        found = judged(tmp_path, entry(f"a.{suffix}", content) + END)
        assert codes(found) <= {"member.undecodable"} and not found.undecoded


DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2
"""The capabilities by which root ignores the permissions of files."""


class _CapabilityHead(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


@contextlib.contextmanager
def without_privilege() -> Iterator[None]:
    """This thread, and those that it starts, obey the permissions of files even where root runs the tests."""
    libc, head = ctypes.CDLL(None, use_errno=True), _CapabilityHead(0x20080522, 0)
    held, fewer = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(ctypes.byref(head), held) == 0
    fewer[:] = held[:]
    fewer[0] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
    assert libc.capset(ctypes.byref(head), fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(ctypes.byref(head), held) == 0


@contextlib.contextmanager
def shut(path: Path, mode: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        with without_privilege():
            yield
    finally:
        path.chmod(before)


@pytest.mark.parametrize("level", ["quick", "default"])
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o311])
def test_a_folder_that_may_not_be_read_is_one_finding_about_rights(
    version: Path, mode: int, level: Any
) -> None:
    bad: list[BadSample] = []
    with shut(version / "train", mode):
        report = verify(version, level, on_bad=bad.append)
    (finding,) = report.findings
    assert finding.code == "shard.checksum" and finding.where == {"split": "train"}
    assert finding.evidence == {"problem": "the folder is unreadable: Permission denied"}
    assert "chmod" in finding.remedy and finding.command is None
    assert bad == []
    assert not {entry["code"] for entry in report.ruled_out} & {"shard.missing", "shard.extra"}


@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_folder_of_others_that_may_not_be_entered_is_one_finding(
    version: Path, tmp_path: Path, level: Any
) -> None:
    (tmp_path / "others").mkdir()
    for name in ("train", "val"):
        (version / name).rename(tmp_path / "others" / name)
    with shut(tmp_path / "others" / "train", 0o444):
        (finding,) = verify(tmp_path / "others", level).findings
    assert finding.where == {"split": "train"} and "chmod" in finding.remedy


@pytest.mark.parametrize("level", ["quick", "default", "full"])
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_tar_that_may_not_be_read_is_not_called_damaged(version: Path, is_ours: bool, level: Any) -> None:
    bad: list[BadSample] = []
    with shut(version / "train" / "000001.tar", 0):
        report = verify(version if is_ours else version / "train", level, on_bad=bad.append)
    (finding,) = report.findings
    assert finding.code == "shard.checksum" and str(finding.where["shard"]).endswith("000001.tar")
    assert finding.evidence == {"problem": "unreadable: Permission denied"}
    assert "chmod" in finding.remedy and finding.command is None
    assert bad == []


def test_a_table_that_may_not_be_read_is_not_to_be_made_again(version: Path) -> None:
    for name, code in (("samples/train.parquet", "manifest.invalid"), ("index/val.npy", "index.mismatch")):
        with shut(version / name, 0):
            (finding,) = verify(version).findings
        assert (finding.code, finding.where["file"]) == (code, name)
        assert finding.evidence["problem"] == "unreadable: Permission denied"
        assert "chmod" in finding.remedy and finding.command is None


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_stands_in_a_tars_place_is_named(version: Path, is_ours: bool) -> None:
    train = version / "train"
    for number in range(4):
        (train / f"{number:06d}.tar").unlink()
    (train / "000000.tar").mkdir()
    (train / "000001.tar").symlink_to("nowhere")
    (train / "000002.tar").symlink_to("000002.tar")
    os.mkfifo(train / "000003.tar")
    found = verify(version if is_ours else train, "quick").findings
    assert {one.code for one in found} == {"shard.missing"}
    assert [one.evidence["problem"] for one in found] == [
        "a folder stands in its place",
        "a link to nowhere, which leads nowhere, stands in its place",
        "a link to 000002.tar, which leads nowhere, stands in its place",
        "what stands in its place is no regular file",
    ]
