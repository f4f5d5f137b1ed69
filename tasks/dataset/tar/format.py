"""The tar format: makes ustar headers, parses headers of any kind, and parses the samples of our own tars.

Parsing is lenient where tar programs differ, and strict where a wrong guess would lose the position of the
next header. Formats: POSIX.1-1988 ustar and POSIX.1-2001 pax
(https://pubs.opengroup.org/onlinepubs/9699919799/ utilities/pax.html, "ustar Interchange Format"), GNU tar's
manual, "Basic Tar Format", and old V7 headers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

BLOCK = 512
END = bytes(2 * BLOCK)
LARGEST = 8**11 - 1
"""The largest size in bytes that eleven octal digits can hold."""
REGULAR = ("0", "\0", "7")
ODDITIES = {"1": "a hard link", "2": "a symbolic link", "3": "a device", "4": "a device", "6": "a pipe"}
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
PAX, PAX_GLOBAL, LONG_NAME, SPARSE = "x", "g", "L", "S"
EXTENSIONS = frozenset(PAX + PAX_GLOBAL + LONG_NAME + "KVX")
"""Kinds of entries that describe the next one, among them GNU's long link and volume names, and Solaris's
pax."""

Buffer: TypeAlias = Any
"""bytes or a numpy array of uint8; mypy knows no common type of the two before Python 3.12."""
Members = Mapping[str, Buffer]
"""A sample's members by suffix."""
Records = Mapping[bytes, bytes]
"""Pax records by key."""


class Sample(NamedTuple):
    """A sample's key and the bytes of its members by suffix, such as `png`, `txt`, `json`."""

    key: str
    members: dict[str, bytes]


_LONGEST_NUMBER = 20
_POSITIVE = bytes(range(128))
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_AFTER_SIZE = b"0" * 11 + b"\0"
_TAIL = b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(64) + b"0000000\0" * 2 + bytes(155 + 12)
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + sum(b" " * 8) + sum(_TAIL)
_pack = struct.Struct("100s24s12s12s8s356s").pack
_unpack = struct.Struct("100s24x12s12x8sc100x6s82x155s12x").unpack


class Broken(ValueError):
    """A block is no tar header, or its size is invalid."""


class TarHeader(NamedTuple):
    """One entry: its name, the size of its content in bytes, and tar's letter for its kind.

    With `has_map`, blocks with the map of a GNU sparse file follow.
    """

    name: bytes
    size: int
    kind: str = "0"
    has_map: bool = False

    @property
    def text(self) -> str:
        """The name as text."""
        return self.name.decode("utf-8", "surrogateescape")

    @property
    def oddity(self) -> str | None:
        """What the entry is if it is not a plain file, such as `a symbolic link`; else None."""
        if self.kind in REGULAR:
            return None
        return "a sparse file" if self.kind == SPARSE else ODDITIES.get(self.kind, f"of kind {self.kind!r}")

    @property
    def has_content(self) -> bool:
        return self.kind not in ODDITIES and self.kind != "5"

    @property
    def is_folder(self) -> bool:
        return self.kind in "5D" or (self.kind == "\0" and self.name.endswith(b"/"))


def padding(size: int) -> int:
    """Return the number of zero bytes between a member of `size` bytes and the next header."""
    return -size % BLOCK


def span_bytes(sizes: list[int]) -> int:
    """Return the bytes in a tar of a sample whose members have these sizes."""
    return sum(BLOCK + size + padding(size) for size in sizes)


def header(name: str, size: int) -> bytes:
    """Return the 512-byte ustar header of a regular file with mode 0644, owner 0 and time 0.

    ValueError beyond ustar's limits. Nothing in it depends on time, host or user. Python's tarfile needs more
    time for a header than writing the rest of a small sample takes.
    """
    encoded = name.encode("ascii")
    if len(encoded) > 100 or size > LARGEST:
        raise ValueError(f"{name}: {size} bytes do not fit a ustar header")
    length = b"%011o\0" % size
    checksum = b"%06o\0 " % (_CONSTANT_SUM + sum(encoded + length))
    return _pack(encoded, _BEFORE_SIZE, length, _AFTER_SIZE, checksum, _TAIL)


