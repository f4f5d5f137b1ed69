"""Tables about volumes: which column names the files, and what the others say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from tasks.core.errors import TarmacError
from tasks.core.stores import Unreachable, join_location
from tasks.core.units import count
from tasks.dataset.init.evidence import Key, listed, shown
from tasks.dataset.init.files import Inventory, suffix_of
from tasks.dataset.init.tables import FEW_ROWS, MOST_TABLES, Column, Profile, Tables, profile
from tasks.dataset.keys import stem
from tasks.dataset.sources.tabular import SUFFIXES, open_table

MOST_ROWS = 1_000_000
REPORT_WORDS = ("finding", "impression", "report", "text", "description", "conclusion")
REPORT_CHARACTERS = 20
"""A report is longer than this on average, where the column's name does not say that it is one."""
METADATA = ("XYSpacing", "ZSpacing")

Role = Literal["reports", "labels", "metadata"]


@dataclass(frozen=True)
class VolumeTable:
    """A table whose column `key` names volumes; `path` is a pattern where it lies in several files."""

    role: Role
    path: str
    key: str
    names: frozenset[str]
    profile: Profile

    @property
    def columns(self) -> list[Column]:
        return [column for name, column in self.profile.columns.items() if name != self.key]

    @property
    def report_columns(self) -> list[str]:
        """Those that are named as reports are, else the one with the longest texts."""
        texts = [column for column in self.columns if _is_report(column)]
        longest = max(texts, key=lambda one: one.share("characters"))
        return [one.name for one in texts if _is_named_report(one)] or [longest.name]

    def matches(self, files: Sequence[str]) -> str:
        return f"matches {count(len(self.names))} of {count(len(files))} files"

    def line(self, files: Sequence[str]) -> str:
        line = f"{shown(self.path)}: {shown(self.key)} {self.matches(files)}"
        if self.role == "reports":
            return f"{line}; text {listed(self.report_columns)}"
        if self.role == "labels":
            return f"{line}; {len(self.columns)} labels: {listed([column.name for column in self.columns])}"
        return line

    def config_key(self, files: Sequence[str], why: str = "", is_alternative: bool = False) -> Key:
        value: dict[str, object] = {"path": self.path, "key": self.key}
        if self.role == "reports":
            value["text"] = self.report_columns
        return Key(self.role, value, self.matches(files) + why, is_alternative)


def tables_about(
    inventory: Inventory, files: Sequence[str], all_tables: Tables
) -> tuple[dict[Role, VolumeTable], list[str]]:
    """The table of each role that names most of the volumes, and warnings about tables that are not used.

    Where no table lies below, those in the folder around are looked at.
    """
    names = frozenset(stem(file.rpartition("/")[2]) for file in files)
    profiles = all_tables.profiles or _tables_around(inventory)
    tables = [table for one in profiles if (table := _table(inventory, one, names)) is not None]
    tables.sort(key=lambda one: (-len(one.names), one.path))
    chosen: dict[Role, VolumeTable] = {}
    unused: list[str] = []
    roles: tuple[Role, ...] = ("reports", "labels", "metadata")
    for role in roles:
        its = [table for table in tables if table.role == role]
        if its:
            chosen[role], others = _joined(its)
            unused += [shown(table.path) for table in others]
    warnings = Tables(profiles, ()).warnings()
    if unused:
        warnings.append(f"not used, as other tables name these volumes: {listed(unused)}")
    return chosen, warnings


def _tables_around(inventory: Inventory) -> list[Profile]:
    try:
        files = inventory.store.entries("..")[1]
    except OSError:
        return []
    tables = [f"../{file}" for file in files if suffix_of(file) in SUFFIXES and file[0] != "."]
    return [profile(inventory, file, FEW_ROWS) for file in tables[:MOST_TABLES]]


def _joined(tables: Sequence[VolumeTable]) -> tuple[VolumeTable, list[VolumeTable]]:
    """The first table and those of the same columns about other volumes as one; and the tables left over."""
    first, paths, names, others = tables[0], [tables[0].path], tables[0].names, []
    for table in tables[1:]:
        is_alike = table.key == first.key and table.profile.columns.keys() == first.profile.columns.keys()
        if is_alike and names.isdisjoint(table.names) and not set("{,}") & set(first.path + table.path):
            paths.append(table.path)
            names |= table.names
        else:
            others.append(table)
    path = first.path if len(paths) == 1 else f"{{{','.join(paths)}}}"
    return replace(first, path=path, names=names), others


def _table(inventory: Inventory, table: Profile, volumes: frozenset[str]) -> VolumeTable | None:
    """The table as one about volumes; None where it is none."""
    candidates = [name for name, one in table.columns.items() if one.counts["text"] or one.is_numeric]
    matches = _matches(inventory, table.file, candidates, volumes)
    key = max(candidates, key=lambda name: len(matches[name]), default=None)
    if key is None or not matches[key]:
        return None
    others = [column for name, column in table.columns.items() if name != key]
    role: Role
    if any(_is_report(column) for column in others):
        role = "reports"
    elif all(name in table.columns for name in METADATA):
        role = "metadata"
    elif others and all(column.is_flag for column in others):
        role = "labels"
    else:
        return None
    return VolumeTable(role, table.file, key, frozenset(matches[key]), table)


def _matches(
    inventory: Inventory, file: str, columns: Sequence[str], volumes: frozenset[str]
) -> dict[str, set[str]]:
    """The volumes that each column names, with or without suffix."""
    found: dict[str, set[str]] = {column: set() for column in columns}
    try:
        table = open_table(join_location(inventory.store.location, file), "PATH", wanted=())
        for row in islice(table.rows, MOST_ROWS):
            for column in columns:
                name = stem(str(row.fields.get(column)))
                if name in volumes:
                    found[column].add(name)
    except Unreachable:
        raise
    except (TarmacError, OSError):
        pass  # The table is torn further down: what was read is evidence, and the build names the line.
    return found


def _is_report(column: Column) -> bool:
    """Texts that are long, or in a column of a report's name."""
    is_text = column.counts["text"] > 0 and not column.is_numeric
    return is_text and (_is_named_report(column) or column.share("characters") >= REPORT_CHARACTERS)


def _is_named_report(column: Column) -> bool:
    return any(word in column.name.lower() for word in REPORT_WORDS)
