"""The tables of a version: Parquet for what others read, Arrow files for what only the next build reads.

`shards.parquet` seals every tar, `samples/<split>.parquet` has one row per sample in the order of the index,
`rejects.parquet` one row per rejected raw sample, and `inputs.arrow` one record batch per shard. All are
written durably and piece by piece, so that none is ever held in memory whole, and the same rows always give
the same Parquet file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.dataset.keys import stem
from tasks.dataset.version.index import DurableWriter
from tasks.dataset.version.layout import SHARDS, samples_name

_TEXT, _COUNT = pa.string(), pa.int64()
SHARDS_SCHEMA = pa.schema(
    {
        "name": _TEXT,
        "split": _TEXT,
        "blake3": _TEXT,
        "bytes": _COUNT,
        "samples": _COUNT,
        "input_digest": _TEXT,
    }
)
REJECTS_SCHEMA = pa.schema(
    dict.fromkeys(("key", "original_key", "reason", "detail", "source", "file"), _TEXT)
)
"""`source` is the place in the source where a person can look the sample up, such as `captions.csv:17`."""
DAMAGED = (OSError, pa.ArrowException, ValueError, KeyError, TypeError, MemoryError)
"""The errors that Arrow raises for a file that is not as it was written."""
ROW_GROUP = 1 << 13
MOST_PIECES = 64
"""How many tables are held before they are merged: a table of one row takes thousands of bytes."""
LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def give_memory_back() -> None:
    """Make Arrow use the system's allocator in this process. Its own allocator keeps what tables have freed,
    which comes to tens of megabytes for a million samples."""
    pa.set_memory_pool(pa.system_memory_pool())


class TableWriter(DurableWriter):
    """Writes a Parquet file from pieces; the file does not depend on how the rows were cut into pieces."""

    def __init__(self, path: Path, schema: Any) -> None:
        super().__init__(path)
        self._schema = schema
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd", write_page_checksum=True)
        self._pieces: list[Any] = []
        self._rows = 0

    def write(self, table: Any) -> None:
        """Append rows of the writer's schema."""
        self._pieces.append(table if table.schema.equals(self._schema) else table.cast(self._schema))
        self._rows += table.num_rows
        if self._rows >= ROW_GROUP:
            self._flush(self._rows // ROW_GROUP * ROW_GROUP)
        elif len(self._pieces) >= MOST_PIECES:
            self._pieces = [pa.concat_tables(self._pieces).combine_chunks()]

    def _flush(self, end: int) -> None:
        """Write the first `end` rows that are held."""
        table = pa.concat_tables(self._pieces).combine_chunks()
        for start in range(0, end, ROW_GROUP):
            group = table.slice(start, min(ROW_GROUP, end - start))
            self._writer.write_table(group, row_group_size=ROW_GROUP)
        self._pieces = [table.slice(end)]
        self._rows = table.num_rows - end

    def _end(self) -> None:
        if self._pieces:
            self._flush(self._rows)
        self._writer.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._writer.is_open = False  # or it would write its end into a closed file when it is collected


def write_table(path: Path, table: Any) -> None:
    """Write a table as Parquet and flush it to disk."""
    with TableWriter(path, table.schema) as writer:
        writer.write(table)


def read_table(path: Path) -> Any:
    """The whole table, with its checksums compared; OSError or pyarrow.ArrowException where it is damaged."""
    return pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)


def read_pieces(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """These columns of a Parquet file as record batches, in order, with their checksums compared; DataError
    when the file cannot be read."""
    try:
        # Without threads: Arrow's threads may outlive the file, and have aborted the interpreter at its exit.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            lacking = set(columns) - set(file.schema_arrow.names)
            if lacking:
                raise KeyError(f"no column {min(lacking)}")
            yield from file.iter_batches(ROW_GROUP, columns=list(columns), use_threads=False)
    except DAMAGED as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: BaseException) -> DataError:
    """The error about a table that Arrow cannot read."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"there is no file {path}; if a version lacks it, see `tarmac verify`")
    problem = str(error).partition("\n")[0][:200] or type(error).__name__
    return DataError(f"{path}: cannot be read ({problem}); see `tarmac verify`")


def read_rows(path: Path, rows: Collection[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Some rows of a Parquet file by their number, with these of its columns that it has; only row groups
    that hold one of them are read. DataError when the file cannot be read."""
    found: dict[int, dict[str, Any]] = {}
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
            start = 0
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                wanted = [row for row in rows if start <= row < stop]
                if wanted:
                    piece = file.read_row_group(group, columns=there, use_threads=False)
                    taken = piece.take([row - start for row in wanted]).to_pylist()
                    found.update(zip(wanted, taken, strict=True))
                start = stop
    except DAMAGED as error:
        raise unreadable(path, error) from None
    return found


@dataclass(frozen=True)
class SampleOrigin:
    """A sample's key, its name in the source and its place there, such as `captions.csv:17`."""

    key: str
    original_key: str
    source: str

    def __str__(self) -> str:
        """What the key does not say of where to look in the raw data: `img/0001.jpg, captions.csv:17`."""
        named = "" if self.key == stem(self.original_key) else self.original_key
        return ", ".join(dict.fromkeys(filter(None, (named, self.source))))


def read_origins(version: Path, split: str, rows: Collection[int]) -> dict[int, SampleOrigin]:
    """Where samples of a split came from, by row. Versions from before places were kept have none; DataError
    when the table cannot be read."""
    found = read_rows(version / samples_name(split), rows, ("key", "original_key", "source"))
    return {
        row: SampleOrigin(*(one.get(name) or "" for name in ("key", "original_key", "source")))
        for row, one in found.items()
    }


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
    """The columns of `samples/<split>.parquet`: `row` numbers the rows of the split's index from 0, `shard`
    the split's shards, `source` is the place that a sample came from, such as `captions.csv:17`;
    `statistics` are the modality's own columns with their Arrow types."""
    columns = {"key": _TEXT, "original_key": _TEXT, "shard": pa.uint32(), "row": pa.uint64()}
    return pa.schema({**columns, "group": _TEXT, "source": _TEXT, **statistics})


class BatchWriter(DurableWriter):
    """Writes an Arrow file of record batches, compressed; each batch can be read without the others."""

    def __init__(self, path: Path, schema: Any) -> None:
        super().__init__(path)
        self._writer = pa.ipc.new_file(self._file, schema, options=LZ4)

    def write(self, table: Any) -> None:
        """Append a table as one batch."""
        self._writer.write_batch(table.combine_chunks().to_batches()[0])

    def _end(self) -> None:
        self._writer.close()


def write_batch(path: Path, table: Any) -> None:
    """Write a table as an Arrow file of one batch, without flushing it to disk."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=LZ4) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0])


class ArrowBatches:
    """An open, memory-mapped Arrow file; OSError or pyarrow.ArrowException where it is damaged."""

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

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))
