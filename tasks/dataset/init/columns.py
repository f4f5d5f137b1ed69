"""What the tables in a place hold, seen from their first rows, and what their columns are for.

Tables with the same folder, suffix and header are one set, which is one source. A table is read no further
than MOST_ROWS; the number of rows of a longer one is an estimate, but for Parquet, whose end says it.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tasks.core.errors import TarmacError
from tasks.core.stores import StoreUnreachable, is_remote, join_location
from tasks.core.units import counted
from tasks.dataset.init.evidence import LOOKED_AT, shown, spread
from tasks.dataset.init.inventory import IMAGES, Inventory, config_path, suffix_of
from tasks.dataset.sources.tabular import SUFFIXES, open_table

MOST_TABLES = 24
MOST_ROWS = 20_000
FEW_ROWS = 2_000
"""Rows that are looked at in each of many tables."""
KEPT_ROWS = 200
"""Rows that are kept whole, for what their cells hold inside."""
MOST_DISTINCT = 500
MOST_NAMED = 3
"""Tables that a message names."""
MOST_CLASSES = 200

IMAGE_NAMES = ("image", "img", "jpg", "png", "picture", "photo", "image_bytes", "bytes")
CAPTION_NAMES = ("caption", "text", "title", "description", "prompt", "alt", "txt", "alt_text", "sentence")
KEY_NAMES = ("key", "id", "uid", "uuid", "image_id", "sample_id", "sha256", "md5", "hash")
LABEL_NAMES = ("label", "class", "category", "class_name", "label_name")
SPLIT_COLUMNS = ("split", "subset", "partition", "set", "phase")
SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}


@dataclass
class ColumnCounts:
    """Counts over a column's filled cells by what they are: text, number, image, address, list, and so on.

    `values` are the first distinct ones, at most MOST_DISTINCT of each table.
    """

    name: str
    is_binary: bool = False
    filled: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    repeats: bool = False
    values: dict[str, None] = field(default_factory=dict)

    def add(self, cell: Any) -> None:
        if cell is None or cell == "" or cell != cell:
            return
        self.filled += 1
        if isinstance(cell, list | dict):
            self.counts["nested"] += 1
            return
        text = str(cell)
        is_address = is_remote(text)
        path = text.partition("?")[0] if is_address else text
        self.counts["text"] += isinstance(cell, str)
        self.counts["number"] += _is_number(cell)
        self.counts["spaced"] += " " in text.strip()
        self.counts["characters"] += len(text)
        self.counts["address"] += is_address
        self.counts["image"] += suffix_of(path) in IMAGES
        self.counts["image address"] += is_address and suffix_of(path) in IMAGES
        self.repeats |= text in self.values
        if len(self.values) < MOST_DISTINCT:
            self.values[text] = None

    def merge(self, other: ColumnCounts) -> None:
        self.is_binary |= other.is_binary
        self.filled += other.filled
        self.counts += other.counts
        self.repeats |= other.repeats or not self.values.keys().isdisjoint(other.values)
        self.values |= other.values

    def share(self, what: str) -> float:
        """Of the filled cells; of characters their mean number."""
        return self.counts[what] / self.filled if self.filled else 0.0

    def is_called(self, names: Sequence[str]) -> bool:
        name = self.name.lower()
        return name in names or any(part in names for part in name.replace("-", "_").split("_"))

    @property
    def examples(self) -> list[str]:
        return spread(list(self.values), LOOKED_AT)

    @property
    def is_unique(self) -> bool:
        """In the rows looked at."""
        return self.filled > 1 and not self.repeats

    @property
    def is_numeric(self) -> bool:
        return self.filled > 0 and self.counts["number"] == self.filled

    @property
    def is_flag(self) -> bool:
        """Whether it holds only 0 and 1, or -1."""
        return self.is_numeric and {float(value) for value in self.values} <= {0.0, 1.0, -1.0}

    @property
    def is_text(self) -> bool:
        other = self.is_binary or self.is_numeric or self.counts["nested"]
        return self.counts["text"] > 0 and not other

    @property
    def split_names(self) -> list[str]:
        """The names of splits that the column holds; none when it holds something else."""
        names = list(self.values)
        is_named = self.name.lower() in SPLIT_COLUMNS and len(names) <= 10 and "train" in names
        return names if names and (is_named or {name.lower() for name in names} <= SPLIT_NAMES) else []


def add_row(columns: dict[str, ColumnCounts], fields: Mapping[str, Any]) -> None:
    for name, cell in fields.items():
        columns.setdefault(name, ColumnCounts(name)).add(cell)


@dataclass(frozen=True)
class SurveyedTable:
    """A table, or `files` of one header that `path` means together.

    `rows` are those of all files, exact unless `is_estimate`; `columns` and `kept` are of the `looked_at`.
    `problem` says why it cannot be read; "" where it can.
    """

    files: Sequence[str]
    path: str
    columns: Mapping[str, ColumnCounts] = field(default_factory=dict)
    rows: int = 0
    is_estimate: bool = False
    looked_at: int = 0
    kept: Sequence[Mapping[str, Any]] = ()
    problem: str = ""

    @property
    def file(self) -> str:
        return self.files[0]

    def named(self, *names: str) -> ColumnCounts | None:
        """The first column with one of these names, in lower case."""
        found = {column.name.lower(): column for column in reversed(list(self.columns.values()))}
        return next((found[name] for name in names if name in found), None)

    @property
    def size(self) -> str:
        """`about 20,000 rows`."""
        return f"{'about ' if self.is_estimate else ''}{counted(self.rows, 'row')}"

    @property
    def name(self) -> str:
        return shown(self.file) if len(self.files) == 1 else counted(len(self.files), "table")

    @property
    def among(self) -> str:
        """` in 20,000 rows looked at`, for figures of columns; "" where these are all rows."""
        is_whole = self.looked_at == self.rows and not self.is_estimate
        return "" if is_whole else f" in {counted(self.looked_at, 'row')} looked at"


@dataclass(frozen=True)
class SurveyedTables:
    """The tables of a place that were looked at: each by itself, and all that can be read, joined by header,
    the longest first."""

    each: Sequence[SurveyedTable]
    joined: Sequence[SurveyedTable]

    @property
    def unreadable(self) -> list[SurveyedTable]:
        return [one for one in self.each if one.problem]

    def warnings(self) -> list[str]:
        return [
            f"{shown(one.file)} is not used, as it cannot be read: {one.problem}"
            for one in self.unreadable[:MOST_NAMED]
        ]


def look_at_tables(inventory: Inventory) -> SurveyedTables:
    files = inventory.of(SUFFIXES)
    chosen = spread(files, MOST_TABLES)
    most_rows = MOST_ROWS if len(chosen) <= 4 else FEW_ROWS
    each = [look_at_table(inventory, file, most_rows) for file in chosen]
    alike: dict[tuple[Any, ...], list[SurveyedTable]] = defaultdict(list)
    for one in each:
        if one.rows:
            alike[*_folder_and_suffix(one.file), *one.columns].append(one)
    joined = [_join(inventory, its, set(files) - set(chosen)) for its in alike.values()]
    return SurveyedTables(each, sorted(joined, key=lambda one: (-one.rows, one.path)))


def look_at_table(inventory: Inventory, file: str, most_rows: int) -> SurveyedTable:
    """Look at a table's first rows; Unreachable."""
    location, path = join_location(inventory.store.location, file), inventory.path(file)
    try:
        table = open_table(location, "PATH", wanted=())
        columns = {name: ColumnCounts(name, name in table.binary) for name in table.columns}
        kept: list[Mapping[str, Any]] = []
        seen = characters = 0
        for row in islice(table.rows, most_rows):
            seen += 1
            characters += len(json.dumps(list(row.fields.values()), ensure_ascii=False, default=str))
            if len(kept) < KEPT_ROWS:
                kept.append(row.fields)
            add_row(columns, row.fields)
    except StoreUnreachable:
        raise
    except (TarmacError, OSError) as error:
        problem = shown(str(error).replace(location, file).removeprefix("PATH: "), 160)
        return SurveyedTable([file], path, problem=problem)
    if seen < most_rows or table.count is not None:
        return SurveyedTable([file], path, columns, table.count or seen, False, seen, kept)
    table.close()
    rows = max(seen, round(inventory.size(file) * seen / max(characters, 1)))
    return SurveyedTable([file], path, columns, rows, True, seen, kept)


