"""Shards are ustar archives, written here to the byte and parsed here from memory.

Headers are made by hand: nothing in them depends on time, host or user, and Python's tarfile costs more than
the rest of a small sample. Format: POSIX.1-1988 ustar, https://pubs.opengroup.org/onlinepubs/9699919799/
utilities/pax.html (section "ustar Interchange Format").
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import google_crc32c

from tasks.dataset.tar.hashed_file import HashedFile

BLOCK = 512
END = bytes(2 * BLOCK)
LARGEST = 8**11 - 1
JOINED = 1 << 19
"""Samples up to this many bytes are gathered to as many before they are hashed and written: few large writes
cost less. Larger samples are not copied."""

Buffer: TypeAlias = Any
"""bytes or a numpy array of uint8; mypy knows no common type of the two before Python 3.12."""
Members = Mapping[str, Buffer]

_ZEROS = bytes(BLOCK)
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_AFTER_SIZE = b"0" * 11 + b"\0"
_TAIL = b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(64) + b"0000000\0" * 2 + bytes(155 + 12)
_fields = struct.Struct("100s24s12s12s8s356s").pack
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + sum(b" " * 8) + sum(_TAIL)


def padding(size: int) -> int:
    """Zero bytes between a member of `size` bytes and the next header."""
    return -size % BLOCK


def span_bytes(sizes: list[int]) -> int:
    """Bytes in a tar of a sample with members of these sizes."""
    return sum(BLOCK + size + padding(size) for size in sizes)


def header(name: str, size: int) -> bytes:
    """The 512-byte header of a regular file, mode 0644, owner 0, time 0; ValueError beyond ustar's limits."""
    encoded = name.encode("ascii")
    if len(encoded) > 100 or size > LARGEST:
        raise ValueError(f"{name}: {size} bytes do not fit a ustar header")
    length = b"%011o\0" % size
    checksum = b"%06o\0 " % (_CONSTANT_SUM + sum(encoded + length))
    return _fields(encoded, _BEFORE_SIZE, length, _AFTER_SIZE, checksum, _TAIL)


class Span(NamedTuple):
    """Where a sample lies in its tar: first header to last padding, and the CRC32C of all of it."""

    offset: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Header:
    """One member: its name, the size of its content in bytes, and tar's letter for its kind."""

    name: str
    size: int
    kind: str


class ShardWriter:
    """Writes one tar and learns its BLAKE3 and every sample's span on the way.

    Small samples are copied into a buffer, which is hashed in the background while the caller reads and
    checks those of the next. Large ones are hashed when `add` returns, so no more than one of them is held.
    """

    def __init__(self, path: Path) -> None:
        self._file = HashedFile(path)
        self._gathered, self._other = (memoryview(bytearray(JOINED)) for _ in range(2))
        self._gathered_bytes = 0
        self._is_ended = False
        self.size_bytes = 0

    def add(self, key: str, members: Members) -> Span:
        """Append a sample; its members go in sorted order as `<key>.<suffix>`."""
        parts: list[Buffer] = []
        length = 0
        for suffix in sorted(members):
            content = members[suffix]
            size = len(content)
            gap = padding(size)
            parts += [header(f"{key}.{suffix}", size), content, _ZEROS[:gap]]
            length += BLOCK + size + gap
        crc32c = self._gather(b"".join(parts)) if length <= JOINED else self._write(parts)
        self.size_bytes += length
        return Span(self.size_bytes - length, length, crc32c)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no sample."""
        return self.size_bytes <= len(END)

    def end(self) -> None:
        """Write the end; the digest may still be under way."""
        self._gather(END)
        self.size_bytes += len(END)
        self._hand_over()
        self._is_ended = True

    def finish(self) -> str:
        """The file's BLAKE3 in hexadecimal, after its end, which is written unless it is there. Nothing is
        flushed to disk."""
        if not self._is_ended:
            self.end()
        return self._file.finish()

    def _gather(self, sample: bytes) -> int:
        """Its CRC32C."""
        if self._gathered_bytes + len(sample) > JOINED:
            self._hand_over()
        stop = self._gathered_bytes + len(sample)
        self._gathered[self._gathered_bytes : stop] = sample
        self._gathered_bytes = stop
        return int(google_crc32c.value(sample))

    def _write(self, parts: list[Buffer]) -> int:
        """The CRC32C of them all, after what is gathered."""
        self._hand_over()
        self._file.append(parts)
        crc32c = 0
        for part in parts:
            crc32c = google_crc32c.extend(crc32c, part)
        self._file.wait()
        return crc32c

    def _hand_over(self) -> None:
        """Have what is gathered written; the other buffer is free once this returns."""
        self._file.append([self._gathered[: self._gathered_bytes]])
        self._gathered, self._other = self._other, self._gathered
        self._gathered_bytes = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def parse_header(block: bytes) -> Header | None:
    """The member that a 512-byte block announces; None for a zero block, ValueError for anything else."""
    if len(block) != BLOCK:
        raise ValueError(f"{len(block)} bytes where a 512-byte header belongs")
    if not any(block):
        return None
    checksum = sum(block) - sum(block[148:156]) + 8 * 32
    try:
        stored = int(block[148:156].strip(b"\0 "), 8)
        size = int(block[124:136].strip(b"\0 "), 8)
        name = block[:100].partition(b"\0")[0].decode()
        prefix = block[345:500].partition(b"\0")[0].decode() if block[257:263] == b"ustar\0" else ""
    except ValueError:
        raise ValueError("no tar header") from None
    if checksum != stored or size < 0:
        raise ValueError("a damaged tar header")
    kind = chr(block[156] or ord("0"))
    return Header(f"{prefix}/{name}" if prefix else name, size, kind)
