"""Reads single samples of a split for the page: each read is checked, and what is torn says so.

The training loader has a reader of its own above this layer, which keeps shards open for speed; here a shard
is opened for every sample, because a few dozen are read and then no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from tasks.core.errors import DataError
from tasks.dataset.shards import parse_key, parse_sample, read_index, shard_name
from tasks.dataset.tar import BLOCK, padding

LONGEST_TEXT = 1 << 20
"""Bytes of a caption that are looked at."""


@dataclass(frozen=True)
class Sample:
    """A sample's key and the bytes of its members by suffix."""

    key: str
    members: dict[str, bytes]


class SampleReader:
    """The samples 0..len-1 of a split in storage order; DataError when the split has no sound index."""

    def __init__(self, version: Path, split: str) -> None:
        self.split = split
        self._version = version
        self._index = read_index(version, split)

    def __len__(self) -> int:
        return len(self._index)

    def shard(self, row: int) -> str:
        """The shard that holds sample `row`, such as `train/000007.tar`."""
        return shard_name(self.split, int(self._index[row]["shard"]))

    def read(self, row: int) -> Sample:
        """Sample `row` whole; DataError, which names the shard, when it is not as it was written."""
        entry = self._index[row]
        shard, offset, length = self.shard(row), int(entry["offset"]), int(entry["length"])
        try:
            with (self._version / shard).open("rb") as file:
                ends = os.fstat(file.fileno()).st_size
                if ends < offset + length:
                    raise DataError(
                        f"{shard} is truncated: it ends {offset + length - ends:,} bytes too early"
                    )
                file.seek(offset)
                span = file.read(length)
        except OSError as error:
            raise DataError(f"{shard} cannot be read: {error.strerror}") from None
        if google_crc32c.value(span) != int(entry["crc32c"]):
            raise DataError(f"{shard}: the sample's bytes at {offset:,} changed after the build (CRC32C)")
        try:
            return Sample(parse_key(span), parse_sample(span))
        except ValueError as error:
            raise DataError(f"{shard}: no sample at {offset:,}: {error}") from None

    def read_text(self, row: int) -> str | None:
        """The caption alone, without reading the rest (a volume is large); None where there is none."""
        entry = self._index[row]
        offset, stop = int(entry["offset"]), int(entry["offset"]) + int(entry["length"])
        try:
            descriptor = os.open(self._version / self.shard(row), os.O_RDONLY)
        except OSError:
            return None
        try:
            for name, size, start in _members(descriptor, offset, stop):
                if name.partition(".")[2] == "txt":
                    return os.pread(descriptor, min(size, LONGEST_TEXT), start).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        return None


def _members(descriptor: int, offset: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """Name, size and place of each member between two offsets; ValueError where no header is."""
    while offset < stop:
        head = os.pread(descriptor, BLOCK, offset)
        size = int(head[124:135], 8)
        yield head[:100].partition(b"\0")[0].decode(), size, offset + BLOCK
        offset += BLOCK + size + padding(size)
