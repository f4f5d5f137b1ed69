"""A file that is fetched part by part, whoever fetches it."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from typing import Any

from tasks.core.addresses import shown

BLOCK = 4 << 20
"""Bytes of a request."""
Fetch = Callable[[str, int, int], bytes]
"""The bytes of an address from a place to before another."""


class RemoteFile(io.RawIOBase):
    """A remote file; every read is one request a block, but for what was read `ahead` of its beginning."""

    def __init__(self, fetch: Fetch, path: str, size: int, ahead: bytes) -> None:
        self._fetch, self._path, self._size, self._ahead = fetch, path, size, ahead
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._size)
        start = self._position
        while self._position < end:
            content = self._next(min(end, self._position + BLOCK))
            at = self._position - start
            view[at : at + len(content)] = content
            self._position += len(content)
        return max(self._position - start, 0)

    def readall(self) -> bytes:
        """Not the inherited one, which asks for 8 KiB at a time. Takes memory for what comes, not for what
        the store has said of the size."""
        pieces = []
        while self._position < self._size:
            pieces.append(self._next(min(self._size, self._position + BLOCK)))
            self._position += len(pieces[-1])
        return b"".join(pieces)

    def _next(self, end: int) -> bytes:
        """The bytes from the position to at most `end`; some."""
        if self._position < len(self._ahead):
            return self._ahead[self._position : end]
        self._ahead = b""
        content = self._fetch(self._path, self._position, end)
        if len(content) != end - self._position:
            raise OSError(errno.EIO, "the file has changed while it was read", shown(self._path))
        return content
