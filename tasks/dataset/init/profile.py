"""What the columns of tables hold, told from their first rows.

A table is read no further than MOST_ROWS; of a longer one the number of rows is an estimate, but for Parquet,
whose end tells it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tasks.core.errors import TarmacError
from tasks.core.stores import Unreachable, is_remote, join_location
from tasks.dataset.init.evidence import LOOKED_AT, shown, spread
from tasks.dataset.init.inventory import IMAGE_SUFFIXES, Inventory, suffix_of
from tasks.dataset.sources.fields import Row
from tasks.dataset.sources.tabular import open_table

MOST_ROWS = 20_000
KEPT_ROWS = 200
"""Rows that are kept whole, for what their cells hold inside."""
MOST_DISTINCT = 500


@dataclass
class Column:
    """Counts over a column's cells; `values` are its distinct ones in their order, MOST_DISTINCT a table."""

    name: str
    is_binary: bool = False
    filled: int = 0
    texts: int = 0
    spaced: int = 0
    characters: int = 0
    numbers: int = 0
    named_images: int = 0
    addresses: int = 0
    nested: int = 0
    repeats: bool = False
    values: dict[str, None] = field(default_factory=dict)

    def add(self, cell: Any) -> None:
        if cell is None or cell == "" or cell != cell:
            return
        self.filled += 1
        if isinstance(cell, list | dict):
            self.nested += 1
            return
        text = str(cell)
        self.texts += isinstance(cell, str)
        self.numbers += _is_number(cell)
        self.spaced += " " in text.strip()
        self.characters += len(text)
        self.addresses += is_remote(text)
        self.named_images += suffix_of(text.partition("?")[0] if is_remote(text) else text) in IMAGE_SUFFIXES
        self.repeats |= text in self.values
        if len(self.values) < MOST_DISTINCT:
            self.values[text] = None

    def add_all(self, other: Column) -> None:
        self.is_binary |= other.is_binary
        self.filled += other.filled
        self.texts += other.texts
        self.spaced += other.spaced
        self.characters += other.characters
        self.numbers += other.numbers
        self.named_images += other.named_images
        self.addresses += other.addresses
        self.nested += other.nested
        self.repeats |= other.repeats or not self.values.keys().isdisjoint(other.values)
        self.values |= other.values

    @property
    def examples(self) -> list[str]:
        return spread(list(self.values), LOOKED_AT)

    @property
    def is_unique(self) -> bool:
        """As far as was looked."""
        return self.filled > 1 and not self.repeats

    @property
    def is_numeric(self) -> bool:
        return self.filled > 0 and self.numbers == self.filled

    @property
    def is_flag(self) -> bool:
        """Whether it holds 0 and 1 alone, or some such."""
        return self.is_numeric and {float(value) for value in self.values} <= {0.0, 1.0, -1.0}

    def share(self, what: int) -> float:
        return what / self.filled if self.filled else 0.0


@dataclass(frozen=True)
class Profile:
    """A table: `rows` in all, exact unless `is_about`; `faults` of those `looked_at` could not be read."""

    file: str
    columns: Mapping[str, Column]
    rows: int
    is_about: bool
    looked_at: int
    faults: int
    kept: list[Mapping[str, Any]]

    def named(self, *names: str) -> Column | None:
        """The first column of one of these names, in lower case."""
        found = {column.name.lower(): column for column in reversed(list(self.columns.values()))}
        return next((found[name] for name in names if name in found), None)


@dataclass(frozen=True)
class Broken:
    """A file that cannot be read, and why."""

    file: str
    why: str


def profile(inventory: Inventory, file: str, most_rows: int = MOST_ROWS) -> Profile | Broken:
    """Look at a table's first rows."""
    location = join_location(inventory.store.location, file)
    try:
        table = open_table(location, "PATH", wanted=())
        columns = {name: Column(name, name in table.binary) for name in table.columns}
        kept: list[Mapping[str, Any]] = []
        seen = faults = characters = 0
        for row in islice(table.rows, most_rows):
            seen += 1
            faults += row.fault is not None
            characters += _length(row)
            if len(kept) < KEPT_ROWS:
                kept.append(row.fields)
            for name, cell in row.fields.items():
                columns.setdefault(name, Column(name)).add(cell)
        ended = seen < most_rows
        rows = seen if ended else _all_rows(inventory, file, seen, characters)
    except Unreachable:
        raise
    except (TarmacError, OSError) as error:
        return Broken(file, shown(str(error).replace(location, file).removeprefix("PATH: "), 160))
    return Profile(file, columns, rows, not ended and suffix_of(file) != ".parquet", seen, faults, kept)


def merged(profiles: Sequence[Profile]) -> Profile:
    """Tables of the same columns as one, which has the first one's name."""
    columns = {name: Column(name) for name in profiles[0].columns}
    for one in profiles:
        for name, column in one.columns.items():
            columns[name].add_all(column)
    return Profile(
        profiles[0].file,
        columns,
        sum(one.rows for one in profiles),
        any(one.is_about for one in profiles),
        sum(one.looked_at for one in profiles),
        sum(one.faults for one in profiles),
        [fields for one in profiles for fields in one.kept],
    )


def _length(row: Row) -> int:
    """About how many bytes it takes in a file of text."""
    return len(json.dumps(list(row.fields.values()), ensure_ascii=False, default=str))


def _all_rows(inventory: Inventory, file: str, seen: int, characters: int) -> int:
    if suffix_of(file) == ".parquet":
        import pyarrow.parquet as pq

        with inventory.store.open(file, in_order=False) as opened:
            return int(pq.ParquetFile(opened).metadata.num_rows)
    return max(seen, round(inventory.size(file) * seen / max(characters, 1)))


def _is_number(cell: Any) -> bool:
    if isinstance(cell, bool):
        return True
    try:
        float(cell)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
