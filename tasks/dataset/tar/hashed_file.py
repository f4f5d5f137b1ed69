"""A new file that the caller writes while a thread takes its digest.

Hashing takes as long as all else that a shard's writer does, and leaves the interpreter to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3


class HashedFile:
    """OSError as of any file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._digest = blake3()
        self._thread = ThreadPoolExecutor(1)
        self._hashing: Future[None] | None = None

    def append(self, parts: Sequence[Any]) -> None:
        """Write these buffers; they must not change before the next `append` or `wait` returns."""
        self.wait()
        self._hashing = self._thread.submit(self._hash, parts)
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[self._file.write(rest) :]

    def wait(self) -> None:
        """Until all that was appended is hashed."""
        if self._hashing is not None:
            self._hashing.result()

    def finish(self) -> str:
        """The BLAKE3 in hexadecimal of all that was appended. Nothing is flushed to disk."""
        self.wait()
        return self._digest.hexdigest()

    def close(self) -> None:
        self._thread.shutdown()
        self._file.close()

    def _hash(self, parts: Sequence[Any]) -> None:
        for part in parts:
            self._digest.update(part)
