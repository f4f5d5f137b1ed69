"""The index of a split: whether it fits the shards, and each shard's rows of it; read a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tasks.core.stores import Unreachable
from tasks.dataset.index import INDEX
from tasks.dataset.tar.writer import END
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.recorded import told
from tasks.dataset.verify.tables import SplitShards

PIECE = 1 << 17
"""Rows that are held at once: 3 MB, and a few times as much while they are compared."""
MOST_SHARDS = 10_000_000


class Misfit(Exception):
    """The index is none, or one of other shards; the text says why."""


def index_name(split: str) -> str:
    return f"index/{split}.npy"


class IndexFile:
    """An index whose header fits its size. Misfit when there is none."""

    def __init__(self, files: Beside, split: str) -> None:
        self._files = files
        self._name = index_name(split)
        try:
            with files.open(self._name) as file:
                self._start, self.rows = _header(file)
        except Unreachable:
            raise
        except OSError as error:
            raise Misfit(told(error)) from None

    def pieces(self) -> Iterator[NDArray[np.void]]:
        """All rows in order."""
        with self._opened() as file:
            left = self.rows
            while left:
                yield _take(file, min(left, PIECE))
                left -= min(left, PIECE)

    def parts(self, counts: NDArray[np.int64]) -> Iterator[NDArray[np.void]]:
        """The rows of one shard after the other, which have so many."""
        with self._opened() as file:
            for count in counts:
                yield _take(file, int(count))

    def counts(self) -> NDArray[np.int64]:
        """The rows of each shard, as the index itself tells them; Misfit when it is not in their order."""
        counts = np.zeros(0, np.int64)
        for piece in self.pieces():
            numbers = piece["shard"].astype(np.int64)
            first = len(counts) - 1 if len(counts) else 0
            steps = np.diff(numbers, prepend=first)
            if ((steps < 0) | (steps > 1)).any() or numbers[-1] > MOST_SHARDS:
                raise Misfit("its rows are not in the order of the shards")
            counts = np.concatenate([counts, np.zeros(numbers[-1] + 1 - len(counts), np.int64)])
            counts += np.bincount(numbers, minlength=len(counts))
        return counts

    def check(self, shards: SplitShards) -> None:
        """Misfit unless the rows are the shards' samples, one after the other."""
        if self.rows != shards.samples.sum():
            raise Misfit(f"{self.rows:,} rows for {shards.samples.sum():,} samples")
        state = _Run(shards)
        for piece in self.pieces():
            state.take(piece)

    def _opened(self) -> BinaryIO:
        try:
            file = self._files.open(self._name)
        except Unreachable:
            raise
        except OSError as error:
            raise Misfit(told(error)) from None
        file.seek(self._start)
        return file


class _Run:
    """The check of one piece after the other: where the last one ended."""

    def __init__(self, shards: SplitShards) -> None:
        self._shards = shards
        self._ends = np.cumsum(shards.samples)
        self._row = 0
        self._total = np.uint64(0)
        """Bytes of all samples so far, and those before the shard that is being looked at."""
        self._before = np.uint64(0)

    def take(self, piece: NDArray[np.void]) -> None:
        rows = np.arange(self._row, self._row + len(piece))
        shard = np.searchsorted(self._ends, rows, side="right")
        if not np.array_equal(piece["shard"], shard):
            raise Misfit("its rows are not in the order of the shards")
        after = np.cumsum(piece["length"], dtype=np.uint64) + self._total
        before = np.concatenate([[self._total], after[:-1]])
        is_first = rows == self._ends[shard] - self._shards.samples[shard]
        starts = before[is_first]
        if not is_first[0]:
            starts = np.concatenate([[self._before], starts])
        base = starts[np.cumsum(np.diff(shard, prepend=shard[0]) > 0)]
        if not np.array_equal(piece["offset"], before - base):
            raise Misfit("its samples do not lie one after the other")
        is_last = rows == self._ends[shard] - 1
        self._check_ends(shard[is_last], (after - base)[is_last])
        self._row += len(piece)
        self._total, self._before = after[-1], base[-1]

    def _check_ends(self, shard: NDArray[np.int64], ends: NDArray[np.uint64]) -> None:
        stated = self._shards.bytes[shard] - len(END)
        wrong = np.flatnonzero(ends != stated.astype(np.uint64))
        if len(wrong):
            name = self._shards.shard(int(shard[wrong[0]])).name
            ends_at, should = int(ends[wrong[0]]), int(stated[wrong[0]])
            raise Misfit(f"its samples end at byte {ends_at:,}, those of {name} at {should:,}")


def _take(file: BinaryIO, count: int) -> NDArray[np.void]:
    try:
        content = file.read(count * INDEX.itemsize)
    except OSError as error:
        raise Misfit(told(error)) from None
    if len(content) != count * INDEX.itemsize:
        raise Misfit("it has changed while it was read")
    return np.frombuffer(content, INDEX) if count else np.empty(0, INDEX)


def _header(file: BinaryIO) -> tuple[int, int]:
    """Where the rows begin, and how many there are; Misfit."""
    size = file.seek(0, 2)
    file.seek(0)
    try:
        if npy.read_magic(file) != (1, 0):
            raise ValueError("not version 1.0 of the format")
        shape, _, dtype = npy.read_array_header_1_0(file)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - numpy raises whatever a torn header leads it to
        raise Misfit(f"it is no index ({str(error)[:100]})") from None
    if dtype != INDEX or len(shape) != 1:
        raise Misfit(f"it is no index: dtype {str(dtype)[:100]}, {len(shape)} dimensions")
    start = file.tell()
    if shape[0] < 0 or size != start + shape[0] * INDEX.itemsize:
        raise Misfit(f"{size:,} bytes, which are not its {shape[0]:,} rows")
    return start, int(shape[0])
