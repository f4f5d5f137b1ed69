"""Rows of TSV files: most are written without any quotes, those of data frames with CSV's.

To the former a quote is text, to the latter it may open a cell that goes on over further lines. By the rules
of CSV alone a caption that starts with a lone quote would swallow the rows after it, and nobody would know.
So a file is read by these rules only where they fit all of it; else every line is a row.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator


def is_csv(lines: Iterator[str]) -> bool:
    """Whether CSV's rules give every row as many cells as the first, and no cell that would swallow rows."""
    width = 0
    try:
        for cells in csv.reader(lines, delimiter="\t", strict=True):
            width = width or len(cells)
            if cells and (len(cells) != width or any("\t" in cell and "\n" in cell for cell in cells)):
                return False
    except csv.Error:
        return False
    return True


def rows_of_lines(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The number of each line that is not blank, from 1, and its cells, the first ones being the header.

    Quotes are CSV's in a line that they make a whole row, or that is none without them either; else text.
    """
    width = 0
    for number, line in enumerate(lines, 1):
        if not (text := line.rstrip("\r\n")):
            continue
        cells = text.split("\t")
        if '"' in text:
            quoted = _unquoted(text)
            if quoted is not None and (len(quoted) == width or len(cells) != width):
                cells = quoted
        width = width or len(cells)
        yield number, cells


def _unquoted(line: str) -> list[str] | None:
    """The line's cells by CSV's rules; None where its quotes break them."""
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    except csv.Error:
        return None
