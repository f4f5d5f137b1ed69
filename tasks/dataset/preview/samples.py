"""Single samples of a version, for its page: by the index and checked, or what is left in a damaged shard.

The training loader has a reader of its own above this layer, which keeps shards open for speed; here a shard
is opened for every sample, because a few dozen are read and then no more.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from tasks.core.errors import DataError
from tasks.dataset.foreign import foreign_split
from tasks.dataset.index import read_index
from tasks.dataset.layout import index_name, shard_name
from tasks.dataset.tar.format import Sample, parse_sample
from tasks.dataset.tar.reader import Member, TarReader, parse_foreign
from tasks.dataset.verify.tars import kept_store

SHOWN_PER_SPLIT: Mapping[str, int] = {"image_text": 60, "reinforced": 36, "chat": 24, "volume_report": 8}
"""Samples of a split by modality: as many as one looks at, and as a page can hold."""
FULL_SPLITS = 3
"""Splits that are shown in full number; more of them share what these would have."""
LARGEST_MEMBER = 1 << 29
"""Bytes; larger members of damaged shards are not read."""


class SampleReader:
    """The samples 0..len-1 of a split in storage order; DataError when the split has no sound index."""

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
        """The shard that holds sample `row`, such as `train/000007.tar`."""
        return shard_name(self.split, int(self._index[row]["shard"]))

    def read(self, row: int) -> Sample:
        """Sample `row` whole; DataError, which names the shard, when it is not as it was written."""
        entry, shard = self._index[row], self.shard(row)
        offset, length = int(entry["offset"]), int(entry["length"])
        try:
            raw: Any = kept_store(str(self._version)).open(shard, in_order=False)
            with io.BufferedReader(raw) as file:
                left = file.seek(0, io.SEEK_END) - offset
                file.seek(offset)
                span = file.read(max(0, min(left, length)))  # a damaged index may name any length
        except OSError as error:
            raise DataError(f"{shard} cannot be read: {error.strerror or error}") from None
        if len(span) < length:
            short = length - len(span)
            raise DataError(f"{shard} is truncated: it ends {short:,} bytes too early")
        if google_crc32c.value(span) != int(entry["crc32c"]):
            problem = f"{shard}: the sample's bytes at {offset:,} changed after the build (CRC32C)"
            raise DataError(problem)
        try:
            if self._foreign is not None and not self._foreign.is_plain:
                return parse_foreign(span)
            return parse_sample(span)
        except ValueError as error:
            raise DataError(f"{shard}: no sample at {offset:,}: {error}") from None


def salvage(shard: Path, keys: Collection[str]) -> dict[str, Sample]:
    """What is left of samples in a shard that may be damaged, by the tar's own headers: neither the index nor
    a checksum is asked, and a sample's members need not stand together. Of two members of one name it is the
    first; a shard that cannot be read has none."""
    found: dict[str, dict[str, bytes]] = {}

    def is_wanted(member: Member) -> bool:
        known = found.setdefault(member.key, {}) if member.key in keys else None
        return known is not None and member.suffix not in known and member.size <= LARGEST_MEMBER

    try:
        with shard.open("rb") as file:
            for member in TarReader(file, is_wanted, seeks=True):
                if isinstance(member, Member) and member.content is not None:
                    found[member.key][member.suffix] = member.content
    except (OSError, ValueError):  # no such file, or no file can have such a name: findings of their own
        return {}
    return {key: Sample(key, members) for key, members in found.items() if members}


def spread(total: int, most: int) -> list[int]:
    """At most `most` of 0..total-1, evenly spaced, from the middle of each stretch: the page then shows the
    dataset and not its beginning."""
    if total <= most:
        return list(range(total))
    return [(2 * step + 1) * total // (2 * most) for step in range(most)]


def choose_rows(samples: Mapping[str, int], modality: str) -> dict[str, list[int]]:
    """Rows of each split's index to show, given how many samples each has."""
    each = SHOWN_PER_SPLIT.get(modality, min(SHOWN_PER_SPLIT.values()))
    most = max(1, min(each, each * FULL_SPLITS // max(1, len(samples))))
    return {split: spread(total, most) for split, total in samples.items()}
