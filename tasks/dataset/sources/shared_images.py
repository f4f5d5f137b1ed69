"""Rows of a table that share an image, joined to one row with all its captions (`captions: all`).

Rows that name an image by its path may stand anywhere in the table: they go through a private database of
SQLite, which needs no more memory than its cache, and come back image by image in the order of the first row
of each. Rows that hold the image itself are joined where they stand side by side, since holding back all
others would take the table's size once more; an image that comes again later is a duplicate, which the build
reports.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from tasks.dataset.formats.checks import is_blank
from tasks.dataset.sources.fields import NOT_A_TEXT, RECODE, TableRow, row_text, text_of
from tasks.dataset.version.rejects import Reject

MOST_ROWS = 1000
"""Rows per image; a picture with more is most likely a placeholder."""


class JoinedRow(NamedTuple):
    """The row of an image: `row` has all captions in a list, and a list for each further column whose values
    differ; `first` are the fields of its first row that is wanted, by which it is filtered and split."""

    row: TableRow
    first: Mapping[str, Any]


class RowJoiner:
    """Joins the rows of one table after another.

    `wanted` chooses among the rows of an image, or takes all where it wants none; those taken must have the
    same values in the columns `same`.
    """

    def __init__(
        self, image: str, caption: str, wanted: Callable[[Mapping[str, Any]], bool], same: Sequence[str]
    ) -> None:
        self._image = image
        self._caption = caption
        self._wanted = wanted
        self._same = same

    def by_name(self, rows: Iterable[TableRow], name_of: Callable[[TableRow], str]) -> Iterator[JoinedRow]:
        """Yield first the rows without a name, among them torn ones, then a row for each name."""
        database = sqlite3.connect("", isolation_level=None)
        database.execute("CREATE TABLE rows (name BLOB, line INTEGER, value TEXT)")
        database.execute("BEGIN")
        for row in rows:
            name = "" if row.fault is not None else name_of(row)
            if name:
                values = (name.encode("utf-8", "surrogatepass"), row.line, row_text(row.fields))
                database.execute("INSERT INTO rows VALUES (?, ?, ?)", values)
            else:
                yield JoinedRow(row, row.fields)
        database.execute("COMMIT")
        found = database.execute(
            "SELECT MIN(line) OVER (PARTITION BY name) AS first, line, value FROM rows ORDER BY first, line"
        )
        for _, group in groupby(found, key=lambda one: one[0]):
            yield self._joined(TableRow(line, json.loads(value)) for _, line, value in group)
        database.close()

    def side_by_side(
        self, rows: Iterable[TableRow], image_of: Callable[[TableRow], bytes | None]
    ) -> Iterator[JoinedRow]:
        """Yield a row for each run of rows with the same image; those without one stay by themselves."""
        image: bytes | None = None
        run: list[TableRow] = []
        for row in rows:
            found = None if row.fault is not None else image_of(row)
            if run and (found is None or found != image):
                yield self._joined(run)
                run = []
            image = found
            if found is None:
                yield JoinedRow(row, row.fields)
            elif len(run) <= MOST_ROWS:
                cell = run[0].fields[self._image] if run else row.fields[self._image]
                run.append(row._replace(fields={**row.fields, self._image: cell}))  # held once in memory
        if run:
            yield self._joined(run)

    def _joined(self, rows: Iterable[TableRow]) -> JoinedRow:
        group, more = _first_rows(rows)
        first = group[0]
        if more:
            what = f"more than {MOST_ROWS:,} rows share its image, as if it were a placeholder"
            return JoinedRow(TableRow(first.line, {}, what), {})
        kept = [row.fields for row in group if self._wanted(row.fields)] or [row.fields for row in group]
        for name in self._same:
            values = list(dict.fromkeys(str(fields.get(name)) for fields in kept))
            if len(values) > 1:
                what = f"rows of its image differ in {name}: {', '.join(values[:4])}"
                return JoinedRow(TableRow(first.line, {}, what), {})
        return JoinedRow(TableRow(first.line, self._merge(kept)), kept[0])

    def _merge(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for name in dict.fromkeys(name for fields in rows for name in fields):
            values = [fields.get(name) for fields in rows]
            is_same = all(_equal(value, values[0]) for value in values)
            merged[name] = values[0] if is_same else values
        merged[self._image] = rows[0][self._image]  # which the others may write in another way
        cells = [fields.get(self._caption) for fields in rows]
        merged[self._caption] = [
            text for cell in cells for text in (cell if isinstance(cell, list) else [cell])
        ]
        return merged


def _first_rows(rows: Iterable[TableRow]) -> tuple[list[TableRow], bool]:
    """Return at most MOST_ROWS rows, and whether there are more; all are read."""
    kept: list[TableRow] = []
    more = False
    for row in rows:
        more = len(kept) == MOST_ROWS
        if not more:
            kept.append(row)
    return kept, more


def _equal(one: Any, other: Any) -> bool:
    """Whether two cells are the same; NaN, as data frames write a missing one, is itself."""
    return bool(one == other) or (one != one and other != other)


def captions_in(cell: Any, fix: str = RECODE) -> list[str]:
    """Return the captions in a cell, a text or a list of texts, without blank ones; Reject if there are
    none."""
    cells = cell if isinstance(cell, list) else [cell]
    given = [one for one in cells if not _is_missing(one)]
    if not given:
        text_of(cells[0] if cells else None, fix)
        raise Reject("caption.empty", "the caption is blank")
    return [text_of(one, fix).decode().strip() for one in given]


def _is_missing(cell: Any) -> bool:
    return cell is None or cell != cell or cell in NOT_A_TEXT or (isinstance(cell, str) and is_blank(cell))
