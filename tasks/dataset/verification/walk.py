"""One pass over a tar's bytes: its members as samples, its SHA-256, and where it stops making sense.

Reads forward only, a megabyte at a time, so that a shard of any size is judged in constant memory; contents
are kept only when asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import google_crc32c

from tasks.dataset.tar import BLOCK, Header, padding, parse_header

CHUNK = 1 << 20
RECORD = 20 * BLOCK
"""tar programs fill the last record with zeros; more than that is damage."""


class Damage(Exception):
    """The tar cannot be followed any further. `is_cut` when it just ends, else the bytes make no sense."""

    def __init__(self, problem: str, offset: int, is_cut: bool) -> None:
        super().__init__(f"{problem} at byte {offset}")
        self.is_cut = is_cut


@dataclass
class Stored:
    """A sample as found: adjacent members with one key."""

    key: str
    offset: int
    length: int = 0
    crc32c: int = 0
    headers: list[Header] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)


class Walk:
    """Iterates over the samples; then `damage` tells why it ended early, and `sha256` is the whole file's."""

    def __init__(self, file: BinaryIO, keeps_contents: bool) -> None:
        self._file = file
        self._keeps_contents = keeps_contents
        self._digest = hashlib.sha256()
        self._offset = 0
        self.damage: Damage | None = None

    def samples(self) -> Iterator[Stored]:
        current: Stored | None = None
        try:
            while (header_block := self._header()) is not None:
                header, block = header_block
                key = key_of(header)
                if current is None or current.key != key:
                    if current is not None:
                        yield current
                    current = Stored(key, self._offset - BLOCK)
                self._take(current, header, block)
            if current is not None:
                yield current
            self._end()
        except Damage as damage:
            self.damage = damage

    def sha256(self) -> str:
        """The digest of the whole file; reads what the walk has left."""
        while self._read(CHUNK):
            pass
        return self._digest.hexdigest()

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        self._offset += len(data)
        return data

    def _header(self) -> tuple[Header, bytes] | None:
        start = self._offset
        block = self._read(BLOCK)
        if len(block) < BLOCK:
            raise Damage("ends without end blocks", start, is_cut=True)
        try:
            header = parse_header(block)
        except ValueError as error:
            raise Damage(str(error), start, is_cut=False) from None
        return None if header is None else (header, block)

    def _take(self, sample: Stored, header: Header, block: bytes) -> None:
        sample.headers.append(header)
        crc32c = google_crc32c.extend(sample.crc32c, block)
        kept = []
        left = header.size + padding(header.size)
        sample.length += BLOCK + left
        while left:
            data = self._read(min(left, CHUNK))
            if not data:
                raise Damage(f"ends within {header.name}", self._offset, is_cut=True)
            left -= len(data)
            crc32c = google_crc32c.extend(crc32c, data)
            if self._keeps_contents:
                kept.append(data)
        sample.crc32c = crc32c
        if self._keeps_contents:
            sample.contents[suffix_of(header)] = b"".join(kept)[: header.size]

    def _end(self) -> None:
        """After the first zero block: another one, and zeros up to the end of one record at most."""
        start = self._offset
        if len(second := self._read(BLOCK)) < BLOCK or any(second):
            raise Damage("has one end block instead of two", start, is_cut=True)
        rest = self._read(RECORD)
        if any(rest) or len(rest) == RECORD:
            raise Damage("goes on after its end blocks", start, is_cut=True)


def key_of(header: Header) -> str:
    """The member's name up to the first dot of its last part."""
    folder, slash, name = header.name.rpartition("/")
    return folder + slash + name.partition(".")[0]


def suffix_of(header: Header) -> str:
    return header.name.rpartition("/")[2].partition(".")[2]
