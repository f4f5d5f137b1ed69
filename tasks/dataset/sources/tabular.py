"""Rows of CSV, TSV, JSON lines and Parquet files, as dictionaries with the line each stands on.

Bytes that are not UTF-8 are kept (as lone surrogates), so that one bad caption costs one sample and not the
table. A table whose structure is broken, such as a quote that never ends, is an error: guessing where its
rows end would lose samples silently. JSON lines are held in memory whole, because their columns are known
only at the end.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError, UsageError


@dataclass(frozen=True, slots=True)
class Row:
    """One row: where it begins (line, or row of a Parquet file, from 1), and its fields or its fault."""

    line: int
    fields: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class Table:
    """A table that is open: its columns, and its rows to be read once."""

    path: Path
    columns: list[str]
    rows: Iterator[Row]


def open_table(path: Path, config_key: str) -> Table:
    """Open a table by its suffix; UsageError naming `config_key` when that is no table."""
    reader = FORMATS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{config_key}: {path} is none of {', '.join(FORMATS)}; convert it to one")
    if not path.is_file():
        raise UsageError(f"{config_key}: there is no file {path}; paths start at the working directory")
    try:
        return reader(path)
    except OSError as error:
        raise UsageError(f"{config_key}: {path} cannot be read: {error.strerror or error}") from None


def _open_csv(path: Path, delimiter: str = ",") -> Table:
    rows = _csv_rows(path, delimiter)
    header = next(rows, None)
    if header is None:
        raise DataError(f"{path} is empty; its first line names the columns")
    columns = header[1]
    for name in columns:
        if columns.count(name) > 1:
            raise DataError(f"{path}: two columns are named {name!r}; rename one")
    return Table(path, columns, (_csv_row(line, columns, cells) for line, cells in rows))


def _open_tsv(path: Path) -> Table:
    return _open_csv(path, "\t")


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        line = 1
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{path}:{line}: {error}; mend the quotes of this row") from None


def _csv_row(line: int, columns: list[str], cells: list[str]) -> Row:
    if len(cells) > len(columns):
        fault = f"{len(cells)} cells in {len(columns)} columns; quote a text that holds the delimiter"
        return Row(line, {}, fault)
    return Row(line, dict(zip(columns, cells, strict=False)))


def _open_jsonl(path: Path) -> Table:
    rows = []
    columns: dict[str, None] = {}
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                rows.append(Row(number, {}, "no valid JSON"))
                continue
            if not isinstance(fields, dict):
                rows.append(Row(number, {}, "no JSON object"))
                continue
            columns.update(dict.fromkeys(fields))
            rows.append(Row(number, fields))
    return Table(path, list(columns), iter(rows))


def _open_parquet(path: Path) -> Table:
    import pyarrow as pa  # here, so that tables of text are listed without its start-up
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise DataError(f"{path} is no Parquet file: {error}") from None
    schema = file.schema_arrow
    for field in schema:
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            raise DataError(
                f"{path}: column {field.name!r} is binary, which no table of paths holds; drop it"
            )
    return Table(path, list(schema.names), _parquet_rows(path, file))


def _parquet_rows(path: Path, file: Any) -> Iterator[Row]:
    import pyarrow as pa

    line = 1
    try:
        for batch in file.iter_batches(batch_size=4096):
            columns = [_values(column) for column in batch.columns]
            for cells in zip(*columns, strict=True):
                yield Row(line, dict(zip(batch.schema.names, cells, strict=True)))
                line += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: row {line} and on cannot be read: {error}") from None


def _values(column: Any) -> list[Any]:
    """The column's Python values; text is decoded here, as Arrow does not check that it is UTF-8."""
    import pyarrow as pa

    for text, raw in ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())):
        if column.type == text:
            values = column.cast(raw).to_pylist()
            return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]
    return list(column.to_pylist())


FORMATS: dict[str, Callable[[Path], Table]] = {
    ".csv": _open_csv,
    ".tsv": _open_tsv,
    ".jsonl": _open_jsonl,
    ".ndjson": _open_jsonl,
    ".parquet": _open_parquet,
}
