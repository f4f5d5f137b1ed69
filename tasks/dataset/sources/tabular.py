"""Rows of CSV, TSV, JSON and Parquet files, local or remote, as dictionaries with the line of each.

Rows are streamed: a table of any length takes the memory of a short one, also where gzip has compressed it. A
text file is UTF-8, UTF-16 where its byte order mark indicates that, or in the encoding that the config
states; bytes that are none of its characters are kept (as lone surrogates), so that one bad caption costs one
sample and not the table. The cells of a CSV may also be separated by semicolons, tabs or bars, as
spreadsheets and databases write them: its first line decides, or the config. A table with a broken structure,
such as a CSV's quote that never ends, is an error, since guessing where its rows end would lose samples
silently. A cell or line of excessive length, which would not fit into memory, is an error too.

Most TSV files are written without quotes, while data frames write them with CSV's. In the former a quote is
text, in the latter it may open a cell that continues over several lines. By the rules of CSV alone, a caption
that starts with a lone quote would swallow the rows after it unnoticed. A TSV is therefore read by these
rules only where they fit all of it; otherwise every line is a row, and quotes are text.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TextIO, cast

from tasks.core.errors import DataError, UsageError, instead
from tasks.core.folders import open_store
from tasks.core.schema.source import GZIP, NAMED_TABLES, TABLES, TEXT_TABLES
from tasks.core.stores import StoreUnreachable, redact, split_location, without_query
from tasks.dataset.sources.fields import BYTE_ORDER_MARK, RECODE, WINDOWS, TableRow, parse_json
from tasks.dataset.sources.json_documents import JsonRows, begins_list, listed_rows
from tasks.dataset.sources.raw_files import text_errors
from tasks.dataset.tar.format import LFS, LFS_POINTER
from tasks.dataset.version.rejects import Reject

MOST_COLUMNS = 10_000
"""A file of JSON lines with more different names is no table."""
LONGEST_CELL = 16 << 20
LONGEST_LINE = 64 << 20
"""In characters."""
USUAL = {".csv": ",", ".tsv": "\t", ".txt": ",", ".token": "\t"}
"""The delimiter that the suffix of a table of cells names."""
DELIMITERS = ",\t;|"
csv.field_size_limit(LONGEST_CELL)
NUMBERED = ("image", "number", "caption")
"""The columns of Flickr8k's and Flickr30k's `.token` files."""
NUMBERED_LINE = re.compile(r"[^\t#]+\.[A-Za-z]{3,4}#\d+\t")
SEP_LINE = re.compile('"?sep=(.)"?', re.IGNORECASE)
"""The line that names the delimiter of the others for Excel."""
BEYOND_ASCII = bytes(range(0x80, 0x100))
_QUOTED = re.compile('"[^"]*"?')
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class TextForm:
    """How a table of text is written, as far as the config states it."""

    delimiter: str | None = None
    encoding: str | None = None

    def require_text(self, config_key: str, place: str, is_text: bool, has_cells: bool) -> None:
        """UsageError for a key that a table of this kind cannot follow."""
        if self.encoding is not None and not is_text:
            raise UsageError(f"{config_key}.encoding: {place} is no text; remove the key")
        if self.delimiter is not None and not has_cells:
            raise UsageError(f"{config_key}.delimiter: {place} has no cells with a delimiter; remove the key")


@dataclass(frozen=True)
class OpenTable:
    """An open table: its columns, which of them hold bytes, and its rows, which can be read once."""

    location: str
    columns: list[str]
    rows: Iterator[TableRow]
    binary: frozenset[str] = frozenset()
    columns_vary: bool = False
    """Whether a row may have columns that others lack."""
    count: int | None = None
    """The number of rows, where it is known before they are read."""
    close: Callable[[], None] = lambda: None
    """Closes the file for a caller that reads no rows; reading them to their end closes it too."""
    delimiter: str = ""
    """The character between the cells of a text file."""

    @property
    def name(self) -> str:
        return PurePath(self.location).name


def open_table(
    location: str | Path,
    config_key: str,
    wanted: Collection[str] | None = None,
    image: str | None = None,
    place: str = "",
    form: TextForm | None = None,
) -> OpenTable:
    """Open a table by its suffix; UsageError naming `config_key` when it is not a table, DataError when it
    cannot be read as one. Errors name it as `place`, which defaults to its location.

    Columns of bytes other than `image` are left out. The columns of JSON lines are those of all rows; with
    `wanted` names, only as many rows are read as it takes to find these. A `form` is given where the config
    has keys for it.
    """
    place = place or redact(str(location))
    suffix = table_suffix(without_query(str(location)))
    if not suffix:
        raise UsageError(f"{config_key}: {place} is none of {', '.join(TABLES)}; convert it to one")
    kind = suffix.removesuffix(GZIP)
    has_cells, is_text = kind in USUAL, kind in (*TEXT_TABLES, *NAMED_TABLES)
    if form is not None:
        form.require_text(config_key.removesuffix(".path"), place, is_text, has_cells)
    file, beginning = _opened(str(location), config_key, place, suffix)
    if kind == ".parquet":
        from tasks.dataset.sources.parquet import ParquetRows  # here, so that text is listed without Arrow

        rows = ParquetRows(place, file, image, wanted)
        return OpenTable(place, rows.columns, iter(rows), rows.binary, count=rows.count, close=file.close)
    if kind == ".arrow":
        from tasks.dataset.sources.arrow_files import ArrowFileRows

        found = ArrowFileRows(place, file, image, wanted)
        return OpenTable(place, found.columns, iter(found), found.binary, count=found.count, close=file.close)
    text = _text(file, beginning, "" if has_cells else "\n", form.encoding if form is not None else None)
    if has_cells:
        return _open_cells(place, text, USUAL[kind], form, config_key)
    if kind == ".json" and not begins_list(place, text):
        document = JsonRows(place, text)
        return OpenTable(
            place, document.columns, iter(document), columns_vary=True, count=document.count, close=text.close
        )
    return _open_objects(
        place, text, listed_rows if kind == ".json" else partial(_jsonl_rows, form=form), wanted
    )


def first_bytes(location: str, config_key: str, most: int) -> bytes:
    """Return the first `most` bytes of a table of text, unpacked, without a character that is cut at their
    end; raises as `open_table` does."""
    place, suffix = redact(location), table_suffix(without_query(location))
    file, _ = _opened(location, config_key, place, suffix)
    with file, text_errors(place, lambda: "its beginning"):
        content = file.read(most)
    return content if len(content) < most else content.rstrip(BEYOND_ASCII)


def table_suffix(name: str) -> str:
    """Return the suffix of a table's name in lower case, such as `.csv.gz`; "" if it is no table's."""
    return max(
        (suffix for suffix in (*TABLES, *NAMED_TABLES) if name.lower().endswith(suffix)), key=len, default=""
    )


def _opened(location: str, config_key: str, place: str, suffix: str) -> tuple[BinaryIO, bytes]:
    """Return the open file at its beginning, unpacked as it is read, and its first bytes."""
    folder, name = split_location(location)
    try:
        file = open_store(folder, config_key).open(name, in_order=suffix != ".parquet")
    except StoreUnreachable:
        raise
    except (FileNotFoundError, NotADirectoryError):
        start = "" if PurePath(place).is_absolute() else "; paths start at the working directory"
        raise UsageError(f"{config_key}: there is no file {place}{start}") from None
    except OSError as error:
        raise UsageError(f"{config_key}: {place} cannot be read: {error.strerror or error}") from None
    try:
        with text_errors(place, lambda: "its beginning"):
            beginning = _beginning(file)
            if beginning == LFS:
                raise DataError(f"{place} is {LFS_POINTER}")
            if suffix.endswith(GZIP):
                if beginning and not beginning.startswith(_GZIP_MAGIC):
                    raise DataError(f"{place} is not compressed by gzip; rename it without .gz if it is text")
                file = cast(BinaryIO, _Unzipped(file))
                beginning = _beginning(file)
    except DataError:
        file.close()
        raise
    return file, beginning


def _beginning(file: BinaryIO) -> bytes:
    beginning = file.read(len(LFS))
    file.seek(0)
    return beginning


class _Unzipped(gzip.GzipFile):
    """The decompressed content of a file, which is closed with it."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self._packed = packed

    def close(self) -> None:
        super().close()
        self._packed.close()


