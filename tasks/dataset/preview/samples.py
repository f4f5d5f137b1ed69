"""Reads single samples of a split for the page: each read is checked, and what is torn says so.

The training loader has a reader of its own above this layer, which keeps shards open for speed; here a shard
is opened for every sample, because a few dozen are read and then no more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from tasks.core.errors import DataError
from tasks.dataset.index import read_index
from tasks.dataset.layout import shard_name
from tasks.dataset.tar.format import BLOCK, padding, parse_header
from tasks.dataset.tar.span import parse_key, parse_sample

LONGEST_TEXT = 1 << 20
"""Bytes of a caption that are looked at."""


class Faulty(DataError):
    """What is wrong with a sample; `code` is what verify calls that."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code


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
        """Sample `row` whole; Faulty, which names the shard, when it is not as it was written."""
        entry, shard, span = self._index[row], self.shard(row), self._span(row)
        offset, short = int(entry["offset"]), int(entry["length"]) - len(span)
        if short:
            raise Faulty("shard.truncated", f"{shard} is truncated: it ends {short:,} bytes too early")
        if google_crc32c.value(span) != int(entry["crc32c"]):
            problem = f"{shard}: the sample's bytes at {offset:,} changed after the build (CRC32C)"
            raise Faulty("member.checksum", problem)
        try:
            return Sample(parse_key(span), parse_sample(span))
        except ValueError as error:
            raise Faulty("index.mismatch", f"{shard}: no sample at {offset:,}: {error}") from None

    def read_text(self, row: int) -> str | None:
        """The caption alone, without reading the rest (a volume is large); None where there is none."""
        entry = self._index[row]
        offset, stop = int(entry["offset"]), int(entry["offset"]) + int(entry["length"])
        try:
            descriptor = os.open(self._version / self.shard(row), os.O_RDONLY)
        except OSError:
            return None
        try:
            while offset < stop:
                header = parse_header(os.pread(descriptor, BLOCK, offset))
                if header is None:
                    return None
                offset += BLOCK
                if header.text.partition(".")[2] == "txt":
                    text = os.pread(descriptor, min(header.size, LONGEST_TEXT), offset)
                    return text.decode("utf-8", "replace")
                offset += header.size + padding(header.size)
        except (OSError, ValueError, OverflowError):
            return None
        finally:
            os.close(descriptor)
        return None

    def _span(self, row: int) -> bytes:
        """What the shard holds in the place of sample `row`: less than its length where it is cut."""
        entry, shard = self._index[row], self.shard(row)
        try:
            with (self._version / shard).open("rb") as file:
                left = os.fstat(file.fileno()).st_size - int(entry["offset"])
                if left <= 0:
                    return b""
                file.seek(int(entry["offset"]))
                return file.read(min(left, int(entry["length"])))
        except OSError as error:
            raise Faulty("shard.missing", f"{shard} cannot be read: {error.strerror}") from None
