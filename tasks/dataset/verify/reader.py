"""A file's bytes in order, through one buffer that is used again, and their BLAKE3.

What is read is hashed at once, piece by piece, while it is still in the processor's cache.
"""

from __future__ import annotations

from typing import BinaryIO

from blake3 import blake3

from tasks.dataset.tar.writer import BLOCK

BUFFER = 2 << 20
PIECE = 1 << 18
MOST_FREE = 4


_FREE: list[bytearray] = []
"""Buffers that are in no use: making one costs as much as hashing a megabyte."""


def _buffer() -> bytearray:
    try:
        return _FREE.pop()
    except IndexError:
        return bytearray(BUFFER)


class Reader:
    """`buffer[at:end]` has been read and not yet passed; `offset` is where that starts in the file.

    Positions move in whole blocks until the file ends, so those in the buffer are multiples of BLOCK.
    OSError.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake3()
        self._base = 0
        self.buffer = _buffer()
        self.view = memoryview(self.buffer)
        self.at = self.end = 0
        self.is_at_end = False

    def __del__(self) -> None:
        if len(_FREE) < MOST_FREE:
            _FREE.append(self.buffer)

    @property
    def offset(self) -> int:
        return self._base + self.at

    @property
    def left(self) -> int:
        """Bytes in the buffer."""
        return self.end - self.at

    @property
    def base(self) -> int:
        """Where the buffer starts in the file."""
        return self._base

    def fill(self) -> bool:
        """Read on until the buffer is full; whether there was anything more."""
        left = self.left
        if self.at and left < BUFFER:
            self.view[:left] = self.view[self.at : self.end]
            self._base += self.at
            self.at, self.end = 0, left
        before = self.end
        while self.end < BUFFER and not self.is_at_end:
            target = self.view[self.end : min(self.end + PIECE, BUFFER)]
            count = self._file.readinto(target)  # type: ignore[attr-defined]
            self._digest.update(target[:count])
            self.end += count
            self.is_at_end = not count
        return self.end > before

    def block(self) -> bytes:
        """The next block, not passed; shorter where the file ends."""
        if self.left < BLOCK:
            self.fill()
        return bytes(self.view[self.at : min(self.at + BLOCK, self.end)])

    def skip(self, count: int) -> int:
        """Pass `count` bytes; how many there were."""
        passed = 0
        while passed < count and (self.left or self.fill()):
            step = min(count - passed, self.left)
            self.at += step
            passed += step
        return passed

    def take(self, count: int) -> bytes:
        """Pass `count` bytes and return them; fewer where the file ends."""
        parts = []
        while count and (self.left or self.fill()):
            step = min(count, self.left)
            parts.append(bytes(self.view[self.at : self.at + step]))
            self.at += step
            count -= step
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> tuple[str, int]:
        """The whole file's BLAKE3 and size, after what is left has been read."""
        while self.left or self.fill():
            self.at = self.end
        return self._digest.hexdigest(), self.offset
