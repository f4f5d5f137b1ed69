"""One tar header of any format: ustar, GNU, pax, old V7; what cannot be followed is Broken.

Lenient where other programs differ from each other, strict where a wrong guess would lose the way. Formats:
POSIX.1-2001 pax and ustar, and GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

from tasks.dataset.tar.writer import BLOCK

REGULAR = ("0", "\0", "7")
KINDS = {"1": "a hard link", "2": "a symbolic link", "3": "a device", "4": "a device", "6": "a pipe"}
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
FOLDERS = "5D"
PAX, PAX_GLOBAL, LONG_NAME = "x", "g", "L"
EXTENSIONS = frozenset(PAX + PAX_GLOBAL + LONG_NAME + "KVX")
"""Entries that tell about others: also GNU's long link names and volume names, and Solaris's pax headers."""
SPARSE = "S"
LONGEST_NUMBER = 20
HALF = BLOCK // 2
POSITIVE = bytes(range(128))
"""Of signed bytes."""

Told = Mapping[bytes, bytes]
"""Pax records by key."""


class Broken(ValueError):
    """A block that is no header."""


class Head(NamedTuple):
    """`has_map` says that blocks with a GNU sparse file's map follow."""

    kind: str
    name: bytes
    size: int
    has_map: bool

    @property
    def oddity(self) -> str | None:
        """What else it is than a plain file."""
        if self.kind in REGULAR:
            return None
        return "a sparse file" if self.kind == SPARSE else KINDS.get(self.kind, f"of kind {self.kind!r}")

    @property
    def has_content(self) -> bool:
        return self.kind not in KINDS and self.kind != "5"

    @property
    def is_folder(self) -> bool:
        return self.kind in FOLDERS or (self.kind == "\0" and self.name.endswith(b"/"))


def parse_head(block: bytes) -> Head:
    """The header in a block that is not all zeros; Broken unless its checksum holds, over unsigned bytes or,
    as old programs had it, signed ones."""
    field = block[148:156]
    stored = _octal(field)
    total = byte_sum(block) - sum(field) + 8 * 32
    if stored != total:
        negative = len(block.translate(None, POSITIVE)) - len(field.translate(None, POSITIVE))
        if stored is None or stored != total - 256 * negative:
            raise Broken("no sound tar header")
    kind = chr(block[156])
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return Head(kind, name, _size(block[124:136]), kind == SPARSE and block[482] != 0)


def byte_sum(block: bytes) -> int:
    """The sum of a block's 512 bytes: Adler-32 holds it, less 1, for as many as stay below its modulus."""
    return (zlib.adler32(block[:HALF]) & 0xFFFF) + (zlib.adler32(block[HALF:]) & 0xFFFF) - 2


def _size(field: bytes) -> int:
    """Octal digits, or in base 256 what has more than these can say."""
    if not field[0] & 0x80:
        size = _octal(field)
        if size is None:
            raise Broken("a header with no sound size")
        return size
    if field[0] & 0x40:
        raise Broken("a header with no sound size")
    return int.from_bytes(field, "big") & ((1 << 95) - 1)


def _octal(field: bytes) -> int | None:
    digits = field.partition(b"\0")[0].strip() or b"0"
    return None if digits.strip(b"01234567") else int(digits, 8)


def pax_records(content: bytes) -> dict[bytes, bytes]:
    """Records `LENGTH KEY=VALUE\\n`, their lengths in decimal and of the whole record; Broken when torn."""
    records = {}
    at = 0
    while at < len(content) and content[at]:
        length = content[at : at + LONGEST_NUMBER].partition(b" ")[0]
        end = at + (int(length) if length.isdigit() else 0)
        key, mark, value = content[at + len(length) + 1 : end - 1].partition(b"=")
        if not mark or end > len(content) or content[end - 1] != 10:
            raise Broken("a torn pax header")
        records[key] = value
        at = end
    return records


def pax_size(told: Told, size: int) -> int:
    """The size that pax records tell, or `size`."""
    value = told.get(b"size", b"")
    if not value:
        return size
    if not value.isdigit() or len(value) > LONGEST_NUMBER:
        raise Broken("a pax header with no sound size")
    return int(value)


def is_sparse(told: Told) -> bool:
    return any(key.startswith(b"GNU.sparse") for key in told)


def compression_of(start: bytes) -> str | None:
    """The program by which a whole tar was compressed, told by its first bytes."""
    return next((name for magic, name in COMPRESSED.items() if start.startswith(magic)), None)
