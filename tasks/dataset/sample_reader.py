"""Reads single samples of a version: checked and by the index, or what is left in a damaged shard.

The training loader has its own reader above this layer, which keeps shards open for speed. Here a shard is
opened for every sample, because only a few dozen are read.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

import google_crc32c

from tasks.core.errors import DataError
from tasks.dataset.foreign import foreign_split
from tasks.dataset.tar.format import Sample, parse_sample
from tasks.dataset.tar.reader import Member, TarReader, parse_foreign
from tasks.dataset.verify.tars import kept_store
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import index_name, shard_name

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
        self._foreign = foreign_split(version, split)

    def __len__(self) -> int:
        return len(self._index)

    def shard(self, row: int) -> str:
        """Return the name of the shard that holds sample `row`, such as `train/000007.tar`."""
        return shard_name(self.split, int(self._index[row]["shard"]))

    def read(self, row: int) -> Sample:
        """Return sample `row`; DataError, which names the shard, if it is not as it was written."""
        entry, shard = self._index[row], self.shard(row)
        offset, length = int(entry["offset"]), int(entry["length"])
        try:
            raw: Any = kept_store(str(self._version)).open(shard, in_order=False)
            with io.BufferedReader(raw) as file:
                left = file.seek(0, io.SEEK_END) - offset
                file.seek(offset)
                span = file.read(max(0, min(left, length)))  # a damaged index may hold any length
        except OSError as error:
            raise DataError(f"{shard} cannot be read: {error.strerror or error}") from None
        if len(span) < length:
            raise DataError(f"{shard} is truncated: it ends {length - len(span):,} bytes too early")
        if google_crc32c.value(span) != int(entry["crc32c"]):
            raise DataError(f"{shard}: the sample's bytes at {offset:,} changed after the build (CRC32C)")
        try:
            if self._foreign is not None and not self._foreign.is_plain:
                return parse_foreign(span)
            return parse_sample(span)
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
