"""What the tables in a place hold, judged by their first rows, and what their columns are for.

Tables with the same folder, suffix and header make up one source. A table is read no further than MOST_ROWS;
the number of rows of a longer one is an estimate, except for Parquet, whose footer states it.
"""

from __future__ import annotations

import csv
import json
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from tasks.core.errors import TarmacError, UsageError
from tasks.core.patterns import expand
from tasks.core.schema.source import GZIP, NAMED_TABLES, TABLES, TEXT_TABLES
from tasks.core.stores import AHEAD, StoreUnreachable, is_remote, join_location, without_query
from tasks.core.units import counted
from tasks.dataset.init.column_counts import SPLIT_COLUMNS, SPLIT_NAMES, ColumnCounts, add_row
from tasks.dataset.init.encodings import encoding_of
from tasks.dataset.init.evidence import enumerate_names, observe, shown, spread
from tasks.dataset.init.inventory import IMAGES, Inventory, config_path, suffix_of
from tasks.dataset.sources.raw_files import is_cache
from tasks.dataset.sources.tabular import (
    DELIMITERS,
    NUMBERED_LINE,
    USUAL,
    TextForm,
    first_bytes,
    open_table,
    table_suffix,
)

MOST_TABLES = 24
MOST_ROWS = 20_000
FEW_ROWS = 2_000
"""Rows to read of each table where there are many."""
HEAD_BYTES = 4 << 20
"""Bytes of a table by which its encoding is judged."""
KEPT_ROWS = 200
"""Rows that are kept whole, so that nested cells can be examined."""
MOST_CLASSES = 200
MOST_NAMED = 3
"""Tables that a message names."""

_DOCUMENT = re.compile(rb'"(images|annotations)"\s*:\s*\[')
_WILDCARDS = re.compile(r"([*?[])")
SAVED, SPLITS = "data-*.arrow", "dataset_dict.json"
"""The rows of a dataset that `save_to_disk` wrote, and the file beside the folders of its splits."""

IMAGE_NAMES = ("image", "img", "jpg", "png", "picture", "photo", "image_bytes", "bytes")
CAPTION_NAMES = ("caption", "text", "title", "description", "prompt", "alt", "txt", "alt_text", "sentence")
KEY_NAMES = ("key", "id", "uid", "uuid", "image_id", "sample_id", "sha256", "md5", "hash")
LABEL_NAMES = ("label", "class", "category", "class_name", "label_name")


@dataclass(frozen=True)
class SurveyedTable:
    """A table, or several `files` with the same header that `path` covers together.

    `rows` counts those of all files and is exact unless `is_estimate`; `columns` and `kept` are from the
    `looked_at` first rows. `problem` is why the table cannot be read, "" where it can. `delimiter` and
    `encoding` are set where they are other than a table's name and first bytes state.
    """

    files: Sequence[str]
    path: str
    columns: Mapping[str, ColumnCounts] = field(default_factory=dict)
    rows: int = 0
    is_estimate: bool = False
    looked_at: int = 0
    kept: Sequence[Mapping[str, Any]] = ()
    problem: str = ""
    delimiter: str = ""
    encoding: str | None = None

    @property
    def file(self) -> str:
        return self.files[0]

    def named(self, *names: str) -> ColumnCounts | None:
        """The first column with one of these names, in lower case."""
        found = {column.name.lower(): column for column in reversed(list(self.columns.values()))}
        return next((found[name] for name in names if name in found), None)

    @property
    def described(self) -> str:
        """`2 tables, about 20,000 rows; columns file, caption`."""
        files = f"{counted(len(self.files), 'table')}, " if len(self.files) > 1 else ""
        rows = f"{'about ' if self.is_estimate else ''}{counted(self.rows, 'row')}"
        return f"{files}{rows}; columns {enumerate_names(list(self.columns), 8)}"

    @property
    def among(self) -> str:
        """` in 20,000 rows looked at`, for figures of columns; "" where these are all rows."""
        is_whole = self.looked_at == self.rows and not self.is_estimate
        return "" if is_whole else f" in {counted(self.looked_at, 'row')} looked at"


@dataclass(frozen=True)
class SurveyedTables:
    """The tables of a place that were read: each by itself, and all readable ones joined by header, the
    longest first."""

    each: Sequence[SurveyedTable]
    joined: Sequence[SurveyedTable]

    @property
    def unreadable(self) -> list[SurveyedTable]:
        return [one for one in self.each if one.problem]

    @property
    def notes(self) -> list[str]:
        """A line for each table that cannot be read, for the first MOST_NAMED of them."""
        unreadable = self.unreadable[:MOST_NAMED]
        return [f"{shown(one.file)} is not used, as it cannot be read: {one.problem}" for one in unreadable]


