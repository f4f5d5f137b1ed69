"""The commands that look single samples up: `rejects` lists those that could not be taken."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import AsJson
from flows.commands.output import print_result, say
from tasks.core.errors import UsageError
from tasks.core.units import counted

COLUMNS = ("reason", "source", "original_key", "detail")
"""The columns of a reject in the order in which they are printed."""
WIDEST = 60
"""A longer cell pushes the rest of its line to the right, and not all lines."""


def rejects(
    dataset: Annotated[
        Path, Parameter(help="The folder of a dataset or version, or the rejects.parquet of a stopped build.")
    ],
    /,
    *,
    reason: Annotated[
        str | None, Parameter(help="Only those of this reason, such as image.undecodable.")
    ] = None,
    as_csv: Annotated[bool, Parameter("--csv", help="Print CSV with a header, for other programs.")] = False,
    as_json: AsJson = False,
) -> int:
    """List the raw samples that a build rejected, with their places and reasons.

    Those of private data are listed too: the list stays in your terminal.

    For example:
      tarmac rejects data/digits
      tarmac rejects data/digits --reason image.undecodable --csv
    """
    if as_csv and as_json:
        raise UsageError("--csv, --json: choose one")
    path = _table_at(dataset)
    counts: Counter[str] = Counter(row["reason"] for row in _rows_of(path, ("reason",)))
    if reason is not None and reason not in counts:
        there = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common()) or "none"
        raise UsageError(f"--reason: no sample was rejected as {reason!r}; there are: {there}")
    if as_json:
        return print_result(rejects=list(_rows_of(path, COLUMNS, reason)))
    if as_csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_rows_of(path, COLUMNS, reason))
        return 0
    shown = counts if reason is None else {reason: counts[reason]}
    for line in _lines_of_rejects(path, shown, reason):
        say(line)
    return 0


def _table_at(place: Path) -> Path:
    from tasks.dataset.layout import REJECTS
    from tasks.dataset.preview import version_at

    return place if place.name == REJECTS else version_at(place) / REJECTS


def _rows_of(path: Path, columns: Sequence[str], reason: str | None = None) -> Iterator[dict[str, Any]]:
    from tasks.dataset.tables import read_pieces

    rows = (row for piece in read_pieces(path, columns) for row in piece.to_pylist())
    return rows if reason is None else (row for row in rows if row["reason"] == reason)


def _lines_of_rejects(path: Path, counts: Mapping[str, int], reason: str | None) -> Iterator[str]:
    """Yield a table of the rejects, the number of each reason first; the table is read twice, so that its
    columns stand below each other whatever its length."""
    from tasks.dataset.verify.findings import plain

    if not counts:
        yield "no sample was rejected"
        return
    listed = ", ".join(f"{count:,} {name}" for name, count in Counter(counts).most_common())
    yield f"{counted(sum(counts.values()), 'reject')}: {listed}"

    def cells() -> Iterator[list[str]]:
        yield [name.replace("_", " ").upper() for name in COLUMNS]
        for row in _rows_of(path, COLUMNS, reason):
            yield [plain(row[name] or "") for name in COLUMNS]

    widths = [0] * len(COLUMNS)
    for row in cells():
        widths = [max(width, min(len(cell), WIDEST)) for width, cell in zip(widths, row, strict=True)]
    for row in cells():
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