def _join(inventory: Inventory, tables: Sequence[SurveyedTable], not_looked_at: set[str]) -> SurveyedTable:
    """Tables of one header as one. Files that were not looked at belong to it where all that were looked at
    beside them do."""
    folder, suffix = place = _folder_and_suffix(tables[0].file)
    beside = [file for file in inventory.files if _folder_and_suffix(file) == place]
    its = {one.file for one in tables}
    files = beside if its | not_looked_at >= set(beside) else sorted(its)
    if len(files) == 1:
        path = tables[0].path
    elif not inventory.is_folder and len(files) == len(inventory.files):
        path = inventory.given
    else:
        stems = ",".join(posixpath.basename(file).removesuffix(suffix) for file in files)
        name = "*" if len(files) == len(beside) else f"{{{stems}}}"
        path = f"{config_path(inventory.store.location, folder)}/{name}{suffix}"
    columns = {name: ColumnCounts(name) for name in tables[0].columns}
    for one in tables:
        for name, column in one.columns.items():
            columns[name].merge(column)
    return SurveyedTable(
        files,
        path,
        columns,
        round(sum(one.rows for one in tables) * len(files) / len(tables)),
        len(tables) < len(files) or any(one.is_estimate for one in tables),
        sum(one.looked_at for one in tables),
        [fields for one in tables for fields in one.kept],
    )


