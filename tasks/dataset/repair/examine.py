"""What is left of a damaged tar: its checksum, and which of its samples are still sound."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tasks.core.files import CHUNK
from tasks.core.stores import LocalStore

NOTHING = np.empty((0, 3), np.int64)


@dataclass(frozen=True)
class Remains:
    """A file to be looked at; `spans` are offset, length and CRC32C of each sample that it should hold."""

    path: Path
    spans: NDArray[np.int64] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True)
class Examined:
    """`blake3` is None for what cannot be read to its end; `inode` names the file under all its names.
    `is_closed` says that this user may not read it, sound as it may be."""

    path: Path
    blake3: str | None
    size_bytes: int
    inode: tuple[int, int]
    sound: list[bool]
    is_closed: bool = False


def examine(task: Remains) -> Examined:
    """Read the file once; what its disk does not give is not sound."""
    lost = [False] * len(task.spans)
    folder, name = os.path.split(task.path)
    try:
        with LocalStore(folder).open(name) as file:
            found = os.fstat(file.fileno())
            reader = _Reader(file.fileno(), found.st_size)
            sound = [reader.crc32c(*map(int, span[:2])) == span[2] for span in task.spans]
            blake3 = reader.finish()
    except (OSError, ValueError) as error:
        is_closed = isinstance(error, PermissionError)
        return Examined(task.path, None, 0, (0, 0), lost, is_closed)
    return Examined(task.path, blake3, found.st_size, (found.st_dev, found.st_ino), sound)


class _Reader:
    """Reads a file in order, hashing all of it; passes over what cannot be read."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._digest = blake3()
        self._read_bytes = 0
        self._is_whole = True

    def crc32c(self, offset: int, length: int) -> int | None:
        """Of a span, which follows the ones before; None when it is not all there."""
        if offset + length > self._size:
            return None
        running = 0
        try:
            for chunk in self._chunks(offset, length):
                running = google_crc32c.extend(running, chunk)
        except OSError:
            self._is_whole = False
            return None
        return running

    def finish(self) -> str | None:
        """The BLAKE3 of the whole file."""
        try:
            for _ in self._chunks(self._read_bytes, self._size - self._read_bytes):
                pass
        except OSError:
            return None
        return self._digest.hexdigest() if self._is_whole else None

    def _chunks(self, offset: int, length: int) -> Iterator[bytes]:
        end = offset + length
        while offset < end:
            chunk = os.pread(self._descriptor, min(CHUNK, end - offset), offset)
            if not chunk:
                raise OSError("it has become shorter")
            self._digest.update(chunk)
            offset += len(chunk)
            self._read_bytes = offset
            yield chunk
