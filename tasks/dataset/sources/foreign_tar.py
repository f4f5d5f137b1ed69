"""Tars made by others, read forward once: ustar, pax, GNU and old V7 headers; nothing is extracted.

Python's tarfile takes a damaged header, or the lack of end blocks, for the end of the archive: a torn tar
then looks like a shorter whole one. It also reads extended headers of any claimed size into memory, and takes
three times as long. Here whatever cannot be followed is `Damage`, and all that is held in memory has a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from tasks.core.files import CHUNK
from tasks.dataset.tar.format import (
    BLOCK,
    EXTENSIONS,
    LONG_NAME,
    PAX,
    REGULAR,
    Broken,
    Header,
    compression_of,
    is_sparse,
    padding,
    parse_header,
    pax_records,
    pax_size,
)

LONGEST_EXTENSION = 1 << 20
"""Bytes of the pax headers and GNU long names before one member, together."""
LARGEST = 1 << 60
MAGIC, MAGIC_AT = b"ustar", 257
UNFOLLOWED = {"S": "a sparse file", "M": "a part of another volume"}


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
        extension: dict[bytes, bytes] = {}
        while True:
            self._skip(self._left)
            start = self._offset
            block = self._header()
            try:
                head = parse_header(block)
                if head is None:
                    return self._end()
                if head.kind in EXTENSIONS:
                    extension |= self._extension(head, start)
                    continue
                member = self._member(head, start, extension)
            except Broken as error:
                program = None if start else compression_of(block)
                problem = f"compressed by {program}: unpack it" if program else str(error)
                raise Damage(problem, start) from None
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
                if at % BLOCK == MAGIC_AT and len(block) == BLOCK:
                    yield from _name_of_regular(block)
                at = chunk.find(MAGIC, at + 1)
            chunk = self._file.read(CHUNK)

    def _member(self, head: Header, start: int, extension: dict[bytes, bytes]) -> Member | None:
        if head.kind in UNFOLLOWED:
            raise Damage(f"{UNFOLLOWED[head.kind]}, which is not read", start)
        size = pax_size(extension, head.size) if head.has_content else 0
        if size > LARGEST:
            raise Damage("a header with no sound size", start)
        self._left = size + padding(size)
        if head.is_folder:
            return None
        oddity = "a sparse file" if is_sparse(extension) else head.oddity
        return Member(_text(extension.get(b"path") or head.name), size, self._offset, oddity)

    def _extension(self, head: Header, start: int) -> dict[bytes, bytes]:
        """What an extended header says of the next member."""
        self._extended += head.size
        if self._extended > LONGEST_EXTENSION:
            raise Damage(f"extended headers of {self._extended:,} bytes", start)
        content = self._read(head.size)
        self._skip(padding(head.size))
        if head.kind == LONG_NAME:
            return {b"path": content.partition(b"\0")[0]}
        return pax_records(content) if head.kind == PAX else {}

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


def _name_of_regular(block: bytes) -> Iterator[str]:
    try:
        head = parse_header(block)
    except Broken:
        return
    if head is not None and head.kind in REGULAR:
        yield _text(head.name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