def survey_tables(inventory: Inventory, files: Sequence[str] | None = None) -> SurveyedTables:
    """Read the first rows of the `files`, which default to all tables of the place."""
    if files is None:
        files = [file for file in inventory.of(TABLES) if not is_cache(file)]
        documents = [] if inventory.is_folder else inventory.of((".json", f".json{GZIP}"))
        files += documents or _named_tables(inventory)
    chosen = spread(files, MOST_TABLES)
    most_rows = MOST_ROWS if len(chosen) <= 4 else FEW_ROWS
    each = [survey_table(inventory, file, most_rows) for file in chosen]
    alike: dict[tuple[Any, ...], list[SurveyedTable]] = defaultdict(list)
    for one in each:
        if one.rows:
            form = one.delimiter, one.encoding
            alike[*_home_and_suffix(inventory, one.file), *form, *one.columns].append(one)
    joined = [_join(inventory, tables, set(files) - set(chosen)) for tables in alike.values()]
    return SurveyedTables(each, sorted(joined, key=lambda one: (-one.rows, one.path)))


def _named_tables(inventory: Inventory) -> list[str]:
    """Return the files with a suffix of other things, too, that begin like a table of images."""
    paired = {posixpath.splitext(image)[0] for image in inventory.of(IMAGES)}
    files = [file for file in inventory.of(NAMED_TABLES) if posixpath.splitext(file)[0] not in paired]
    captions = [file for file in files if "caption" in posixpath.basename(file).lower()]
    others = [file for file in files if not captions or not suffix_of(file).startswith(".json")]
    chosen = spread(list(dict.fromkeys([*captions, *others])), MOST_TABLES)
    return [file for file, begins in observe(chosen, partial(_begins_like_a_table, inventory)) if begins]


def _begins_like_a_table(inventory: Inventory, file: str) -> bool:
    head = first_bytes(join_location(inventory.store.location, file), "PATH", AHEAD)
    if suffix_of(file).startswith(".json"):
        is_document = _DOCUMENT.search(head) is not None
        is_list = head.lstrip().startswith(b"[") and any(f'{kind}"'.encode() in head for kind in IMAGES)
        return is_document or is_list
    lines = [line for line in head.decode(encoding_of(head) or "utf-8-sig", "replace").splitlines() if line]
    if len(lines) < 2 or NUMBERED_LINE.match(lines[0]):
        return bool(lines) and NUMBERED_LINE.match(lines[0]) is not None
    sign = next((sign for sign in DELIMITERS if sign in lines[0]), None)
    header, row = ([suffix_of(cell.strip()) in IMAGES for cell in line.split(sign)] for line in lines[:2])
    return sign is not None and any(row) and not any(header)


def survey_table(inventory: Inventory, file: str, most_rows: int) -> SurveyedTable:
    """Read a table's first rows; Unreachable."""
    location, path = join_location(inventory.store.location, file), inventory.path(file)
    form = TextForm()
    try:
        form = _form_of(location)
        table = open_table(location, "PATH", wanted=(), form=form)
        columns = {name: ColumnCounts(name, name in table.binary) for name in table.columns}
        if table.binary and suffix_of(file) == ".arrow":
            most_rows = KEPT_ROWS  # its columns are not read apart, so each row is read with its image
        kept: list[Mapping[str, Any]] = []
        looked_at = characters = 0
        for row in islice(table.rows, most_rows):
            looked_at += 1
            characters += len(json.dumps(list(row.fields.values()), ensure_ascii=False, default=str))
            if len(kept) < KEPT_ROWS:
                kept.append(row.fields)
            add_row(columns, row.fields)
    except StoreUnreachable:
        raise
    except (TarmacError, OSError) as error:
        problem = str(error).replace(location, file).removeprefix("PATH: ")
        if problem.startswith(f"{file} is "):  # whoever shows it names the file before
            problem = f"it{problem.removeprefix(file)}"
        problem = shown(problem, 160)
        return SurveyedTable([file], path, problem=problem)
    found = SurveyedTable([file], path, columns, looked_at, False, looked_at, kept, encoding=form.encoding)
    if not looked_at:
        return replace(found, problem="it has a header and no rows" if columns else "it is empty")
    if table.delimiter not in ("", USUAL.get(suffix_of(file).removesuffix(GZIP))):
        found = replace(found, delimiter=table.delimiter)
    if looked_at < most_rows or table.count is not None:
        return replace(found, rows=table.count or looked_at)
    table.close()
    rows = max(looked_at, round(_size(inventory, file) * looked_at / max(characters, 1)))
    return replace(found, rows=rows, is_estimate=True)


