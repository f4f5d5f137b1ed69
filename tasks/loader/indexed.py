"""Reads single samples of a dataset version: one read of the tar a sample, checked against its CRC32C.

The index says where each sample lies, so nothing is scanned and any order costs the same bookkeeping. The
price beside a stream is a seek a sample, which the order of reading (windows) keeps short. Every process
opens shards when it first needs them and keeps few open, so 10^5 shards do not exhaust its descriptors.
"""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from tasks.core.errors import DataError
from tasks.dataset.shards import parse_key, parse_sample, read_index, shard_name

OPEN_SHARDS = 64


@dataclass(frozen=True)
class Sample:
    """One sample: its key and the bytes of its members by suffix, such as `png`, `txt`, `json`."""

    key: str
    members: dict[str, bytes]


class IndexedReader:
    """The samples 0..len-1 of one split, in storage order. Picklable; a copy opens its own files."""

    def __init__(self, version: Path, split: str, open_shards: int = OPEN_SHARDS) -> None:
        self.version = version
        self.split = split
        self._open_shards = open_shards
        self._prepare()

    def _prepare(self) -> None:
        self._index = read_index(self.version, self.split)
        self._descriptors: OrderedDict[int, int] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"version": self.version, "split": self.split, "_open_shards": self._open_shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __del__(self) -> None:
        for descriptor in getattr(self, "_descriptors", {}).values():
            os.close(descriptor)

    def __len__(self) -> int:
        return len(self._index)

    def read(self, number: int) -> Sample:
        """Sample `number`; DataError that names shard and row when it cannot be read as it was written."""
        entry = self._index[number]
        shard, offset, length = int(entry["shard"]), int(entry["offset"]), int(entry["length"])
        try:
            span = self._read_span(shard, offset, length)
        except OSError as error:
            raise DataError(f"{self.place(number)}: {error.strerror}; {self._remedy()}") from error
        if len(span) < length:
            raise DataError(
                f"{self.place(number)}: the shard ends {length - len(span):,} bytes before the sample does, "
                f"so it is truncated; {self._remedy()}"
            )
        if google_crc32c.value(span) != int(entry["crc32c"]):
            member = span[:100].partition(b"\0")[0].decode("ascii", errors="replace")
            raise DataError(
                f"{self.place(number)}, first member {member!r}: its CRC32C is not that of the index, "
                f"so its bytes changed after the build; {self._remedy()}"
            )
        return Sample(parse_key(span), parse_sample(span))

    def place(self, number: int) -> str:
        """Where sample `number` lies, for messages: `train/000007.tar row 12`."""
        shard = int(self._index[number]["shard"])
        # Bisected by hand: numpy would first copy the column, and the mapped index may have 10^9 rows.
        first = bisect.bisect_left(range(number), shard, key=lambda row: int(self._index[row]["shard"]))
        return f"{shard_name(self.split, shard)} row {number - first}"

    def _remedy(self) -> str:
        return f"see `tarmac verify {self.version}`"

    def _read_span(self, shard: int, offset: int, length: int) -> bytes:
        """The bytes, or fewer where the file ends; one system call up to the kernel's limit of 2 GiB."""
        descriptor = self._descriptor(shard)
        span = os.pread(descriptor, length, offset)
        while len(span) < length and (more := os.pread(descriptor, length - len(span), offset + len(span))):
            span += more
        return span

    def _descriptor(self, shard: int) -> int:
        """An open descriptor of the shard; the one used longest ago is closed when there are too many."""
        if shard in self._descriptors:
            self._descriptors.move_to_end(shard)
            return self._descriptors[shard]
        if len(self._descriptors) >= self._open_shards:
            os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors[shard] = os.open(self.version / shard_name(self.split, shard), os.O_RDONLY)
        return self._descriptors[shard]
