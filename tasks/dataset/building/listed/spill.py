"""Keeps raw members of samples from containers on disk until their shard is converted.

A container is read once, in its own order, which is not the order of the shards. So its samples are appended
to PARTS files by the first bits of their shard hash: a shard's samples then lie close together in one or a
few files. The price is that the raw bytes are written and read once more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tasks.core.errors import DataError
from tasks.dataset.building.listed.catalogue import ListedSample
from tasks.dataset.keys import HASH_BITS
from tasks.dataset.tar.format import Members

FOLDER = "spill"
"""The subfolder of the staging folder."""
PART_BITS = 6
PARTS = 1 << PART_BITS
LENGTH = 4
"""Bytes that hold the length of the list of members that follows."""


def _path(folder: Path, part: int) -> Path:
    return folder / f"{part:02d}.raw"


class Spill:
    """Appends samples to the spill files of a folder, and continues at the `sizes` of an earlier process."""

    def __init__(self, folder: Path, sizes: Mapping[int, int]) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._files: dict[int, BinaryIO] = {}
        self.sizes = dict(sizes)
        for part in range(PARTS):
            path = _path(folder, part)
            if path.exists():
                os.truncate(path, sizes.get(part, 0))  # the rest was never recorded

    def write(self, shard_hash: int, members: Members) -> tuple[int, int, int]:
        """Append a sample's raw members, and return the part with the offset and length in it."""
        part = shard_hash >> (HASH_BITS - PART_BITS)
        contents = {suffix: bytes(content) for suffix, content in members.items()}
        head = json.dumps({suffix: len(content) for suffix, content in contents.items()}).encode()
        record = b"".join([len(head).to_bytes(LENGTH, "big"), head, *contents.values()])
        file = self._files.get(part)
        if file is None:
            file = self._files[part] = _path(self._folder, part).open("ab", buffering=1 << 18)
        file.write(record)
        offset = self.sizes.get(part, 0)
        self.sizes[part] = offset + len(record)
        return part, offset, len(record)

    @property
    def size_bytes(self) -> int:
        """The size of all parts together."""
        return sum(self.sizes.values())

    def flush(self) -> None:
        """Flush everything that was written to disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def is_whole(folder: Path, sizes: Mapping[int, int]) -> bool:
    """Whether every part is at least as long as was recorded."""
    try:
        return all(_path(folder, part).stat().st_size >= size for part, size in sizes.items())
    except OSError:
        return False


def read_spilled(folder: Path, entry: ListedSample) -> dict[str, bytes]:
    """Return the raw members of one sample by suffix. DataError if the spill is damaged, which is not the
    sample's fault."""
    assert entry.part is not None and entry.offset is not None and entry.length is not None
    path = _path(folder, entry.part)
    try:
        with path.open("rb", buffering=0) as file:
            record = os.pread(file.fileno(), entry.length, entry.offset)
        start = LENGTH + int.from_bytes(record[:LENGTH], "big")
        members = {}
        for suffix, size in json.loads(record[LENGTH:start]).items():
            members[suffix] = record[start : start + size]
            start += size
        if start != entry.length or len(record) != entry.length:
            raise ValueError(f"{path.name} ends too early")
    except (OSError, ValueError, AttributeError) as error:
        text = f"{folder} is damaged ({error}); remove {folder.parent} and build again"
        raise DataError(text) from None
    return members
