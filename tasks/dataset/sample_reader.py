"""Reads single samples of a version: checked and by the index, or what is left in a damaged shard.

The training loader has its own reader above this layer, which keeps shards open for speed. Here a shard is
opened for every sample, because only a few dozen are read.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c

from tasks.core.errors import DataError
from tasks.dataset.foreign import foreign_split
from tasks.dataset.tar.format import BLOCK, Sample, parse_header, parse_sample, span_bytes
from tasks.dataset.tar.reader import Member, TarReader, parse_foreign
from tasks.dataset.verify.tars import kept_store
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import index_name, shard_name

TEXT = "txt"
SMALL = 1 << 16
"""A sample of at most this many bytes is read at once, because each further read costs as much."""
LARGEST_MEMBER = 1 << 29
"""Members of damaged shards with more bytes are not read."""


class SampleReader:
    """The samples 0..len-1 of a split in storage order; DataError if the split has no sound index."""

    def __init__(self, version: Path, split: str) -> None:
        if not (version / index_name(split)).exists():
            raise DataError(f"{index_name(split)} is missing")
        self.split = split
        self._version = version
        self._index = read_index(version, split)
        foreign = foreign_split(version, split)
        self._is_plain = foreign is None or foreign.is_plain

    def __len__(self) -> int:
        return len(self._index)

    def read_text(self, row: int, most: int) -> bytes:
        """Return the first `most` bytes of the caption of sample `row`; KeyError if it has none, DataError as
        in `read`. Of a large sample, such as a volume, only headers are read besides, and no checksum is
        compared."""
        entry = self._index[row]
        if int(entry["length"]) <= SMALL or not self._is_plain:
            return self.read(row).members[TEXT][:most]
        at, stop = int(entry["offset"]), int(entry["offset"]) + int(entry["length"])
        with self._opened(row) as file:
            while at < stop:
                file.seek(at)
                header = parse_header(file.read(BLOCK).ljust(BLOCK, b"\0"))
                if header is None:
                    raise ValueError("zeros, or the end of the file, where a member belongs")
                if header.text.partition(".")[2] == TEXT:
                    return file.read(min(header.size, most))
                at += span_bytes([header.size])
        raise KeyError(TEXT)

    @contextmanager
    def _opened(self, row: int) -> Iterator[io.BufferedReader]:
        """Open the shard of a sample, and raise what goes wrong in the block as a DataError that names it."""
        shard = self.shard(row)
        try:
            raw: Any = kept_store(str(self._version)).open(shard, in_order=False)
            with io.BufferedReader(raw) as file:
                yield file
        except OSError as error:
            raise DataError(f"{shard} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise DataError(f"{shard}: no sample at {int(self._index[row]['offset']):,}: {error}") from None

    def shard(self, row: int) -> str:
        """Return the name of the shard that holds sample `row`, such as `train/000007.tar`."""
        return shard_name(self.split, int(self._index[row]["shard"]))

    def read(self, row: int) -> Sample:
        """Return sample `row`; DataError, which names the shard, if it is not as it was written."""
        entry, shard = self._index[row], self.shard(row)
        offset, length = int(entry["offset"]), int(entry["length"])
        with self._opened(row) as file:
            left = file.seek(0, io.SEEK_END) - offset
            file.seek(offset)
            span = file.read(max(0, min(left, length)))  # a damaged index may hold any length
        if len(span) < length:
            raise DataError(f"{shard} is truncated: it ends {length - len(span):,} bytes too early")
        if google_crc32c.value(span) != int(entry["crc32c"]):
            raise DataError(f"{shard}: the sample's bytes at {offset:,} changed after the build (CRC32C)")
        try:
            return parse_sample(span) if self._is_plain else parse_foreign(span)
        except ValueError as error:
            raise DataError(f"{shard}: no sample at {offset:,}: {error}") from None


def salvage(shard: Path, keys: Collection[str]) -> dict[str, Sample]:
    """Return what is left of samples in a shard that may be damaged.

    It goes by the tar's own headers, not by index or checksums, and a sample's members need not be adjacent.
    Of two members with the same name the first counts. A shard that cannot be read gives no samples.
    """
    found: dict[str, dict[str, bytes]] = {}

    def is_wanted(member: Member) -> bool:
        known = found.setdefault(member.key, {}) if member.key in keys else None
        return known is not None and member.suffix not in known and member.size <= LARGEST_MEMBER

    try:
        with shard.open("rb") as file:
            for member in TarReader(file, is_wanted, seeks=True):
                if isinstance(member, Member) and member.content is not None:
                    found[member.key][member.suffix] = member.content
    except (OSError, ValueError):  # no such file, or no valid file name: verify has findings for both
        return {}
    return {key: Sample(key, members) for key, members in found.items() if members}


def spread(total: int, most: int) -> list[int]:
    """Return at most `most` of 0..total-1, evenly spaced, so that the page shows more than the dataset's
    start."""
    if total <= most:
        return list(range(total))
    return [(2 * step + 1) * total // (2 * most) for step in range(most)]
