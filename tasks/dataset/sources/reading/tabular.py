"""Rows of CSV, TSV, JSON lines and Parquet files, local or remote, as dictionaries with the line of each.

Rows are streamed: a table of any length takes the memory of a short one. Bytes that are not UTF-8 are kept
(as lone surrogates), so that one bad caption costs one sample and not the table. A table whose structure is
broken, such as a quote that never ends, is an error: guessing where its rows end would lose samples silently.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO, TextIO

from tasks.core.errors import DataError, UsageError
from tasks.core.stores import Unreachable, is_remote, open_store, split_location
from tasks.dataset.sources.reading import parquet
from tasks.dataset.sources.reading.parquet import Row

__all__ = ["SUFFIXES", "Row", "Table", "open_table"]

MOST_COLUMNS = 10_000
"""A file of JSON lines with more different names is no table."""


@dataclass(frozen=True)
class Table:
    """A table that is open: its columns, those of them that hold bytes, and its rows to be read once."""

    location: str
    columns: list[str]
    rows: Iterator[Row]
    binary: frozenset[str] = frozenset()
    columns_vary: bool = False
    """Whether a row may have columns that others have not."""

    @property
    def path(self) -> PurePath:
        return PurePath(self.location)

    @property
    def name(self) -> str:
        return self.path.name


def open_table(
    location: str | Path, config_key: str, wanted: Collection[str] | None = None, image: str | None = None
) -> Table:
    """Open a table by its suffix; UsageError naming `config_key` when that is no table.

    Columns of bytes are left out, but for `image`. The columns of JSON lines are those of all rows; with
    `wanted` names, no more rows are looked at than it takes to find these.
    """
    place = str(location)
    suffix = PurePath(place.partition("?")[0] if is_remote(place) else place).suffix.lower()
    reader = FORMATS.get(suffix)
    if reader is None:
        raise UsageError(f"{config_key}: {place} is none of {', '.join(FORMATS)}; convert it to one")
    folder, file = split_location(place)
    store = open_store(folder, config_key)

    def opened() -> BinaryIO:
        return store.open(file, in_order=suffix != ".parquet")

    try:
        return reader(place, opened, wanted, image)
    except Unreachable:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{config_key}: there is no file {place}; paths start at the working directory"
        ) from None
    except OSError as error:
        raise UsageError(f"{config_key}: {place} cannot be read: {error.strerror or error}") from None


Open = Callable[[], BinaryIO]


def _open_csv(place: str, opened: Open, wanted: object, image: object, delimiter: str = ",") -> Table:
    rows = _csv_rows(place, _text(opened()), delimiter)
    header = next(rows, None)
    if header is None:
        raise DataError(f"{place} is empty; its first line names the columns")
    columns = header[1]
    for name in columns:
        if columns.count(name) > 1:
            raise DataError(f"{place}: two columns are named {name!r}; rename one")
    return Table(place, columns, (_csv_row(line, columns, cells) for line, cells in rows))


def _open_tsv(place: str, opened: Open, wanted: object, image: object) -> Table:
    return _open_csv(place, opened, wanted, image, "\t")


def _csv_rows(place: str, text: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    line = 1
    with text as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{place}:{line}: {error}; mend the quotes of this row") from None
        except OSError as error:
            raise _cut(place, line, error) from None


def _csv_row(line: int, columns: list[str], cells: list[str]) -> Row:
    if len(cells) > len(columns):
        fault = f"{len(cells)} cells in {len(columns)} columns; quote a text that holds the delimiter"
        return Row(line, {}, fault)
    return Row(line, dict(zip(columns, cells, strict=False)))


def _open_jsonl(place: str, opened: Open, wanted: Collection[str] | None, image: object) -> Table:
    columns: dict[str, None] = {}
    for row in _jsonl_rows(place, _text(opened(), "\n")):
        columns.update(dict.fromkeys(row.fields))
        if len(columns) > MOST_COLUMNS:
            raise DataError(f"{place}:{row.line}: more than {MOST_COLUMNS:,} names of columns so far")
        if wanted is not None and columns.keys() >= set(wanted):
            break
    return Table(place, list(columns), _jsonl_rows(place, _text(opened(), "\n")), columns_vary=True)


def _jsonl_rows(place: str, text: TextIO) -> Iterator[Row]:
    number = 0
    with text as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _jsonl_row(number, line)
        except OSError as error:
            raise _cut(place, number + 1, error) from None


def _jsonl_row(number: int, line: str) -> Row:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return Row(number, {}, "no valid JSON")
    return Row(number, fields) if isinstance(fields, dict) else Row(number, {}, "no JSON object")


def _open_parquet(place: str, opened: Open, wanted: object, image: str | None) -> Table:
    columns, binary, rows = parquet.open_rows(place, opened(), image)
    return Table(place, columns, rows, binary)


def _text(file: BinaryIO, newline: str = "") -> TextIO:
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _cut(place: str, line: int, error: OSError) -> DataError:
    if isinstance(error, Unreachable):
        return error
    return DataError(f"{place}:{line} and on cannot be read: {error.strerror or error}")


FORMATS: dict[str, Callable[[str, Open, Collection[str] | None, str | None], Table]] = {
    ".csv": _open_csv,
    ".tsv": _open_tsv,
    ".jsonl": _open_jsonl,
    ".ndjson": _open_jsonl,
    ".parquet": _open_parquet,
}
SUFFIXES = tuple(FORMATS)
