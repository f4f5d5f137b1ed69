"""A new file that threads hash, write and flush while the caller makes what comes next.

Hashing takes longer than all else that a shard's writer does, and flushing at the end is waiting for a disk
that had nothing to do before; both leave the interpreter to the caller meanwhile. The price is two threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

FLUSHED = 1 << 21
"""Bytes after which a flush is begun, unless one is under way: enough to be worth a disk's while, few enough
for `finish` to find little left."""


class BackgroundFile:
    """`append`, `wait` and `finish` raise the OSError of whatever was appended before."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._threads = ThreadPoolExecutor(2)
        self._writing: Future[None] | None = None
        self._flushing: Future[None] | None = None
        self._unflushed_bytes = 0

    def append(self, parts: Sequence[Any]) -> None:
        """Have these buffers written, which must not change before the next `append` or `wait` returns."""
        self.wait()
        self._writing = self._threads.submit(self._append, parts)

    def wait(self) -> None:
        """Until all that was appended is written."""
        if self._writing is not None:
            self._writing.result()

    def finish(self) -> str:
        """The SHA-256 in hexadecimal of all that was appended, which is on disk."""
        self.wait()
        if self._flushing is not None:
            self._flushing.result()
        os.fsync(self._file.fileno())
        return self._digest.hexdigest()

    def close(self) -> None:
        self._threads.shutdown()
        self._file.close()

    def _append(self, parts: Sequence[Any]) -> None:
        for part in parts:
            self._digest.update(part)
            rest = memoryview(part)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._unflushed_bytes += len(part)
        if self._unflushed_bytes >= FLUSHED and self._has_flushed():
            self._flushing = self._threads.submit(os.fdatasync, self._file.fileno())
            self._unflushed_bytes = 0

    def _has_flushed(self) -> bool:
        """Whether no flush is under way; OSError where the last one failed, which the system tells once."""
        if self._flushing is None:
            return True
        if not self._flushing.done():
            return False
        self._flushing.result()
        return True