def _folder_and_suffix(file: str) -> tuple[str, str]:
    """The suffix as it is written."""
    return posixpath.dirname(file), posixpath.splitext(file)[1]


def image_column(table: SurveyedTable) -> ColumnCounts | None:
    """Bytes before paths before addresses; of several the one with an image's name, else the first."""
    columns = list(table.columns.values())
    for candidates in (
        [one for one in columns if one.is_binary],
        [one for one in columns if one.share("image") - one.share("address") >= 0.5],
        [one for one in columns if one.share("image address") >= 0.5],
        [one for one in columns if one.share("address") >= 0.9 and one.is_called(("url",))],
    ):
        if candidates:
            return next((one for one in candidates if one.is_called(IMAGE_NAMES)), candidates[0])
    return None


def caption_columns(
    columns: Mapping[str, ColumnCounts], image: ColumnCounts | None = None
) -> list[ColumnCounts]:
    """The columns that may be captions, the likeliest first."""
    scores: list[tuple[float, ColumnCounts]] = []
    for column in columns.values():
        points_elsewhere = max(column.share("image"), column.share("address")) > 0.1
        is_other = column is image or column.name.lower() in (*KEY_NAMES, *SPLIT_COLUMNS)
        if column.is_text and not points_elsewhere and not is_other:
            scores.append((2 * column.is_called(CAPTION_NAMES) + 2 * column.share("spaced"), column))
    scores.sort(key=lambda scored: -scored[0])
    return [column for score, column in scores if score >= 1]


def label_column(table: SurveyedTable, image: ColumnCounts, caption: ColumnCounts) -> ColumnCounts | None:
    """A column of few names that come again and again: the classes, perhaps. Numbers of classes say nothing
    to a model of texts."""
    for column in table.columns.values():
        is_few = 2 <= len(column.values) <= min(MOST_CLASSES, column.filled // 3)
        is_other = column in (image, caption) or column.is_numeric or column.counts["nested"]
        if not is_few or is_other or column.split_names:
            continue
        is_named = column.name.lower() in LABEL_NAMES
        if is_named or (column.counts["text"] and column.filled >= 0.9 * caption.filled):
            return column
    return None


def class_column(table: SurveyedTable, image: ColumnCounts) -> ColumnCounts | None:
    """A column of a label's name with few names that come again and again, for a table without captions."""
    return next(
        (
            column
            for column in table.columns.values()
            if column is not image
            and column.name.lower() in LABEL_NAMES
            and not column.counts["nested"]
            and 2 <= len(column.values) <= min(MOST_CLASSES, max(2, column.filled // 3))
        ),
        None,
    )


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