def _form_of(location: str) -> TextForm:
    """Return the encoding and the delimiter of a table of text where its reader would not find them."""
    suffix = table_suffix(without_query(location)).removesuffix(GZIP)
    if suffix not in (*TEXT_TABLES, *NAMED_TABLES):
        return TextForm()
    head = first_bytes(location, "PATH", HEAD_BYTES)
    encoding = encoding_of(head)
    return TextForm(_delimiter(head, encoding, USUAL[suffix]) if suffix in USUAL else None, encoding)


def _delimiter(head: bytes, encoding: str | None, usual: str) -> str | None:
    """Return the delimiter that gives all first rows the same number of cells, more than any other does,
    where the usual one stands in the header too and would be taken; else None."""
    lines = head.decode(encoding or "utf-8-sig", "replace").splitlines(keepends=True)[:KEPT_ROWS]
    if not lines or usual not in lines[0] or NUMBERED_LINE.match(lines[0]):
        return None
    widths = {sign: _width(lines, sign) for sign in (usual, *DELIMITERS)}
    best = max(widths, key=lambda sign: widths[sign])
    return best if best != usual and widths[best] > 1 else None


def _width(lines: Sequence[str], delimiter: str) -> int:
    """Return the number of cells that all rows have; 0 where they differ."""
    try:
        widths = {len(cells) for cells in csv.reader(lines, delimiter=delimiter) if cells}
    except csv.Error:
        return 0
    return widths.pop() if len(widths) == 1 else 0


def _size(inventory: Inventory, file: str) -> int:
    """Return the bytes of a table's content. A file of gzip ends with their number, modulo 2^32."""
    size = inventory.size(file)
    if not file.lower().endswith(GZIP):
        return size
    return max(size, int.from_bytes(inventory.store.read_end(file, 4), "little"))


def _join(inventory: Inventory, tables: Sequence[SurveyedTable], unread: set[str]) -> SurveyedTable:
    """Join tables with the same header. Unread files belong to them where all that were read beside do."""
    folder, suffix = place = _home_and_suffix(inventory, tables[0].file)
    beside = [
        file for file in inventory.files if not is_cache(file) and _home_and_suffix(inventory, file) == place
    ]
    read = {one.file for one in tables}
    files = beside if read | unread >= set(beside) else sorted(read)
    path = tables[0].path
    if len(files) > 1:
        path = _pattern(inventory, files, beside, folder, suffix)
        _require_covered(inventory, files, path, suffix)
    columns = {name: ColumnCounts(name) for name in tables[0].columns}
    for one in tables:
        for name, column in one.columns.items():
            columns[name].merge(column)
    rows = round(sum(one.rows for one in tables) * len(files) / len(tables))
    is_estimate = len(tables) < len(files) or any(one.is_estimate for one in tables)
    kept = [fields for one in tables for fields in one.kept]
    looked_at = sum(one.looked_at for one in tables)
    found = SurveyedTable(files, path, columns, rows, is_estimate, looked_at, kept)
    return replace(found, delimiter=tables[0].delimiter, encoding=tables[0].encoding)


def _pattern(
    inventory: Inventory, files: Sequence[str], beside: Sequence[str], folder: str, suffix: str
) -> str:
    """Return the pattern of the tables in a folder and in those of its splits; `beside` are all that there
    are."""
    if not inventory.is_folder and len(files) == len(inventory.files):
        return inventory.given
    home = _escaped(config_path(inventory.store.location, folder))
    below = [posixpath.relpath(file, folder or ".") for file in files]
    folders = sorted({posixpath.dirname(file) for file in below})
    names = {posixpath.basename(file) for file in below}
    if len(files) < len(beside) or ("" in folders and len(folders) > 1):
        name = f"{{{','.join(_escaped(file.removesuffix(suffix)) for file in below)}}}{suffix}"
        return f"{home}/{name}"
    is_saved = suffix == ".arrow" and all(name.startswith("data-") for name in names)
    name = _escaped(names.pop()) if len(names) == 1 else SAVED if is_saved else f"*{suffix}"
    folders = list(map(_escaped, folders))
    several = f"{{{','.join(folders)}}}/" if len(folders) > 1 else f"{folders[0]}/" if folders[0] else ""
    return f"{home}/{several}{name}"


