"""Tables about volumes: which column names the files, how many it names, and what the others say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from tasks.core.errors import TarmacError
from tasks.core.stores import Unreachable, join_location
from tasks.core.units import count
from tasks.dataset.init.evidence import listed, shown, spread
from tasks.dataset.init.inventory import Inventory, suffix_of
from tasks.dataset.init.profile import Broken, Column, Profile, profile
from tasks.dataset.keys import stem
from tasks.dataset.sources.tabular import SUFFIXES, open_table

MOST_TABLES = 24
LOOKED_AT_ROWS = 2_000
MOST_ROWS = 1_000_000
REPORT_WORDS = ("finding", "impression", "report", "text", "description", "conclusion")
CHARACTERS = 20
"""A report's texts are longer than this on average, where the column's name does not tell."""
METADATA = ("XYSpacing", "ZSpacing")

Role = Literal["reports", "labels", "metadata"]


@dataclass(frozen=True)
class About:
    """A table about the volumes: its `key` column names `matched` of their files."""

    role: Role
    path: str
    key: str
    matched: int
    profile: Profile

    @property
    def columns(self) -> list[Column]:
        return [column for name, column in self.profile.columns.items() if name != self.key]

    @property
    def report_columns(self) -> list[str]:
        """Those that are named as reports are, else the longest texts."""
        texts = [column for column in self.columns if is_report(column)]
        named = [one.name for one in texts if is_named_report(one)]
        longest = max(texts, key=lambda one: one.share(one.characters), default=None)
        return named or ([longest.name] if longest is not None else [])

    def described(self, files: int) -> str:
        return f"{shown(self.path)}: {shown(self.key)} matches {count(self.matched)} of {count(files)} files"

    def has(self, *names: str) -> bool:
        return all(name in self.profile.columns for name in names)


def is_report(column: Column) -> bool:
    """Texts that are long, or in a column of a report's name."""
    if not column.texts or column.is_numeric:
        return False
    return is_named_report(column) or column.share(column.characters) >= CHARACTERS


def is_named_report(column: Column) -> bool:
    return any(word in column.name.lower() for word in REPORT_WORDS)


def about_volumes(inventory: Inventory, volumes: Sequence[str]) -> tuple[list[About], list[Broken]]:
    """Every table that names volumes, those that name most first; and tables that cannot be read.

    Where none lies below, the folder around is looked into.
    """
    names = {stem(file.rpartition("/")[2]) for file in volumes}
    candidates = spread(inventory.of(SUFFIXES), MOST_TABLES) or _around(inventory)
    found: list[About] = []
    broken: list[Broken] = []
    for file in candidates:
        looked = profile(inventory, file, LOOKED_AT_ROWS)
        if isinstance(looked, Broken):
            broken.append(looked)
        elif (about := _about(inventory, looked, names)) is not None:
            found.append(about)
    return sorted(found, key=lambda one: (-one.matched, one.path)), broken


def _around(inventory: Inventory) -> list[str]:
    try:
        files = inventory.store.entries("..")[1]
    except OSError:
        return []
    return [f"../{file}" for file in files if suffix_of(file) in SUFFIXES and file[0] != "."][:MOST_TABLES]


def _about(inventory: Inventory, table: Profile, names: set[str]) -> About | None:
    candidates = [name for name, column in table.columns.items() if column.texts or column.is_numeric]
    matched = _matches(inventory, table.file, candidates, names)
    key = max(candidates, key=lambda name: matched[name], default=None)
    if key is None or not matched[key]:
        return None
    others = [column for name, column in table.columns.items() if name != key]
    role: Role
    if any(is_report(column) for column in others):
        role = "reports"
    elif all(name in table.columns for name in METADATA):
        role = "metadata"
    elif others and all(column.is_flag for column in others):
        role = "labels"
    else:
        return None
    return About(role, table.file, key, matched[key], table)


def _matches(inventory: Inventory, file: str, columns: Sequence[str], names: set[str]) -> Mapping[str, int]:
    """How many of the names stand in each column, with or without suffix."""
    found: dict[str, set[str]] = {column: set() for column in columns}
    try:
        table = open_table(join_location(inventory.store.location, file), "PATH", wanted=())
        for row in islice(table.rows, MOST_ROWS):
            for column in columns:
                name = stem(str(row.fields.get(column)))
                if name in names:
                    found[column].add(name)
    except Unreachable:
        raise
    except (TarmacError, OSError):
        pass  # it is torn further down; what was read tells enough, and the build names the line
    return {column: len(its) for column, its in found.items()}


def summary_of_labels(about: About) -> str:
    return f"{len(about.columns)} labels: {listed([column.name for column in about.columns])}"
