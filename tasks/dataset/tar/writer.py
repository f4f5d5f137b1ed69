"""Writes shards: ustar archives, and computes the seal of the file and the span of every sample on the way.

BLAKE3 runs in the caller's thread: a build keeps every core busy with its own process, so a second thread
would only add the cost of the handover.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import google_crc32c
from blake3 import blake3

from tasks.dataset.tar.format import BLOCK, END, Buffer, Members, header, padding

GATHERED = 1 << 19
"""Samples are gathered up to this many bytes before they are hashed and written, because few large writes
cost less. Larger samples are written without a copy."""
_ZEROS = bytes(BLOCK)


class Span(NamedTuple):
    """The bytes of a sample in its tar, from the first header to the last padding, and their CRC32C."""

    offset: int
    length: int
    crc32c: int


class ShardWriter:
    """Writes one tar; raises OSError like any file. Nothing is flushed to disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._digest = blake3()
        self._gathered = memoryview(bytearray(GATHERED))
        self._gathered_bytes = 0
        self._is_ended = False
        self.size_bytes = 0

    def add(self, key: str, members: Members) -> Span:
        """Append a sample with its members in sorted order as `<key>.<suffix>`."""
        parts: list[Buffer] = []
        length = 0
        for suffix in sorted(members):
            content = members[suffix]
            size = len(content)
            gap = padding(size)
            parts += [header(f"{key}.{suffix}", size), content, _ZEROS[:gap]]
            length += BLOCK + size + gap
        return self._append(parts, length)

    def copy(self, span: bytes) -> Span:
        """Append a sample as it stands in another tar, from the first header to the last padding."""
        return self._append([span], len(span))

    def _append(self, parts: Sequence[Buffer], length: int) -> Span:
        if length <= GATHERED:
            crc32c = self._gather(b"".join(parts))
        else:
            self._flush()
            crc32c = 0
            for part in parts:
                crc32c = google_crc32c.extend(crc32c, part)
                self._write(part)
        self.size_bytes += length
        return Span(self.size_bytes - length, length, crc32c)

    @property
    def is_empty(self) -> bool:
        """Whether the tar holds no sample."""
        return self.size_bytes <= len(END)

    def end(self) -> None:
        """Write the end blocks."""
        self._gather(END)
        self.size_bytes += len(END)
        self._flush()
        self._is_ended = True

    def finish(self) -> str:
        """Write the end blocks unless they are written, and return the file's BLAKE3 in hexadecimal."""
        if not self._is_ended:
            self.end()
        return self._digest.hexdigest()

    def _gather(self, sample: bytes) -> int:
        """Append a sample to the gathered ones, and return its CRC32C."""
        stop = self._gathered_bytes + len(sample)
        if stop > GATHERED:
            self._flush()
            stop = len(sample)
        self._gathered[self._gathered_bytes : stop] = sample
        self._gathered_bytes = stop
        return int(google_crc32c.value(sample))

    def _flush(self) -> None:
        self._write(self._gathered[: self._gathered_bytes])
        self._gathered_bytes = 0

    def _write(self, part: Buffer) -> None:
        self._digest.update(part)
        rest = memoryview(part)
        while rest:
            rest = rest[self._file.write(rest) :]

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
