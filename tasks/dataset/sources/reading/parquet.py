"""Rows of Parquet files in bounded memory, each wanted byte read once.

A row group may hold gigabytes, so its columns are read page by page through buffers, and a batch takes as
many rows as fit a budget. What must fit into memory, two or three times, is the largest page. Columns of
bytes are not read, but for the one that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from tasks.core.errors import DataError
from tasks.core.stores import Unreachable

BUFFER = 4 << 20
"""Bytes read ahead of each column."""
BATCH_BYTES = 16 << 20
BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One row: where it begins (line, or row of a Parquet file, from 1), and its fields or its fault."""

    line: int
    fields: dict[str, Any]
    fault: str | None = None


class _Torn:
    """A cell that no Python value can be made of."""


TORN = _Torn()


def open_rows(
    place: str, file: BinaryIO, image: str | None
) -> tuple[list[str], frozenset[str], Iterator[Row]]:
    """The columns, those of them that hold bytes, and the rows; DataError. Closes the file at the end."""
    import pyarrow as pa  # here, so that tables of text are listed without its start-up
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True)
        schema = opened.schema_arrow
    except Unreachable:
        raise
    except (pa.ArrowException, OSError) as error:
        file.close()
        raise DataError(f"{place} is no Parquet file: {error}") from None
    binary = frozenset(field.name for field in schema if _holds_bytes(field.type))
    wanted = [name for name in schema.names if name not in binary or name == image]
    return list(schema.names), binary, _rows(place, file, opened, wanted)


def _rows(place: str, source: BinaryIO, file: Any, wanted: Sequence[str]) -> Iterator[Row]:
    import pyarrow as pa

    line = 1
    try:
        with source:
            for group in range(file.num_row_groups):
                batches = file.iter_batches(
                    _batch_rows(file.metadata.row_group(group)), [group], wanted, use_threads=False
                )
                for batch in batches:
                    columns = [_values(column) for column in batch.columns]
                    for cells in zip(*columns, strict=True):
                        yield _row(line, batch.schema.names, cells)
                        line += 1
    except Unreachable:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{place}: row {line} and on cannot be read: {error}") from None


def _row(line: int, names: Sequence[str], cells: Sequence[Any]) -> Row:
    torn = [name for name, cell in zip(names, cells, strict=True) if cell is TORN]
    if torn:
        return Row(line, {}, f"column {torn[0]} holds no valid value")
    return Row(line, dict(zip(names, cells, strict=True)))


def _batch_rows(group: Any) -> int:
    """Rows that fit the budget, if they are all of the same size."""
    each = int(group.total_byte_size) // max(int(group.num_rows), 1)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(each, 1)))


def _holds_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if any(is_kind(kind) for is_kind in (pa.types.is_binary, pa.types.is_large_binary)):
        return True
    if pa.types.is_fixed_size_binary(kind):
        return True
    return any(_holds_bytes(kind.field(n).type) for n in range(kind.num_fields))


def _values(column: Any) -> list[Any]:
    """The column's Python values; text is decoded here, as Arrow does not check that it is UTF-8."""
    import pyarrow as pa

    for text, raw in ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())):
        if column.type == text:
            values = column.cast(raw).to_pylist()
            return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        return [_value(cell) for cell in column]


def _value(cell: Any) -> Any:
    import pyarrow as pa

    try:
        return cell.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return TORN
