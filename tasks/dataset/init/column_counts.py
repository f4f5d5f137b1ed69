"""Counts what the cells of a table's column are, by which `init` judges what the column is for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.core.stores import is_remote
from tasks.dataset.init.inventory import IMAGES, suffix_of

MOST_DISTINCT = 500
SPLIT_COLUMNS = ("split", "subset", "partition", "set", "phase")
SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
_WORD = re.compile(r"[^\W\d_]{2}")
"""Unlike in `2013-11-14 17:02:52`."""


@dataclass
class ColumnCounts:
    """Counts of a column's filled cells by type: text, number, image, address and so on; `texts` are lists of
    texts, of which the first counts, and `again` are cells that repeat a value.

    `values` are the first distinct ones, at most MOST_DISTINCT of each table.
    """

    name: str
    is_binary: bool = False
    filled: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    repeats: bool = False
    values: dict[str, None] = field(default_factory=dict)
    last: str = ""

    def add(self, cell: Any) -> None:
        if cell is None or cell == "" or cell != cell:
            return
        self.filled += 1
        if isinstance(cell, list | dict):
            self.counts["nested"] += 1
            if not (isinstance(cell, list) and cell and all(isinstance(one, str) for one in cell)):
                return
            self.counts["texts"] += 1
            cell = cell[0]
        text = str(cell)
        is_address = is_remote(text)
        is_image = suffix_of(text.partition("?")[0] if is_address else text) in IMAGES
        self.counts["text"] += isinstance(cell, str)
        self.counts["number"] += _is_number(cell)
        self.counts["spaced"] += " " in text.strip()
        self.counts["worded"] += _WORD.search(text) is not None
        self.counts["characters"] += len(text)
        self.counts["address"] += is_address
        self.counts["image"] += is_image
        self.counts["image address"] += is_address and is_image
        is_again = text in self.values or text == self.last
        self.counts["again"] += is_again
        self.repeats |= is_again
        self.last = text
        if len(self.values) < MOST_DISTINCT:
            self.values[text] = None

    def merge(self, other: ColumnCounts) -> None:
        self.is_binary |= other.is_binary
        self.filled += other.filled
        self.counts += other.counts
        self.repeats |= other.repeats or not self.values.keys().isdisjoint(other.values)
        self.values |= other.values

    def share(self, what: str) -> float:
        """The share of the filled cells; for `characters`, their mean number."""
        return self.counts[what] / self.filled if self.filled else 0.0

    def is_called(self, names: Sequence[str]) -> bool:
        name = self.name.lower()
        return name in names or any(part in names for part in name.replace("-", "_").split("_"))

    @property
    def is_unique(self) -> bool:
        """Whether no value comes twice in the rows read."""
        return self.filled > 1 and not self.repeats

    @property
    def is_numeric(self) -> bool:
        return self.filled > 0 and self.counts["number"] == self.filled

    @property
    def is_text(self) -> bool:
        other = self.is_binary or self.is_numeric or self.counts["nested"]
        return self.counts["text"] > 0 and not other

    @property
    def holds_texts(self) -> bool:
        """Whether nearly all cells are lists of texts, such as the captions of an image."""
        return self.share("texts") >= 0.9

    @property
    def split_names(self) -> list[str]:
        """The names of splits that the column holds; empty when it holds something else."""
        names = list(self.values)
        is_named = self.name.lower() in SPLIT_COLUMNS and len(names) <= 10 and "train" in names
        return names if names and (is_named or {name.lower() for name in names} <= SPLIT_NAMES) else []


def add_row(columns: dict[str, ColumnCounts], fields: Mapping[str, Any]) -> None:
    for name, cell in fields.items():
        columns.setdefault(name, ColumnCounts(name)).add(cell)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
