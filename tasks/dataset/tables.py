"""The tables of a version: Parquet for whatever others read, Arrow files for what only the next build reads.

`shards.parquet` seals every tar, `samples/<split>.parquet` has a row per sample in the order of the index,
`rejects.parquet` a row per raw sample that was not taken, and `inputs.arrow` a record batch per shard. All
are written durably and piece by piece, so that none is ever held whole, and Parquet files are the same bytes
for the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.dataset.layout import SHARDS

SHARDS_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("split", pa.string()),
        ("blake3", pa.string()),
        ("bytes", pa.int64()),
        ("samples", pa.int64()),
        ("input_digest", pa.string()),
    ]
)
REJECTS_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("key", "original_key", "reason", "detail", "source", "file")]
)
"""`source` is the place in the source that a person looks up, such as `captions.csv:17`."""
DAMAGED = (OSError, pa.ArrowException, ValueError, KeyError, TypeError, MemoryError)
"""Whatever Arrow raises for a file that is not as it was written."""
ROW_GROUP = 1 << 13
MOST_PIECES = 64
"""A table of one row takes thousands of bytes."""
LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def give_memory_back() -> None:
    """Let Arrow use the system's allocator in this process. Its own keeps what tables have freed, which over
    a million samples comes to tens of megabytes."""
    pa.set_memory_pool(pa.system_memory_pool())


class TableWriter:
    """Writes a Parquet file from pieces; how they were cut leaves no trace in the file."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._file = path.open("wb")
        self._schema = schema
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd", write_page_checksum=True)
        self._pieces: list[Any] = []
        self._rows = 0

    def write(self, table: Any) -> None:
        """Append rows of the writer's schema."""
        self._pieces.append(table if table.schema.equals(self._schema) else table.cast(self._schema))
        self._rows += table.num_rows
        if self._rows >= ROW_GROUP:
            self._flush(whole_groups=True)
        elif len(self._pieces) >= MOST_PIECES:
            self._pieces = [pa.concat_tables(self._pieces).combine_chunks()]

    def _flush(self, *, whole_groups: bool) -> None:
        table = pa.concat_tables(self._pieces).combine_chunks()
        end = table.num_rows // ROW_GROUP * ROW_GROUP if whole_groups else table.num_rows
        for start in range(0, end, ROW_GROUP):
            self._writer.write_table(
                table.slice(start, min(ROW_GROUP, end - start)), row_group_size=ROW_GROUP
            )
        self._pieces = [table.slice(end)]
        self._rows = table.num_rows - end

    def _end(self) -> None:
        """Write the rest and flush it to disk."""
        if self._pieces:
            self._flush(whole_groups=False)
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._end()
        finally:
            self._writer.is_open = False  # or it would write its end into a closed file when it is collected
            self._file.close()


def write_table(path: Path, table: Any) -> None:
    """Write and flush a table as Parquet."""
    with TableWriter(path, table.schema) as writer:
        writer.write(table)


def read_table(path: Path) -> Any:
    """The whole table, its checksums compared; OSError or pyarrow.ArrowException as they come."""
    return pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)


def read_pieces(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """These columns of a Parquet file as record batches, in order, their checksums compared; DataError when
    it cannot be read."""
    try:
        # Without threads: Arrow's may outlive the file, and have aborted the interpreter at its end.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            lacking = set(columns) - set(file.schema_arrow.names)
            if lacking:
                raise KeyError(f"no column {min(lacking)}")
            yield from file.iter_batches(ROW_GROUP, columns=list(columns), use_threads=False)
    except DAMAGED as error:
        problem = str(error).partition("\n")[0][:200] or type(error).__name__
        raise DataError(f"{path}: cannot be read ({problem}); see `tarmac verify`") from None


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A row of `shards.parquet`: the tar's name in the version, its seal, and the digest of its inputs."""

    name: str
    split: str
    blake3: str
    bytes: int
    samples: int
    input_digest: str


def read_shards(version: Path) -> list[ShardRecord]:
    """The version's shards, split by split, in order; DataError when the table cannot be read."""
    found: list[ShardRecord] = []
    for piece in read_pieces(version / SHARDS, SHARDS_SCHEMA.names):
        found += map(ShardRecord, *(piece.column(name).to_pylist() for name in SHARDS_SCHEMA.names))
    return found


def samples_schema(statistics: Mapping[str, Any]) -> Any:
    """The columns of `samples/<split>.parquet`: `row` counts from 0 over the split's index, `shard` over its
    shards; `statistics` are the modality's own columns with their Arrow types."""
    columns = {
        "key": pa.string(),
        "original_key": pa.string(),
        "shard": pa.uint32(),
        "row": pa.uint64(),
        "group": pa.string(),
        **statistics,
    }
    return pa.schema(columns.items())


class BatchWriter:
    """Writes an Arrow file of record batches, compressed, each of which can be read without the others."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._file = path.open("wb")
        self._writer = pa.ipc.new_file(self._file, schema, options=LZ4)

    def write(self, table: Any) -> None:
        """Append a table as one batch."""
        self._writer.write_batch(table.combine_chunks().to_batches()[0])

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._writer.close()
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def write_batch(path: Path, table: Any) -> None:
    """Write a table as an Arrow file of one batch. It is not flushed to disk."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=LZ4) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0])


class ArrowBatches:
    """An Arrow file that is open; OSError or pyarrow.ArrowException as they come. Memory-mapped."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._file = pa.memory_map(str(path))
        options = pa.ipc.IpcReadOptions()
        if columns is not None:
            names = pa.ipc.open_file(self._file).schema.names
            options.included_fields = [names.index(name) for name in columns]
        self._reader = pa.ipc.open_file(self._file, options=options)

    def __len__(self) -> int:
        return int(self._reader.num_record_batches)

    def __getitem__(self, number: int) -> Any:
        return pa.Table.from_batches([self._reader.get_batch(number)])
