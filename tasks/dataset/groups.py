"""The rejects of a version by reason: how many, the first few, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.core.formats import shorten
from tasks.dataset.meanings import MEANINGS
from tasks.dataset.patterns import patterns

EXAMPLES = 5
COMPARED = 5000
"""Rejects of a reason in which common traits are sought."""
KEYS = 1000
"""Of accepted samples, to compare the rejects' keys with; from a few PLACES of each split."""
PLACES = 4
COLUMNS = ("original_key", "detail", "source")


@dataclass(frozen=True)
class Group:
    """The rejects of one reason; `examples` are (key, detail, place)."""

    reason: str
    count: int
    examples: Sequence[tuple[str, str, str]] = ()
    patterns: Sequence[str] = ()
    is_sampled: bool = False
    """Whether patterns were sought in the first COMPARED only."""

    @property
    def meaning(self) -> str:
        return MEANINGS.get(self.reason, "")


def counts_only(counts: Mapping[str, int]) -> list[Group]:
    """The groups of a private version, or of one whose table cannot be read; the largest first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [Group(reason, count) for reason, count in ordered if count]


def read_groups(folder: Path, counts: Mapping[str, int]) -> list[Group]:
    """The groups with examples and patterns, from the `rejects.parquet` in a folder; DataError when that
    cannot be read."""
    import pyarrow.compute as pc  # not above: a build's workers would wait for what they do not use

    found: dict[str, list[tuple[str, str, str]]] = {reason: [] for reason, count in counts.items() if count}
    try:
        with pq.ParquetFile(folder / "rejects.parquet") as file:
            for batch in file.iter_batches(columns=["reason", *COLUMNS]):
                wanting = [r for r, rows in found.items() if len(rows) < min(COMPARED, counts[r])]
                if not wanting:
                    break
                for reason in wanting:
                    room = COMPARED - len(found[reason])
                    rows = batch.filter(pc.field("reason") == reason).slice(0, room).to_pylist()
                    found[reason] += [_triple(row) for row in rows]
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"rejects.parquet cannot be read: {str(error).splitlines()[0][:160]}") from None
    accepted = _some_keys(folder) if found else []
    return [_group(group, found[group.reason], accepted) for group in counts_only(counts)]


def reject_lines(folder: Path, counts: Mapping[str, int], is_private: bool) -> list[str]:
    """A line a reason, from the `rejects.parquet` in a folder; of private data the counts alone."""
    try:
        groups = counts_only(counts) if is_private else read_groups(folder, counts)
    except DataError:
        groups = counts_only(counts)  # verify is who reports the table's damage
    return [_line(group) for group in groups]


def _line(group: Group) -> str:
    line = f"{group.count:>7,} {group.reason:<22}"
    if group.examples:
        _, detail, place = group.examples[0]
        line += f" {place}: {detail}"
    if group.patterns:
        line += f"   ← {group.patterns[0]}: one cause?"
    return line.rstrip()


def _triple(row: Mapping[str, str | None]) -> tuple[str, str, str]:
    key, detail, source = (row[name] or "" for name in COLUMNS)
    return key, detail, source


def _group(group: Group, rows: Sequence[tuple[str, str, str]], accepted: Sequence[str]) -> Group:
    first = [
        (shorten(key, 80), shorten(detail), shorten(source, 80)) for key, detail, source in rows[:EXAMPLES]
    ]
    shared = [shorten(pattern.text, 200) for pattern in patterns(rows, accepted)]
    return Group(group.reason, group.count, first, shared, is_sampled=group.count > len(rows))


def _some_keys(version: Path) -> list[str]:
    """Original keys of accepted samples; of a build that failed there are none, nor of a torn table."""
    keys: list[str] = []
    tables = sorted((version / "samples").glob("*.parquet"))
    for path in tables:
        try:
            with pq.ParquetFile(path) as file:
                groups = range(0, file.num_row_groups, -(-file.num_row_groups // PLACES) or 1)
                each = max(1, KEYS // max(1, len(groups) * len(tables)))
                for group in groups:
                    rows = next(file.iter_batches(each, [group], ["original_key"]), None)
                    keys += rows.column(0).to_pylist() if rows is not None else []
        except (OSError, ValueError, pa.ArrowException):
            continue
    return [key for key in keys if key is not None]
