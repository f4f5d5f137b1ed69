"""What each shard of a version should be: its checksum; place, checksum and raw file of each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.dataset.build.sidecar import SAMPLE_COLUMNS, accepted, first
from tasks.dataset.index import read_index
from tasks.dataset.layout import INPUTS
from tasks.dataset.manifest import Manifest, content_digest
from tasks.dataset.repair.examine import NOTHING
from tasks.dataset.repair.identity import TAR
from tasks.dataset.tables import Batches, read_table
from tasks.dataset.tar.writer import END

COLUMNS = ("key", "original_key", "file", "size", "stamp", "content", "offset", "length", "crc32c")
ROWS = pa.schema([(name, SAMPLE_COLUMNS[name]) for name in COLUMNS])


@dataclass(frozen=True, slots=True)
class Built:
    """A shard as it was built: a row of `shards.parquet`."""

    name: str
    blake3: str
    bytes: int
    samples: int

    @property
    def split(self) -> str:
        return self.name.partition("/")[0]


def read_built(version: Path) -> list[Built]:
    """All shards in their order; OSError, pyarrow.ArrowException or KeyError of a damaged table."""
    table = read_table(version / "shards.parquet").select(["name", "blake3", "bytes", "samples"])
    return [Built(**row) for row in table.to_pylist() if TAR.fullmatch(row["name"])]


def read_recipes(version: Path, manifest: Manifest | None) -> Recipes:
    """The shards that the version's manifest vouches for; DataError when its table is not the manifest's."""
    try:
        shards = read_built(version)
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise DataError(f"shards.parquet is damaged ({error}), so nothing says what it was") from None
    if manifest is None or content_digest((one.name, one.blake3) for one in shards) != manifest.digest:
        raise DataError("manifest and shards.parquet do not agree, so nothing says what it was")
    return Recipes(version, {shard.name: shard for shard in shards})


@dataclass(frozen=True)
class Recipes:
    """The shards of a version by name, and what tables tell of their samples."""

    version: Path
    shards: Mapping[str, Built]

    def rows(self, shard: Built) -> Any | None:
        """A table of ROWS, one for each sample in the tar; None when no table tells. Where inputs.arrow is
        damaged the raw samples are known by their keys alone."""
        for read in (self._of_inputs, self._of_index):
            try:
                rows = read(shard)
            except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, DataError):
                continue
            if rows is not None and _fits(rows, shard):
                return rows
        return None

    def _of_inputs(self, shard: Built) -> Any | None:
        number = self._numbers.get(shard.name)
        if number is None:
            return None
        table = self._batches[number]
        return accepted(table).select(list(COLUMNS)) if first(table, "blake3") == shard.blake3 else None

    def _of_index(self, shard: Built) -> Any:
        start = self._starts[shard.name]
        index = read_index(self.version, shard.split)[start : start + shard.samples]
        keys = self._keys(shard.split).slice(start, shard.samples)
        nothing = dict.fromkeys(COLUMNS, pa.nulls(shard.samples))
        spans = {name: pa.array(np.ascontiguousarray(index[name])) for name in ("offset", "length", "crc32c")}
        named = {name: keys.column(name) for name in keys.column_names}
        return pa.table({**nothing, **named, **spans}).cast(ROWS)

    @cached_property
    def _batches(self) -> Batches:
        return Batches(self.version / INPUTS)

    @cached_property
    def _numbers(self) -> dict[str | None, int]:
        """The batch of each tar."""
        batches = Batches(self.version / INPUTS, ("tar",))
        return {first(batches[number], "tar"): number for number in range(len(batches))}

    @cached_property
    def _starts(self) -> dict[str, int]:
        """The row of each shard's first sample in its split."""
        rows: Counter[str] = Counter()
        starts = {}
        for shard in self.shards.values():
            starts[shard.name] = rows[shard.split]
            rows[shard.split] += shard.samples
        return starts

    @cached_property
    def _tables(self) -> dict[str, Any]:
        return {}

    def _keys(self, split: str) -> Any:
        """Keys of the split that was asked for last; shards come split by split."""
        if split not in self._tables:
            self._tables.clear()
            path = self.version / "samples" / f"{split}.parquet"
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                self._tables[split] = file.read(["key", "original_key"])
        return self._tables[split]


def _fits(rows: Any, shard: Built) -> bool:
    """Whether the spans are those of a tar of this size, one after the other, and the keys are there."""
    offsets, lengths = (rows.column(name).to_numpy().astype(np.int64) for name in ("offset", "length"))
    ends = np.cumsum(lengths)
    is_dense = np.array_equal(offsets, np.concatenate([[0], ends[:-1]]))
    is_whole = len(ends) == shard.samples and ends[-1] + len(END) == shard.bytes
    return bool(is_dense and is_whole and rows.column("key").null_count == 0)


def spans_of(rows: Any | None) -> NDArray[np.int64]:
    """Offset, length and CRC32C of each row."""
    if rows is None:
        return NOTHING
    columns = [rows.column(name).to_numpy().astype(np.int64) for name in ("offset", "length", "crc32c")]
    return np.stack(columns, axis=1)