def parse_header(block: bytes) -> TarHeader | None:
    """Parse a 512-byte header; None for a block of zeros, Broken for anything else.

    The checksum must be right, over unsigned bytes or, as in old programs, over signed ones.
    """
    if len(block) != BLOCK:
        raise Broken(f"{len(block)} bytes where a tar header of {BLOCK} belongs")
    name, size_field, sum_field, letter, magic, prefix = _unpack(block)
    stored = _octal(sum_field)
    # The lower half of Adler-32 is the sum of 256 bytes, plus 1, which its modulus does not reach.
    total = (zlib.adler32(block[:256]) & 0xFFFF) + (zlib.adler32(block[256:]) & 0xFFFF) - 2
    total += 8 * ord(" ") - sum(sum_field)
    if stored != total:
        if not stored and not any(block):
            return None
        negative = len(block.translate(None, _POSITIVE)) - len(sum_field.translate(None, _POSITIVE))
        if stored is None or stored != total - 256 * negative:
            raise Broken("no sound tar header")
    name = name.partition(b"\0")[0]
    if magic == b"ustar\0" and prefix[0]:
        name = prefix.partition(b"\0")[0] + b"/" + name
    kind = letter.decode("latin-1")
    return TarHeader(name, _size(size_field), kind, kind == SPARSE and block[482] != 0)


def _size(field: bytes) -> int:
    """Parse a size in octal digits, or in base 256 if it is too large for these."""
    if field[0] & 0x80:
        size = None if field[0] & 0x40 else int.from_bytes(field, "big") & ((1 << 95) - 1)
    else:
        size = _octal(field)
    if size is None:
        raise Broken("a header with no sound size")
    return size


def _octal(field: bytes) -> int | None:
    digits = field.partition(b"\0")[0].strip() or b"0"
    return None if digits.strip(b"01234567") else int(digits, 8)


def pax_records(content: bytes) -> dict[bytes, bytes]:
    """Parse records `LENGTH KEY=VALUE\\n`, where LENGTH is the decimal length of the record; Broken if
    torn."""
    records = {}
    at = 0
    while at < len(content) and content[at]:
        length = content[at : at + _LONGEST_NUMBER].partition(b" ")[0]
        end = at + (int(length) if length.isdigit() else 0)
        key, mark, value = content[at + len(length) + 1 : end - 1].partition(b"=")
        if not mark or not at < end <= len(content) or content[end - 1] != 10:
            raise Broken("a torn pax header")
        records[key] = value
        at = end
    return records


def pax_size(records: Records, size: int) -> int:
    """Return the size in the pax records, or `size` if they have none."""
    value = records.get(b"size", b"")
    if not value:
        return size
    if not value.isdigit() or len(value) > _LONGEST_NUMBER:
        raise Broken("a pax header with no sound size")
    return int(value)


def is_sparse(records: Records) -> bool:
    return any(key.startswith(b"GNU.sparse") for key in records)


LFS = b"version https://git-lfs.github.com/spec/"
"""The start of the pointer that Git LFS leaves in place of a large file that has not been fetched."""
LFS_POINTER = "a Git LFS pointer and not the file itself (run git lfs pull where it was cloned)"


def compression_of(start: bytes) -> str | None:
    """Return the program that compressed a tar, recognised by its first bytes, or None."""
    return next((name for magic, name in COMPRESSED.items() if start.startswith(magic)), None)


def split_name(name: str) -> tuple[str, str]:
    """Split a name by webdataset's rule into key and lower-case suffix: `a/b.Seg.png` -> (`a/b`,
    `seg.png`)."""
    folder, slash, last = name.removeprefix("./").rpartition("/")
    stem, _, suffix = last.partition(".")
    return folder + slash + stem, suffix.lower()


def parse_sample(span: bytes) -> Sample:
    """Parse the sample in the bytes of its span from one of our own tars; ValueError if it is none.

    This is for readers that seek by the index. They compare the span's CRC32C first, so parsing needs no
    checks of its own. Names are only used as keys of a dictionary, never as paths.
    """
    key, members, offset = "", {}, 0
    while offset < len(span):
        name = span[offset : offset + 100].partition(b"\0")[0].decode()
        key, _, suffix = name.partition(".")
        size = int(span[offset + 124 : offset + 135], 8)
        start = offset + BLOCK
        members[suffix] = span[start : start + size]
        offset = start + size + -size % BLOCK
    if offset != len(span):
        raise ValueError(f"a span of {len(span)} bytes ends within a member")
    return Sample(key, members)
