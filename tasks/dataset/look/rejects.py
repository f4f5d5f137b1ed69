"""The rejects of a version by reason: how many, the first few, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.core.formats import shorten
from tasks.dataset.meanings import MEANINGS
from tasks.dataset.patterns import patterns

EXAMPLES = 5
COMPARED = 5000
"""Rejects of a reason in which common traits are sought."""
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


def read_groups(version: Path, counts: Mapping[str, int], accepted: Sequence[str]) -> list[Group]:
    """The groups with examples and patterns; DataError when `rejects.parquet` cannot be read."""
    found: dict[str, list[tuple[str, str, str]]] = {reason: [] for reason, count in counts.items() if count}
    try:
        with pq.ParquetFile(version / "rejects.parquet") as file:
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
    return [_group(group, found[group.reason], accepted) for group in counts_only(counts)]


def _triple(row: Mapping[str, str | None]) -> tuple[str, str, str]:
    key, detail, source = (row[name] or "" for name in COLUMNS)
    return key, detail, source


def _group(group: Group, rows: Sequence[tuple[str, str, str]], accepted: Sequence[str]) -> Group:
    first = [
        (shorten(key, 80), shorten(detail), shorten(source, 80)) for key, detail, source in rows[:EXAMPLES]
    ]
    shared = [shorten(pattern.text, 200) for pattern in patterns(rows, accepted)]
    return Group(group.reason, group.count, first, shared, is_sampled=group.count > len(rows))
