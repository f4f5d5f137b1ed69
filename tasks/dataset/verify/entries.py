"""A tar's entries one by one: whatever a header and the records before it tell, and where it makes no sense.

Damage does not end the tar where a sound header can be found behind it. A header that lies about sizes costs
no more than the file has bytes, and what is told about an entry is held within a limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tasks.dataset.tar.format import (
    EXTENSIONS,
    LONG_NAME,
    PAX,
    PAX_GLOBAL,
    Broken,
    Header,
    compression_of,
    is_sparse,
    parse_header,
    pax_records,
    pax_size,
)
from tasks.dataset.tar.writer import BLOCK, END, padding
from tasks.dataset.verify.reader import Reader
from tasks.dataset.verify.structure import next_header

ZEROS = bytes(BLOCK)
RECORD = 20 * BLOCK
"""tar programs fill the last record with zeros; more than that is damage."""
LONGEST_EXTENSION = 1 << 20
"""Bytes of the pax headers and long names before one member, together."""


class Cut(Exception):
    """The tar ends at `offset`, or readers take it for ended there. `is_between` where the entry before is
    whole and the last of its sample."""

    def __init__(self, problem: str, offset: int, is_between: bool = False) -> None:
        super().__init__(f"{problem} at byte {offset:,}")
        self.offset = offset
        self.is_between = is_between


class Gap(NamedTuple):
    """Bytes from `start` to `stop` that make no sense."""

    problem: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.problem} at byte {self.start:,}"


class Entry(NamedTuple):
    """`start` is where its header is, or the first record about it; `size` is that of the content behind."""

    name: bytes
    size: int
    start: int
    oddity: str | None
    is_folder: bool


class Entries:
    """`least` is where the data end at the earliest: zeros before that are no end."""

    def __init__(self, reader: Reader, least: int) -> None:
        self._reader = reader
        self._least = least
        self.of_all: dict[bytes, bytes] = {}
        """What pax records tell of all further entries."""

    def next(self) -> Entry | Gap | None:
        """The next entry, the reader then standing before its content; None after the last. Cut."""
        reader = self._reader
        start = reader.offset
        told = dict(self.of_all)
        extended = 0
        while True:
            block = reader.block()
            if block == ZEROS:
                return self._zeros(start)
            if len(block) < BLOCK:
                between = "ends without end blocks" if reader.offset else "holds nothing"
                raise Cut("ends within a header" if block else between, reader.offset)
            try:
                head = parse_header(block)
                assert head is not None
                reader.skip(BLOCK)
            except Broken as error:
                compression = compression_of(block) if not reader.offset else None
                return self._search(f"is compressed by {compression}" if compression else str(error), start)
            try:
                if head.kind not in EXTENSIONS:
                    return self._entry(head, told, start)
                extended += head.size
                told |= self._extension(head, extended)
            except Broken as error:
                return Gap(str(error), start, reader.offset)

    def _entry(self, head: Header, told: dict[bytes, bytes], start: int) -> Entry:
        oddity = "a sparse file" if is_sparse(told) else head.oddity
        size = pax_size(told, head.size) if head.has_content else 0
        name = told.get(b"GNU.sparse.name") or told.get(b"path") or head.name
        while head.has_map and self._reader.block()[504:505].strip(b"\0"):
            self._reader.skip(BLOCK)
        if head.has_map:
            self._reader.skip(BLOCK)
        return Entry(name, size, start, oddity, head.is_folder)

    def _extension(self, head: Header, extended: int) -> dict[bytes, bytes]:
        """What the records tell of the next entry; Broken where there is too much of it, all passed."""
        reader = self._reader
        is_read = extended <= LONGEST_EXTENSION and head.kind in (PAX, PAX_GLOBAL, LONG_NAME)
        content = reader.take(head.size) if is_read else b""
        left = head.size - len(content) + padding(head.size)
        if reader.skip(left) < left:
            raise Cut("ends within a header", reader.offset)
        if extended > LONGEST_EXTENSION:
            raise Broken(f"a header with {extended:,} bytes of records")
        if not is_read:
            return {}
        if head.kind == LONG_NAME:
            return {b"path": content.partition(b"\0")[0]}
        records = pax_records(content)
        if head.kind == PAX_GLOBAL:
            self.of_all |= {key: value for key, value in records.items() if key in (b"path", b"size")}
        return records

    def _search(self, problem: str, start: int) -> Gap:
        """Go on to the next sound header; where there is none, to the end blocks or behind everything."""
        reader = self._reader
        while True:
            found = next_header(reader.buffer, reader.at, reader.end)
            if found is not None:
                reader.at = found
                return Gap(problem, start, reader.offset)
            reader.skip(max(0, reader.left - len(END)) // BLOCK * BLOCK)
            if not reader.fill():
                break
        if reader.view[reader.at : reader.end] != END:
            reader.skip(reader.left)
        return Gap(problem, start, reader.offset)

    def _zeros(self, start: int) -> Gap | None:
        """What zeros where a header belongs mean: the end, too much of it, or a hole."""
        at = self._reader.offset
        count, is_end = self._pass_zeros()
        if at < self._least:
            if not is_end:
                return self._search("zeros instead of a header", start)
            raise Cut("holds nothing but zeros from where a header belongs", at)
        if count < len(END):
            raise Cut("has one end block instead of two", at, is_between=True)
        if not is_end:
            raise Cut("goes on after the end blocks that stand", at, is_between=True)
        if count >= len(END) + RECORD:
            raise Cut(f"goes on with {count:,} zeros after the end blocks that stand", at)
        return None

    def _pass_zeros(self) -> tuple[int, bool]:
        """How many zeros stand here, and whether nothing else does; whole blocks of them are passed."""
        reader = self._reader
        count = 0
        while reader.left or reader.fill():
            is_other = np.frombuffer(reader.buffer, np.uint8)[reader.at : reader.end] != 0
            first = int(is_other.argmax())
            if is_other[first]:
                reader.skip(first // BLOCK * BLOCK)
                return count + first, False
            count += reader.skip(reader.left)
        return count, True
