"""A split's table of samples: whether it fits the shards, and the keys of each; read a group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.parquet import Parquet, Torn, open_parquet
from tasks.dataset.verify.tables import SplitShards


def samples_name(split: str) -> str:
    return f"samples/{split}.parquet"


class Rows:
    """A table of samples whose metadata make sense. Torn when there is none."""

    def __init__(self, files: Beside, split: str) -> None:
        self.name = samples_name(split)
        self.table: Parquet = open_parquet(files, self.name, ("key", "shard", "row"))

    def check(self, shards: SplitShards | None, with_keys: bool) -> NDArray[np.int64]:
        """The samples of each shard; Torn unless the rows are those of the index, shard after shard.

        `with_keys` reads the keys, too, of which otherwise nothing is said.
        """
        if shards is not None and self.table.rows != shards.samples.sum():
            raise Torn(f"{self.table.rows:,} rows for {shards.samples.sum():,} samples")
        counts = np.zeros(0 if shards is None else len(shards), np.int64)
        row = 0
        last = 0
        columns = ("key", "shard", "row") if with_keys else ("shard", "row")
        for table in self.table.batches(*columns):
            numbers = _numbers(table, "shard")
            if not np.array_equal(_numbers(table, "row"), np.arange(row, row + len(numbers))):
                raise Torn("its rows are not those of the index")
            steps = np.diff(numbers, prepend=last)
            if len(numbers) and ((steps < 0).any() or numbers[-1] > row + len(numbers)):
                raise Torn("its samples are not in the order of the shards")
            counts = _added(counts, numbers)
            row += len(numbers)
            last = int(numbers[-1]) if len(numbers) else last
        if shards is not None and not np.array_equal(counts, shards.samples):
            raise Torn("its samples are not in the shards of shards.parquet")
        return counts

    def keys(self, counts: NDArray[np.int64]) -> Iterator[list[str]]:
        """The keys of one shard after the other, which have so many."""
        held: list[str] = []
        tables = self.table.batches("key")
        for count in counts:
            while len(held) < count:
                table = next(tables, None)
                if table is None:
                    raise Torn("it has changed while it was read")
                held += table.column("key").to_pylist()
            yield held[: int(count)]
            del held[: int(count)]


def _numbers(table: Any, column: str) -> NDArray[np.int64]:
    values: NDArray[np.int64] = table.column(column).to_numpy().astype(np.int64)
    return values


def _added(counts: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.bincount(numbers, minlength=len(counts))
    return found + np.pad(counts, (0, len(found) - len(counts)))