def require(config_key: str, name: str, columns: Sequence[str], where: str, further: str = "") -> None:
    """UsageError that suggests the nearest column, or lists all, when `name` is none of `columns`; it ends
    with the `further` advice."""
    if name not in columns:
        cut = (sign for sign in DELIMITERS for column in columns if name in column.split(sign))
        sign = next(cut, None)
        fix = instead(name, columns) if sign is None else f"its cells are cut by {sign!r}: mend delimiter"
        raise UsageError(f"{config_key}: {where} has no column {name!r}; {fix}{further}")


def rows_by_key(table: OpenTable, column: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row that has a key, with that key; DataError for a torn row, whose sample is unknown."""
    for row in table.rows:
        if row.fault is not None:
            raise DataError(f"{table.location}:{row.line}: {row.fault}")
        key = row.fields.get(column)
        if key is not None:
            yield str(key), row.fields


def _delimiter(header: str, usual: str) -> str:
    """Return the delimiter of the header's cells: the usual one, or another where the header lacks it.
    Delimiters within quotes do not count."""
    if usual in header:
        return usual
    most = max(DELIMITERS, key=header.count)
    return most if most in header else usual


def _first_line(lines: Iterator[str], text: TextIO) -> str:
    """Return the first of a file's lines that is not blank, and leave the file at its beginning."""
    first = next((line for line in lines if line.strip()), "")
    text.seek(0)
    return first.rstrip("\r\n")


def _cell_lines(place: str, text: TextIO) -> Iterator[str]:
    """Yield the lines of a table of cells, with a blank one in place of Excel's `sep=;`."""
    is_first = True
    for line in _lines(place, text):
        if is_first and line.strip():
            is_first = False
            line = "\n" if SEP_LINE.fullmatch(line.rstrip("\r\n")) else line
        yield line


def _numbered_rows(place: str, text: TextIO) -> Iterator[TableRow]:
    """Yield the rows of a file without header: an image, the number of its caption, and the caption."""
    for line, cells in _tsv_rows(place, text):
        image, sign, number = cells[0].rpartition("#")
        if sign and number.isdigit() and len(cells) == 2:
            yield TableRow(line, dict(zip(NUMBERED, (image, int(number), cells[1]), strict=True)))
        else:
            yield TableRow(line, {}, "no IMAGE#NUMBER and caption with a tab between them")


def _open_cells(place: str, text: TextIO, usual: str, form: TextForm | None, config_key: str) -> OpenTable:
    stated = form.delimiter if form is not None else None
    first = _first_line(_lines(place, text), text)
    if stated is None and NUMBERED_LINE.match(first):
        return OpenTable(place, list(NUMBERED), _numbered_rows(place, text), close=text.close)
    unquoted = _QUOTED.sub("", _first_line(_cell_lines(place, text), text))
    named = SEP_LINE.fullmatch(first)
    found = named[1] if named else _delimiter(unquoted, usual)
    if stated is not None and stated not in unquoted and found in unquoted:
        text.close()
        there, fix = ("tabs", "tab") if found == "\t" else (repr(found), repr(found))
        problem = f"the first line of {place} has no {stated!r}, but {there}; write delimiter: {fix}"
        raise UsageError(f"{config_key.removesuffix('.path')}.delimiter: {problem}")
    delimiter = stated or found
    has_quotes = True
    if usual == delimiter == "\t":
        has_quotes = _is_quoted(_cell_lines(place, text))
        text.seek(0)
    # People write a space after each comma; a quote after it would be text.
    further = unquoted.split(delimiter)[1:]
    has_spaces = bool(further) and all(cell.startswith(" ") for cell in further)
    rows = _csv_rows(place, text, delimiter, has_spaces) if has_quotes else _tsv_rows(place, text)
    header = next(rows, None)
    if header is None:
        raise DataError(f"{place} is empty; its first line names the columns")
    _require_text(place, "".join(header[1]), form)
    return _named_cells(place, text, delimiter, header[1], rows)


def _named_cells(
    place: str, text: TextIO, delimiter: str, header: Sequence[str], rows: Iterator[tuple[int, list[str]]]
) -> OpenTable:
    """Return the table of these rows. Spreadsheets write a header with empty cells at its end, which are no
    columns where the cells below them are empty too."""
    columns = list(header)
    while columns and not columns[-1].strip():
        columns.pop()
    for name in columns:
        if columns.count(name) > 1:
            raise DataError(f"{place}: two columns are named {name!r}; rename one")
    width, too_many = len(columns), f"cells in {len(columns)} columns; quote a text that holds the delimiter"

    def row(line: int, cells: list[str]) -> TableRow:
        if len(cells) > width and (len(cells) > len(header) or "".join(cells[width:]).strip()):
            return TableRow(line, {}, f"{len(cells)} {too_many}")
        return TableRow(line, dict(zip(columns, cells, strict=False)))

    return OpenTable(place, columns, starmap(row, rows), close=text.close, delimiter=delimiter)


def _csv_rows(place: str, text: TextIO, delimiter: str, has_spaces: bool) -> Iterator[tuple[int, list[str]]]:
    line = 1
    with text as file:
        lines = _cell_lines(place, file)
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=has_spaces, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            long = f"texts of more than {LONGEST_CELL:,} characters in files of their own"
            fix = f"mend the quotes of this row, and keep {long}"
            raise DataError(f"{place}:{line}: {error}; {fix}") from None


def _is_quoted(lines: Iterator[str]) -> bool:
    """Whether CSV's rules give every row as many cells as the first, and no cell that may swallow rows."""
    width = 0
    try:
        for cells in csv.reader(lines, delimiter="\t", strict=True):
            width = width or len(cells)
            if cells and (len(cells) != width or any("\t" in cell and "\n" in cell for cell in cells)):
                return False
    except csv.Error:
        return False
    return True


def _tsv_rows(place: str, text: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line that is not blank, from 1, and its cells, where quotes are text."""
    with text as file:
        for number, line in enumerate(_cell_lines(place, file), 1):
            cells = line.rstrip("\r\n").split("\t")
            if max(map(len, cells)) > LONGEST_CELL:
                problem = f"a cell of more than {LONGEST_CELL:,} characters"
                raise DataError(f"{place}:{number}: {problem}; keep such texts in files of their own")
            if cells != [""]:
                yield number, cells


def _open_objects(
    place: str,
    text: TextIO,
    rows_of: Callable[[str, TextIO], Iterator[TableRow]],
    wanted: Collection[str] | None,
) -> OpenTable:
    columns: dict[str, None] = {}
    for row in rows_of(place, text):
        columns.update(dict.fromkeys(row.fields))
        if len(columns) > MOST_COLUMNS:
            raise DataError(f"{place}:{row.line}: more than {MOST_COLUMNS:,} names of columns so far")
        if wanted is not None and columns.keys() >= set(wanted):
            break
    text.seek(0)

    def rows() -> Iterator[TableRow]:
        with text:
            yield from rows_of(place, text)

    return OpenTable(place, list(columns), rows(), columns_vary=True, close=text.close)


def _jsonl_rows(place: str, text: TextIO, form: TextForm | None) -> Iterator[TableRow]:
    for number, line in enumerate(_lines(place, text), 1):
        if number == 1:
            _require_text(place, line[:2], form)
        if not line.strip():
            continue
        try:
            fields = parse_json(line)
        except Reject as reject:
            yield TableRow(number, {}, reject.detail)
            continue
        is_object = isinstance(fields, dict)
        yield TableRow(number, fields) if is_object else TableRow(number, {}, "no JSON object")


def _lines(place: str, file: TextIO) -> Iterator[str]:
    number = 0
    with text_errors(place, lambda: f"line {number + 1} and on"):
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise DataError(f"{place}: a line of over {LONGEST_LINE:,} characters, as no table has it")
            yield line if number > 1 else line.removeprefix(BYTE_ORDER_MARK)


def _require_text(place: str, start: str, form: TextForm | None) -> None:
    """DataError when the first line is UTF-16 without a byte order mark, or not in its encoding at all."""
    is_wide = "\0" in start
    if not is_wide and not any("\udc80" <= char <= "\udcff" for char in start):
        return
    if form is None:
        raise DataError(f"{place} is not UTF-8; save it as UTF-8{'' if is_wide else RECODE}")
    if form.encoding is not None:
        raise DataError(f"{place} is not {form.encoding}; mend encoding: in its source")
    likely = "encoding: utf-16-le" if is_wide else f"encoding: cp1252 if {WINDOWS}"
    raise DataError(f"{place} is not UTF-8; give its source the right encoding, such as {likely}")


def _text(file: BinaryIO, beginning: bytes, newline: str, stated: str | None) -> TextIO:
    """Return the file as text, in the encoding that the config states or its byte order mark names. Only
    UTF-16 that ends within a character raises an error when it is read; other bytes that are no characters
    become lone surrogates."""
    has_mark = beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    name = codecs.lookup(stated or ("utf-16" if has_mark else "utf-8-sig")).name
    errors = "surrogatepass" if name.startswith(("utf-16", "utf-32")) else "surrogateescape"
    encoding = "utf-8-sig" if name == "utf-8" else name
    return io.TextIOWrapper(cast(Any, file), encoding=encoding, errors=errors, newline=newline)