def _escaped(name: str) -> str:
    """Return a local name as a pattern that stands for it alone."""
    return name if is_remote(name) else _WILDCARDS.sub(r"[\1]", name)


def _require_covered(inventory: Inventory, files: Sequence[str], pattern: str, suffix: str) -> None:
    """UsageError where a pattern does not stand for these files, because a name holds one of its signs."""
    if is_remote(inventory.store.location) or pattern == inventory.given:
        return
    with suppress(UsageError):
        if {os.path.abspath(inventory.path(file)) for file in files} <= set(
            expand(pattern, [suffix.lower()])
        ):
            return
    odd = next((file for file in files if set(file) & set("{},")), inventory.given)
    raise UsageError(
        f"PATH: {shown(odd)} holds a brace or a comma, which mean choices in a pattern of several tables; "
        "rename it, or give one of the tables"
    )


def _home_and_suffix(inventory: Inventory, file: str) -> tuple[str, str]:
    """Return the folder and the suffix as they are written; for the folder of a split, the one of all."""
    parent, _, name = (folder := posixpath.dirname(file)).rpartition("/")
    is_saved = bool(folder) and posixpath.join(parent, SPLITS) in inventory.names
    is_split = is_saved or name.lower() in SPLIT_NAMES
    return parent if is_split else folder, file[len(file) - len(suffix_of(file)) :]


def path_columns(table: SurveyedTable) -> list[ColumnCounts]:
    """Return the columns that hold paths of images."""
    return [one for one in table.columns.values() if one.share("image") - one.share("address") >= 0.5]


def image_column(table: SurveyedTable) -> ColumnCounts | None:
    """Prefer bytes to paths and paths to addresses, then a column with an image's name, then the first."""
    columns = list(table.columns.values())
    for candidates in (
        [one for one in columns if one.is_binary],
        path_columns(table),
        [one for one in columns if one.share("image address") >= 0.5],
        [one for one in columns if one.share("address") >= 0.9 and one.is_called(("url",))],
    ):
        if candidates:
            return next((one for one in candidates if one.is_called(IMAGE_NAMES)), candidates[0])
    return None


def caption_columns(
    columns: Mapping[str, ColumnCounts], image: ColumnCounts | None = None
) -> list[ColumnCounts]:
    """Return the columns that may hold captions, the likeliest first."""
    scores: list[tuple[float, ColumnCounts]] = []
    for column in columns.values():
        points_elsewhere = max(column.share("image"), column.share("address")) > 0.1
        is_other = column is image or column.name.lower() in (*KEY_NAMES, *SPLIT_COLUMNS) or _is_class(column)
        is_text = column.is_text or column.holds_texts
        if is_text and column.share("worded") >= 0.5 and not points_elsewhere and not is_other:
            scores.append((2 * column.is_called(CAPTION_NAMES) + 2 * column.share("spaced"), column))
    scores.sort(key=lambda scored: -scored[0])
    return [column for score, column in scores if score >= 1]


def _is_class(column: ColumnCounts) -> bool:
    """Whether the column has a label's name and few values that repeat, such as `traffic light`."""
    is_few = 2 <= len(column.values) <= min(MOST_CLASSES, max(2, column.filled // 3))
    return column.name.lower() in LABEL_NAMES and is_few and column.repeats


def label_column(
    table: SurveyedTable, image: ColumnCounts, caption: ColumnCounts | None
) -> ColumnCounts | None:
    """Return a column with few values that repeat: probably the classes.

    Without captions it must have a label's name. Beside captions any name will do, but no numbers, which mean
    nothing to a model of texts.
    """
    for column in table.columns.values():
        most = column.filled // 3 if caption is not None else max(2, column.filled // 3)
        is_few = 2 <= len(column.values) <= min(MOST_CLASSES, most)
        is_other = column in (image, caption) or max(column.share("image"), column.share("address")) > 0.1
        if is_other or column.counts["nested"] or not is_few:
            continue
        is_named = column.name.lower() in LABEL_NAMES
        if caption is None:
            is_label = is_named
        else:
            is_filled = bool(column.counts["text"]) and column.filled >= 0.9 * caption.filled
            is_label = (is_named or is_filled) and not column.is_numeric and not column.split_names
        if is_label:
            return column
    return None
