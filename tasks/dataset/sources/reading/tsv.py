"""Rows of TSV files: most are written without any quotes, those of data frames with CSV's.

To the former a quote is text, to the latter it may open a cell that goes on over further lines. By the rules
of CSV alone a caption that starts with a lone quote would swallow the rows after it, and nobody would know.
So a line is taken by itself wherever that gives as many cells as the header has, and lines are joined where
it does not. The price: a line within a quoted cell that happens to hold that many cells is taken for a row.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from tasks.core.errors import DataError

QUOTE = '"'


def rows(place: str, lines: Iterator[str], longest_cell: int) -> Iterator[tuple[int, list[str]]]:
    """Each row's first line, from 1, and its cells; blank lines are none, and the first row is the header.

    DataError naming `place` for a cell of more than `longest_cell` characters. No more is held than that and
    two lines.
    """
    reading = _Lines(lines)
    width = 0
    while (line := reading.take()) is not None:
        number = reading.number
        found = _quoted_rows(line, reading, width, longest_cell) if QUOTE in line else [_split(line)]
        for further, cells in enumerate(found):
            if not cells:
                continue
            if len(line) > longest_cell and max(map(len, cells)) > longest_cell:
                raise DataError(
                    f"{place}:{number + further}: a cell of more than {longest_cell:,} characters; keep such "
                    "texts in files of their own"
                )
            width = width or len(cells)
            yield number + further, cells


class _Lines:
    """Lines, of which the next can be looked at; `number` is that of the last one taken, from 1."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._ahead: str | None = None
        self.number = 0

    def peek(self) -> str | None:
        if self._ahead is None:
            self._ahead = next(self._lines, None)
        return self._ahead

    def take(self) -> str | None:
        line, self._ahead = self.peek(), None
        self.number += line is not None
        return line


def _quoted_rows(line: str, reading: _Lines, width: int, longest: int) -> Iterable[list[str]]:
    """The row that begins in a line with a quote; one a line where lines turn out to be no one row."""
    plain, quoted = _split(line), _parse([line])
    if width == 0:
        return [quoted or plain]
    if quoted is not None and (len(quoted) == width or len(plain) != width):
        return [quoted]
    if len(plain) == width and (quoted is not None or _fits(reading.peek(), width)):
        return [plain]
    return _joined(line, reading, width, longest)


def _joined(first: str, reading: _Lines, width: int, longest: int) -> Iterable[list[str]]:
    """The row of a line and those after it, if the line's last quote ends in them; else a row for each.

    A line that is a row by itself is none of them, unless the row begins with a cell of several lines: the
    last of these holds all the other cells, and may open another such cell.
    """
    taken = [first]

    def following() -> Iterator[str]:
        yield first
        size = len(first)
        while (line := reading.peek()) is not None and (size := size + len(line)) <= longest:
            is_row = _fits(line, width)
            if is_row and "\t" in first:
                return
            yield line
            if is_row and not ('"\t' in line and '\t"' in line):  # and the quote has not ended
                return
            taken.append(line)
            reading.take()

    cells = _parse(following())
    last = reading.peek()  # where the quote has ended, nobody asked for more
    if cells is None or (len(cells) != width and (_fits(first, width) or _fits(last, width))):
        return map(_split, taken)
    reading.take()
    return [cells]


def _fits(line: str | None, width: int) -> bool:
    """Whether the line is a row by itself; nothing after the end is missed either."""
    if line is None or line.count("\t") + 1 == width:
        return True
    cells = _parse([line]) if QUOTE in line else None
    return cells is not None and len(cells) == width


def _split(line: str) -> list[str]:
    text = line.rstrip("\r\n")
    return text.split("\t") if text else []


def _parse(lines: Iterable[str]) -> list[str] | None:
    """The first row by CSV's rules; None where its quotes break them."""
    try:
        return next(csv.reader(lines, delimiter="\t", strict=True), None)
    except csv.Error:
        return None
