"""A new file that a thread hashes and writes while the caller makes what comes next.

Hashing takes longer than all else that a shard's writer does, and leaves the interpreter to the caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any


class BackgroundFile:
    """`append`, `wait` and `finish` raise the OSError of whatever was appended before."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def append(self, parts: Sequence[Any]) -> None:
        """Have these buffers written, which must not change before the next `append` or `wait` returns."""
        self.wait()
        self._writing = self._thread.submit(self._append, parts)

    def wait(self) -> None:
        """Until all that was appended is written."""
        if self._writing is not None:
            self._writing.result()

    def finish(self) -> str:
        """The SHA-256 in hexadecimal of all that was appended, which is written and not flushed to disk."""
        self.wait()
        return self._digest.hexdigest()

    def close(self) -> None:
        self._thread.shutdown()
        self._file.close()

    def _append(self, parts: Sequence[Any]) -> None:
        for part in parts:
            self._digest.update(part)
            rest = memoryview(part)
            while rest:
                rest = rest[self._file.write(rest) :]
