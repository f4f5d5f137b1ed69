"""Tars made by others, read forward once: ustar, pax, GNU and old V7 headers; nothing is extracted.

Python's tarfile takes a damaged header, or the lack of end blocks, for the end of the archive: a torn tar
then looks like a shorter whole one. It also reads extended headers of any claimed size into memory, and takes
three times as long. Here whatever cannot be followed is `Damage`, and all that is held in memory has a limit.
Formats: POSIX.1-2001 pax and ustar, and GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from tasks.dataset.tar import BLOCK, padding

CHUNK = 1 << 20
ZEROS = bytes(BLOCK)
LONGEST_EXTENSION = 1 << 20
"""Bytes of the pax headers and GNU long names before one member, together."""
LARGEST = 1 << 60
REGULAR = ("0", "\0", "7")
FOLDER = "5"
MAGIC, MAGIC_AT = b"ustar", 257
PAX, PAX_GLOBAL, LONG_NAME, LONG_LINK, VOLUME_NAME = "x", "g", "L", "K", "V"
UNFOLLOWED = {"S": "a sparse file", "M": "a part of another volume"}
KINDS = {"1": "a hard link", "2": "a symbolic link", "3": "a device", "4": "a device", "6": "a pipe"}
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Damage(Exception):
    """The tar cannot be followed any further."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(f"{problem} at byte {offset:,}")


@dataclass(frozen=True, slots=True)
class Member:
    """One entry: `size` bytes of content from `offset`; `kind` says what else it is than a plain file."""

    name: str
    size: int
    offset: int
    kind: str | None


class TarReader:
    """Iterates over the members but folders; `content` reads the one just yielded. Damage, and OSError.

    Content that is not asked for is read over, or with `seeks` jumped over.
    """

    def __init__(self, file: BinaryIO, seeks: bool = False) -> None:
        self._file = file
        self._seeks = seeks
        self._offset = 0
        self._left = 0
        self._extended = 0
        self._beyond = b""

    def __iter__(self) -> Iterator[Member]:
        extension: dict[str, str] = {}
        while True:
            self._skip(self._left)
            start = self._offset
            block = self._header()
            if block == ZEROS:
                return self._end()
            kind, size = _parse(block, start)
            if kind in (PAX, PAX_GLOBAL, LONG_NAME, LONG_LINK, VOLUME_NAME):
                extension |= self._extension(kind, size, start)
                continue
            member = self._member(block, kind, size, start, extension)
            extension, self._extended = {}, 0
            if member is not None:
                yield member

    def content(self, member: Member) -> bytes:
        """The content of the member just yielded; the caller has looked at its size."""
        parts = []
        left = member.size
        while left:
            parts.append(self._read(min(left, CHUNK)))
            left -= len(parts[-1])
        self._left -= member.size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def names_behind(self) -> Iterator[str]:
        """After Damage: the names in whatever still looks like the header of a plain file.

        Good enough to count what is lost, and for nothing else: content may look like a header, the end of a
        long name is elsewhere, and headers of old V7 tars look like nothing. OSError.
        """
        chunk = self._beyond or self._file.read(CHUNK)
        while chunk:
            at = chunk.find(MAGIC)
            while at >= 0:
                block = chunk[at - MAGIC_AT : at - MAGIC_AT + BLOCK]
                if at % BLOCK == MAGIC_AT and len(block) == BLOCK and _is_header(block):
                    yield _name(block)
                at = chunk.find(MAGIC, at + 1)
            chunk = self._file.read(CHUNK)

    def _member(
        self, block: bytes, kind: str, size: int, start: int, extension: dict[str, str]
    ) -> Member | None:
        if kind in UNFOLLOWED:
            raise Damage(f"{UNFOLLOWED[kind]}, which is not read", start)
        name = extension.get("path") or _name(block)
        if "size" in extension:
            size = _decimal(extension["size"], start)
        is_folder = kind == FOLDER or (kind == "\0" and name.endswith("/"))
        has_content = kind not in KINDS and not is_folder
        self._left = size + padding(size) if has_content else 0
        if is_folder:
            return None
        oddity = None if kind in REGULAR else KINDS.get(kind, f"of kind {kind!r}")
        if any(key.startswith("GNU.sparse") for key in extension):
            oddity = "a sparse file"
        return Member(name, size if has_content else 0, self._offset, oddity)

    def _extension(self, kind: str, size: int, start: int) -> dict[str, str]:
        """What an extended header says of the next member."""
        self._extended += size
        if self._extended > LONGEST_EXTENSION:
            raise Damage(f"extended headers of {self._extended:,} bytes", start)
        content = self._read(size)
        self._skip(padding(size))
        if kind == LONG_NAME:
            return {"path": _text(content.partition(b"\0")[0])}
        return _pax(content, start) if kind == PAX else {}

    def _end(self) -> None:
        """After the first zero block: nothing but zeros."""
        start = self._offset
        while block := self._file.read(CHUNK):
            if any(block):
                self._beyond = block
                raise Damage("goes on after its end", start)
            self._offset += len(block)

    def _header(self) -> bytes:
        block = self._file.read(BLOCK)
        self._offset += len(block)
        if len(block) < BLOCK:
            between = "ends without end blocks" if self._offset else "holds nothing"
            raise Damage("ends within a header" if block else between, self._offset)
        return block

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._offset += len(data)
        if len(data) < size:
            raise Damage("ends within a member", self._offset)
        return data

    def _skip(self, size: int) -> None:
        self._left = 0
        if self._seeks and size > CHUNK:
            self._file.seek(size - 1, 1)
            self._offset += size - 1
            size = 1  # read, so that an end before it shows
        while size:
            size -= len(self._read(min(size, CHUNK)))


def _parse(block: bytes, start: int) -> tuple[str, int]:
    """Kind and size; Damage unless the checksum holds, over unsigned or (old tars) signed bytes."""
    stored = _octal(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * 32
    if stored != total and stored != total - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        formats = [name for magic, name in COMPRESSED.items() if block.startswith(magic) and not start]
        raise Damage(f"compressed by {formats[0]}: unpack it" if formats else "no sound tar header", start)
    size = int.from_bytes(block[125:136], "big") if block[124] == 0x80 else _octal(block[124:136])
    if size is None or size > LARGEST:
        raise Damage("a header with no sound size", start)
    return chr(block[156]), size


def _is_header(block: bytes) -> bool:
    try:
        return _parse(block, 0)[0] in REGULAR
    except Damage:
        return False


def _octal(field: bytes) -> int | None:
    digits = field.partition(b"\0")[0].strip() or b"0"
    return int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else None


def _decimal(text: str, start: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 18):
        raise Damage("a header with no sound size", start)
    return int(text)


def _name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _pax(content: bytes, start: int) -> dict[str, str]:
    """Records `LENGTH KEY=VALUE\\n`, their lengths in decimal and of the whole record."""
    records = {}
    at = 0
    while at < len(content) and content[at]:
        length = content[at : at + 20].partition(b" ")[0]
        end = at + (int(length) if length.isdigit() else 0)
        key, mark, value = content[at + len(length) + 1 : end - 1].partition(b"=")
        if not mark or end > len(content) or content[end - 1] != 10:
            raise Damage("a torn pax header", start)
        records[_text(key)] = _text(value)
        at = end
    return records
