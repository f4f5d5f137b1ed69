"""Rows of Parquet files in bounded memory, each wanted byte read once.

A row group may hold gigabytes, so its columns are read page by page through buffers, and a batch takes as
many rows as fit a budget. What a file holds once and its rows repeat (a dictionary) is held once here too,
and becomes a row's value when that row is handed out. What must fit into memory, two or three times, is the
largest page. Columns of bytes are not read, but for the image's, and for those that are used as texts: some
writers (Spark, Impala) do not say that a column's bytes are UTF-8.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.core.stores import Unreachable
from tasks.dataset.sources.fields import Row
from tasks.dataset.sources.files import unreachable

BUFFER = 4 << 20
"""Bytes read ahead of each column."""
BATCH_BYTES = 16 << 20
BATCH_ROWS = 4096


class _Torn:
    """A cell that no Python value can be made of."""


TORN = _Torn()


def open_rows(
    place: str, file: BinaryIO, image: str | None, used: Collection[str] | None
) -> tuple[list[str], frozenset[str], int, Iterator[Row]]:
    """The columns, those of them that hold bytes, how many rows there are, and these; DataError, which is
    Unreachable where the disk or server is to blame. Closes the file at the end.

    A row is at fault when a column that is `used` (None: any) holds no value; elsewhere that is a null. A
    plain column of bytes that is `used`, but for the `image`, counts as one of texts.
    """
    try:
        metadata = pq.read_metadata(file)
        opened = pq.ParquetFile(
            file,
            metadata=metadata,
            buffer_size=BUFFER,
            pre_buffer=False,
            page_checksum_verification=True,
            read_dictionary=_repeating(metadata),
        )
        schema = opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        file.close()
        raise _lost(error, place, "cannot be read") or DataError(
            f"{place} is no Parquet file: {error}"
        ) from None
    for name in schema.names:
        if schema.names.count(name) > 1:
            file.close()
            raise DataError(f"{place}: two columns are named {name!r}; rename one")
    binary = frozenset(field.name for field in schema if _holds_bytes(field.type))
    asked = frozenset(used or ()) - {image}
    texts = frozenset(field.name for field in schema if field.name in asked and _is_plain_bytes(field.type))
    binary -= texts
    wanted = [name for name in schema.names if name not in binary or name == image]
    rows = _rows(place, file, opened, wanted, used, texts)
    return list(schema.names), binary, int(metadata.num_rows), rows


def _repeating(metadata: Any) -> list[str]:
    """Paths of the columns of texts or bytes that are stored with a dictionary in some row group."""
    found: dict[str, None] = {}
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        for number in range(columns.num_columns):
            column = columns.column(number)
            has_dictionary = any("DICTIONARY" in encoding for encoding in column.encodings)
            if has_dictionary and column.physical_type == "BYTE_ARRAY":
                found[column.path_in_schema] = None
    return list(found)


def _rows(
    place: str,
    source: BinaryIO,
    file: Any,
    wanted: Sequence[str],
    used: Collection[str] | None,
    texts: Collection[str],
) -> Iterator[Row]:
    line = 1
    try:
        with source:
            for group in range(file.num_row_groups):
                batches = file.iter_batches(
                    _batch_rows(file.metadata.row_group(group), file.schema_arrow),
                    [group],
                    wanted,
                    use_threads=False,
                )
                for batch in batches:
                    names = batch.schema.names
                    columns = [
                        map(_decoded, _values(column)) if name in texts else _values(column)
                        for name, column in zip(names, batch.columns, strict=True)
                    ]
                    for cells in zip(*columns, strict=True):
                        yield _row(line, names, cells, used)
                        line += 1
    except (pa.ArrowException, OSError) as error:
        what = f"row {line} and on cannot be read"
        raise _lost(error, place, what) or DataError(f"{place}: {what}: {error}") from None


def _lost(error: Exception, place: str, what: str) -> Unreachable | None:
    """The error where disk or server is to blame; Arrow calls damage an OSError too, but gives no number."""
    return unreachable(place, error, what) if isinstance(error, OSError) and error.errno is not None else None


def _row(line: int, names: Sequence[str], cells: Sequence[Any], used: Collection[str] | None) -> Row:
    fields = dict(zip(names, cells, strict=True))
    if TORN in cells:
        for name, cell in fields.items():
            if cell is TORN:
                if used is None or name in used:
                    return Row(line, {}, f"column {name} holds no valid value")
                fields[name] = None
    return Row(line, fields)


def _batch_rows(group: Any, schema: Any) -> int:
    """Rows that fit the budget, if they are all of the same size."""
    each = int(group.total_byte_size) // max(int(group.num_rows), 1)
    each = max(each, *(_fixed_width(field.type) for field in schema), 1)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // each))


def _fixed_width(kind: Any) -> int:
    """Bytes of a value of fixed size, which rows may repeat though the file holds it once."""
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    return max((_fixed_width(kind.field(n).type) for n in range(kind.num_fields)), default=0)


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    if any(is_kind(kind) for is_kind in (pa.types.is_binary, pa.types.is_large_binary)):
        return True
    if pa.types.is_fixed_size_binary(kind):
        return True
    return any(_holds_bytes(kind.field(n).type) for n in range(kind.num_fields))


def _is_plain_bytes(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_plain_bytes(kind.value_type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _values(column: Any) -> Iterator[Any]:
    """The column's Python values, made one by one where they may be large."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _repeated(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        raw = pa.binary() if pa.types.is_string(kind) else pa.large_binary()
        return map(_text, column.cast(raw).to_pylist())
    if pa.types.is_nested(kind) or _holds_bytes(kind):
        return map(_value, column)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit))  # in UTC, whatever zones this machine knows
    if _has_nanoseconds(kind):
        column = column.cast(pa.string())  # Python's times have none
    try:
        return iter(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        return map(_value, column)


def _repeated(column: Any) -> Iterator[Any]:
    """Each value of the dictionary is made when a row first has it."""
    known: dict[int, Any] = {}
    for index in column.indices.to_pylist():
        if index is None:
            yield None
            continue
        if index not in known:
            known[index] = next(_values(column.dictionary.slice(index, 1)))
        yield known[index]


def _text(value: bytes | None) -> str | None:
    """Decoded here, as Arrow does not check that its texts are UTF-8."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _decoded(cell: Any) -> Any:
    return _text(cell) if isinstance(cell, bytes) else cell


def _has_nanoseconds(kind: Any) -> bool:
    has_unit = pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind)
    return bool(has_unit and kind.unit == "ns")


def _value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (KeyError, ValueError, OverflowError, pa.ArrowException):  # KeyError: a zone that is not known
        return TORN
