"""Reads single samples of a dataset version: one read of the tar a sample, checked against its CRC32C.

The index says where each sample lies, so nothing is scanned and any order costs the same bookkeeping. The
price beside a stream is a seek a sample, which the order of reading (windows) keeps short, and the checksum,
1 µs for 30 KB. Every process opens shards when it first needs them and keeps few open, so 10^5 shards do not
exhaust its descriptors.
"""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.dataset.index import read_index
from tasks.dataset.layout import shard_name
from tasks.dataset.tar.span import parse_key, parse_sample
from tasks.loader.bad import BadSampleError, Defect, Reason

OPEN_SHARDS = 64
NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True)
class Sample:
    """One sample: its key and the bytes of its members by suffix, such as `png`, `txt`, `json`."""

    key: str
    members: dict[str, bytes]


class IndexedReader:
    """The samples 0..len-1 of one split, in storage order. Picklable; a copy opens its own files.

    `excluded` are rows of the index, sorted and without repetition, that are no samples of it.
    """

    def __init__(
        self,
        version: Path,
        split: str,
        excluded: NDArray[np.int64] = NO_ROWS,
        open_shards: int = OPEN_SHARDS,
    ) -> None:
        self.version = version
        self.split = split
        self._excluded = excluded
        self._open_shards = open_shards
        self._prepare()

    def _prepare(self) -> None:
        self._index = read_index(self.version, self.split)
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._gaps = self._excluded - np.arange(len(self._excluded))

    def __getstate__(self) -> dict[str, Any]:
        names = ("version", "split", "_excluded", "_open_shards")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __del__(self) -> None:
        for descriptor in getattr(self, "_descriptors", {}).values():
            os.close(descriptor)

    def __len__(self) -> int:
        return len(self._index) - len(self._excluded)

    def row(self, number: int) -> int:
        """The row of the index that sample `number` stands in; where none is excluded it is the same."""
        return number + int(np.searchsorted(self._gaps, number, side="right")) if self._gaps.size else number

    def thinned(self) -> dict[Path, range]:
        """The shards that lost samples to `excluded`, and the samples that are left in each."""
        shards = np.unique(self._index[self._excluded]["shard"]).tolist()
        return {self._path(shard): self._numbers(shard) for shard in shards}

    def _numbers(self, shard: int) -> range:
        start, stop = self._first_row(shard), self._first_row(shard + 1)
        before, until = np.searchsorted(self._excluded, (start, stop)).tolist()
        return range(start - before, stop - until)

    def read(self, number: int) -> Sample:
        """Sample `number`; BadSampleError when it cannot be read as it was written.

        DataError when the storage does not answer, or the index asks for more than memory holds: neither says
        anything about the sample.
        """
        row = self.row(number)
        entry = self._index[row]
        shard, offset, length = int(entry["shard"]), int(entry["offset"]), int(entry["length"])
        try:
            span = self._read_span(shard, offset, length)
        except FileNotFoundError as error:
            raise self._bad(row, "shard.missing", f"{error.strerror}") from error
        except OSError as error:
            raise DataError(f"{self._path(shard)}: {error}") from error
        except (OverflowError, MemoryError) as error:
            problem = f"the index has {length:,} bytes at {offset:,}, and no memory holds that"
            hint = f"`tarmac repair {self.version}` mends a damaged index"
            raise DataError(f"{self.place(number)}: {problem}; {hint}") from error
        if len(span) < length:
            missing = f"{length - len(span):,} of its bytes" if span else "all of its bytes"
            raise self._bad(row, "shard.truncated", f"the shard is truncated, {missing} are missing")
        if google_crc32c.value(span) != int(entry["crc32c"]):
            raise self._changed(row, span)
        return Sample(parse_key(span), parse_sample(span))

    def place(self, number: int) -> str:
        """Where sample `number` lies, for messages: `train/000007.tar row 12`."""
        shard, row = self._place(self.row(number))
        return f"{shard} row {row}"

    def undecodable(self, number: int, sample: Sample, problem: str) -> BadSampleError:
        """The error of a sample whose bytes are as they were, but which a transform cannot take."""
        from tasks.loader import culprit

        member, reason = culprit.in_members(sample.members)
        member = member if reason else None
        return self._bad(self.row(number), "member.undecodable", problem, sample.key, member)

    def _changed(self, row: int, span: bytes) -> BadSampleError:
        from tasks.loader import culprit  # here, because most loader workers never meet a bad sample

        key = self._key(row) or culprit.key_in_header(span)
        member, reason = culprit.in_span(span, key)
        problem = "its CRC32C is not that of the index, so its bytes changed after the build"
        return self._bad(row, "member.checksum", f"{problem}{reason and f' ({reason})'}", key, member)

    def _bad(
        self, row: int, reason: Reason, problem: str, key: str | None = None, member: str | None = None
    ) -> BadSampleError:
        defect = Defect(self.split, *self._place(row), key or self._key(row), member, reason)
        return BadSampleError(f"{defect}: {problem}; {remedy(self.version, reason)}", defect)

    def _key(self, row: int) -> str:
        """As the table of samples has it; empty when that cannot be read."""
        from tasks.loader import culprit

        return culprit.key_of_row(self.version, self.split, row) or ""

    def _path(self, shard: int) -> Path:
        return self.version / shard_name(self.split, shard)

    def _place(self, row: int) -> tuple[str, int]:
        """The shard of a row of the index, and its place there."""
        shard = int(self._index[row]["shard"])
        return shard_name(self.split, shard), row - self._first_row(shard)

    def _first_row(self, shard: int) -> int:
        # Bisected by hand: numpy would first copy the column, and the mapped index may have 10^9 rows.
        return bisect.bisect_left(
            range(len(self._index)), shard, key=lambda row: int(self._index[row]["shard"])
        )

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
        self._descriptors[shard] = os.open(self._path(shard), os.O_RDONLY)
        return self._descriptors[shard]


def remedy(version: Path, reason: Reason) -> str:
    """What to do about a bad sample; it names the version, since the dataset's current one may be another."""
    level = " --full" if reason == "member.undecodable" else ""
    return f"`tarmac repair {version}{level}` mends it, or leaves it out with --quarantine"
