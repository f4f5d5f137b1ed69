"""Reads single samples of a dataset version: one read of the tar per sample, checked against its CRC32C.

The index records where each sample lies, so nothing is scanned and any order costs the same bookkeeping. The
price beside a stream is one seek per sample, which the order of reading (windows) keeps short, and the
checksum, 1 µs for 30 KB. Of a sample with a volume, a caller can have only what a crop needs: see
`tasks.loader.mapped_samples`. Every process opens shards when it first needs them and keeps few open, so 10^5
shards do not exhaust its descriptors.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError, UsageError
from tasks.core.files import digest
from tasks.core.remote.remote_shards import RemoteShard, cache
from tasks.dataset.foreign import foreign_split
from tasks.dataset.tar.format import Sample, parse_sample
from tasks.dataset.tar.reader import parse_foreign
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import FOREIGN, shard_name
from tasks.loader import worker_state
from tasks.loader.bad import BadSampleError, Defect, Reason
from tasks.loader.mapped_samples import SMALLEST, mapped_sample
from tasks.loader.order import OPEN_SHARDS, Order, Shuffle, order_of
from tasks.loader.staging import copy_name, staged_shard

PROBES = 64
NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)


class OpenShard(NamedTuple):
    """A shard's descriptor, and its name as a worker's state records it."""

    descriptor: int
    name: bytes


class IndexedReader:
    """The samples 0..len-1 of one split, in storage order. Picklable; a copy opens its own files.

    `excluded` are the rows of the index to leave out, sorted and without repetition. `staged` is a folder
    that may hold copies of shards, which are then read instead. Without `checksums`, a sample counts as
    changed only where its members cannot be separated.
    """

    def __init__(
        self,
        version: Path,
        split: str,
        excluded: NDArray[np.int64] = NO_ROWS,
        open_shards: int = OPEN_SHARDS,
        staged: Path | None = None,
        checksums: bool = True,
    ) -> None:
        self.version = version
        self.split = split
        self._excluded = excluded
        self._open_shards = open_shards
        self.staged = staged
        self._checksums = checksums
        self._prepare()

    def _prepare(self) -> None:
        self._index = read_index(self.version, self.split)
        self._resolved = self.version.resolve()
        self._foreign = foreign_split(self.version, self.split)
        if self.staged is not None and self.is_remote:
            raise UsageError("loader.stage: remote shards are cached on this node anyway; remove the key")
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._gaps = self._excluded - np.arange(len(self._excluded))

    def __getstate__(self) -> dict[str, Any]:
        names = ("version", "split", "staged", "_excluded", "_open_shards", "_checksums")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __del__(self) -> None:
        for shard in getattr(self, "_open", {}).values():
            os.close(shard.descriptor)

    @property
    def excluded_digest(self) -> str:
        """A digest of which rows are left out."""
        return digest(self._excluded.tolist())

    def __len__(self) -> int:
        return len(self._index) - len(self._excluded)

    def order(self, shuffle: Shuffle) -> Order:
        """Return the order of `loader.shuffle`; PROBES samples spread over the split give the mean size."""
        probes = self._index[:: max(len(self._index) // PROBES, 1)]["length"]
        return order_of(shuffle, len(self), int(self._index[-1]["shard"]) + 1, float(probes.mean()))

    @property
    def is_remote(self) -> bool:
        return self._foreign is not None and bool(self._foreign.remote)

    def shards_of(self, numbers: Sequence[int]) -> list[RemoteShard]:
        """Return the shards of some samples that are to be copied, each once: remote ones, and all if
        staged."""
        rows = [self.row(number) for number in numbers]
        shards = np.unique(self._index[rows]["shard"]).tolist()
        if self._foreign is not None and self._foreign.remote:
            return [self._foreign.remote[shard] for shard in shards]
        return [staged_shard(self._resolved, self.split, shard) for shard in shards] if self.staged else []

    def row(self, number: int) -> int:
        """Return the row of the index that holds sample `number`: the same where nothing is excluded."""
        return number + int(np.searchsorted(self._gaps, number, side="right")) if self._gaps.size else number

    def lengths(self, most: int) -> NDArray[np.int64]:
        """Return the stored length in bytes of each of the first `most` samples, with all their members."""
        kept = (
            np.delete(self._index["length"], self._excluded) if len(self._excluded) else self._index["length"]
        )
        return np.asarray(kept[:most], np.int64)

    def thinned(self) -> dict[Path | RemoteShard, range]:
        """Return the shards that lost samples to `excluded`, with the numbers of the remaining samples."""
        shards = np.unique(self._index[self._excluded]["shard"]).tolist()
        return {self._source(shard): self.numbers(shard) for shard in shards}

    def _source(self, shard: int) -> Path | RemoteShard:
        return self._foreign.remote[shard] if self._foreign and self._foreign.remote else self._path(shard)

    def numbers(self, shard: int) -> range:
        """Return the numbers of the samples in a shard, without those that are left out."""
        start, stop = self._first_row(shard), self._first_row(shard + 1)
        before, until = np.searchsorted(self._excluded, (start, stop)).tolist()
        return range(start - before, stop - until)

    def read(self, number: int, *, crops: bool = False) -> Sample:
        """Read sample `number`; BadSampleError when it cannot be read as it was written.

        With `crops`, a volume may be a view of a map of the shard (see `mapped_samples`), for a caller that
        passes it to `decode_volume` with a crop. DataError when the storage does not answer, or
        the index asks for more than memory holds: neither is a fault of the sample.
        """
        row = self.row(number)
        if crops and (sample := self._read_mapped(row)) is not None:
            return sample
        shard, offset, length, crc32c = self._index.item(row)  # of dtype INDEX
        try:
            span = self._read_span(row, shard, offset, length)
            if self.staged is not None and not self._is_sound(span, length, crc32c):
                self._forget_copy(shard)
                span = self._read_span(row, shard, offset, length)
        except FileNotFoundError as error:
            raise self._bad(row, "shard.missing", f"{error.strerror}") from error
        except OSError as error:
            raise DataError(f"{self._path(shard)}: {error}") from error
        except (OverflowError, MemoryError) as error:
            problem = f"the index lists {length:,} bytes at {offset:,}, more than memory holds"
            hint = f"`tarmac repair {self.version}` repairs a damaged index"
            raise DataError(f"{self.place(number)}: {problem}; {hint}") from error
        if len(span) < length:
            missing = f"{length - len(span):,} of its bytes" if span else "all of its bytes"
            raise self._bad(row, "shard.truncated", f"the shard is truncated, {missing} are missing")
        if not self._is_sound(span, length, crc32c):
            raise self._changed(row, span)
        try:
            if self._foreign is not None and not self._foreign.is_plain:
                return parse_foreign(span)
            return parse_sample(span)
        except (ValueError, IndexError) as error:
            raise self._changed(row, span) from error

    def _read_mapped(self, row: int) -> Sample | None:
        """Return the sample in a map of its shard; None where reading it whole decides, such as about a copy,
        which may have to make way for the shard."""
        shard, offset, length, crc32c = self._index.item(row)
        is_own = self._foreign is None or self._foreign.is_plain
        if length < SMALLEST or self.staged is not None or not is_own:
            return None
        try:
            descriptor, name = self._opened(shard)
        except OSError:
            return None
        worker_state.mine.reading(name, row, offset)
        return mapped_sample(descriptor, offset, length, crc32c if self._checksums else None)

    def _is_sound(self, span: bytes, length: int, crc32c: int) -> bool:
        return len(span) == length and (not self._checksums or google_crc32c.value(span) == crc32c)

    def place(self, number: int) -> str:
        """Return where sample `number` lies, for messages: `train/000007.tar row 12`."""
        shard, row = self._place(self.row(number))
        return f"{shard} row {row}"

    def undecodable(self, number: int, sample: Sample, problem: str) -> BadSampleError:
        """Return the error for a sample whose bytes did not change but which a transform rejects; raise it
        for one whose bytes changed, where that was not noticed before."""
        from tasks.loader import culprit

        if any(not isinstance(member, bytes) for member in sample.members.values()):
            sample = self.read(number)  # it was mapped: read whole, it shows whether the shard is damaged
        member, reason = culprit.in_members(sample.members)
        return self._bad(
            self.row(number), "member.undecodable", problem, sample.key, member if reason else None
        )

    def _changed(self, row: int, span: bytes) -> BadSampleError:
        from tasks.loader import culprit  # here, because most loader workers never meet a bad sample

        key = self._key(row) or culprit.key_in_header(span)
        member, reason = culprit.in_span(span, key)
        problem = "its CRC32C differs from the index, so its bytes changed after the build"
        return self._bad(row, "member.checksum", f"{problem}{reason and f' ({reason})'}", key, member)

    def _bad(
        self, row: int, reason: Reason, problem: str, key: str | None = None, member: str | None = None
    ) -> BadSampleError:
        defect = Defect(self.split, *self._place(row), key or self._key(row), member, reason)
        return BadSampleError(f"{defect}: {problem}; {_remedy(self.version, reason)}", defect)

    def _key(self, row: int) -> str:
        """Return the key from the table of samples; empty when that cannot be read."""
        from tasks.loader import culprit

        return culprit.key_of_row(self.version, self.split, row) or ""

    def _path(self, shard: int) -> Path:
        return self.version / shard_name(self.split, shard)

    def _place(self, row: int) -> tuple[str, int]:
        """Return the shard of a row of the index, and the row's place there."""
        shard = int(self._index[row]["shard"])
        return shard_name(self.split, shard), row - self._first_row(shard)

    def _first_row(self, shard: int) -> int:
        # Bisected by hand: numpy would first copy the column, and the mapped index may have 10^9 rows.
        return bisect.bisect_left(
            range(len(self._index)), shard, key=lambda row: int(self._index[row]["shard"])
        )

    def _read_span(self, row: int, shard: int, offset: int, length: int) -> bytes:
        """Read the bytes, or fewer where the file ends: one system call up to the kernel's limit of 2 GiB."""
        descriptor, name = self._opened(shard)
        worker_state.mine.reading(name, row, offset)
        span = os.pread(descriptor, length, offset)
        while len(span) < length and (more := os.pread(descriptor, length - len(span), offset + len(span))):
            span += more
        return span

    def _opened(self, shard: int) -> OpenShard:
        """Return the shard, open; the least recently used one is closed when there are too many."""
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        if len(self._open) >= self._open_shards:
            os.close(self._open.popitem(last=False)[1].descriptor)
        name = worker_state.shard_field(shard_name(self.split, shard))
        worker_state.mine.opening(name)
        self._open[shard] = OpenShard(self._descriptor(shard), name)
        return self._open[shard]

    def _descriptor(self, shard: int) -> int:
        if self.staged is not None:
            with contextlib.suppress(FileNotFoundError):
                return os.open(self.staged / self._copy(shard), os.O_RDONLY)
        source = self._source(shard)
        return os.open(source, os.O_RDONLY) if isinstance(source, Path) else cache().descriptor(source)

    def _copy(self, shard: int) -> str:
        return copy_name(self._resolved, self.split, shard)

    def _forget_copy(self, shard: int) -> None:
        """Drop a damaged copy: it proves nothing about the shard, which is read and judged instead."""
        assert self.staged is not None
        os.close(self._open.pop(shard).descriptor)
        (self.staged / self._copy(shard)).unlink(missing_ok=True)


def _remedy(version: Path, reason: Reason) -> str:
    """Return the fix for a bad sample; it names the version, as the dataset's current one may be another."""
    level = " --full" if reason == "member.undecodable" else ""
    if (version / FOREIGN).exists():
        return f"others wrote its tar: `tarmac repair {version}{level} --quarantine` leaves it out"
    return f"`tarmac repair {version}{level}` repairs it, or leaves it out with --quarantine"
