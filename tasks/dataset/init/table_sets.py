"""Tables that belong together: same folder, same suffix, same columns; a set is one source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from tasks.core.units import count, counted
from tasks.dataset.init.evidence import spread
from tasks.dataset.init.inventory import Inventory, config_path
from tasks.dataset.init.profile import MOST_ROWS, Broken, Profile, merged, profile
from tasks.dataset.sources.tabular import SUFFIXES

MOST_TABLES = 24
FEW_ROWS = 2_000


@dataclass(frozen=True)
class TableSet:
    """Files of the same columns, those of them that were looked at, and the path that means them all."""

    files: Sequence[str]
    looked_at: Sequence[Profile]
    path: str

    @cached_property
    def profile(self) -> Profile:
        """Those looked at as one."""
        return merged(self.looked_at)

    @property
    def rows(self) -> int:
        return round(self.profile.rows * len(self.files) / len(self.looked_at))

    @property
    def is_about(self) -> bool:
        return len(self.looked_at) < len(self.files) or self.profile.is_about

    @property
    def among(self) -> str:
        """` in 20,000 rows looked at`, for the profile's figures; "" where these are all rows."""
        is_whole = self.profile.looked_at == self.rows and not self.is_about
        return "" if is_whole else f" in {counted(self.profile.looked_at, 'row')} looked at"

    @property
    def described(self) -> str:
        about = "about " if self.is_about else ""
        name = self.files[0] if len(self.files) == 1 else counted(len(self.files), "table")
        faults = self.profile.faults
        torn = f", {count(faults)} of them torn" if faults else ""
        return f"{name}: {about}{counted(self.rows, 'row')}{torn}"


@dataclass(frozen=True)
class Tables:
    """All tables of a place in sets, the longest first, and those that cannot be read."""

    sets: Sequence[TableSet]
    broken: Sequence[Broken]

    def warnings(self) -> list[str]:
        return [f"{one.file} is left out: {one.why}" for one in self.broken[:3]]


def look_at_tables(inventory: Inventory) -> Tables:
    files = inventory.of(SUFFIXES)
    chosen = spread(files, MOST_TABLES)
    rows = MOST_ROWS if len(chosen) <= 4 else FEW_ROWS
    looked = [profile(inventory, file, rows) for file in chosen]
    groups: dict[tuple[str, str, tuple[str, ...]], list[Profile]] = defaultdict(list)
    for one in looked:
        if isinstance(one, Profile) and one.rows:
            groups[*_place(one.file), tuple(one.columns)].append(one)
    beside: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in files:
        beside[_place(file)].append(file)
    not_looked = set(files) - set(chosen)
    sets = []
    for (folder, suffix, _), profiles in groups.items():
        its = {one.file for one in profiles}
        others = [file for file in beside[folder, suffix] if file not in its]
        is_all = all(file in not_looked for file in others)
        sets.append(
            _set(inventory, folder, suffix, profiles, beside[folder, suffix] if is_all else sorted(its))
        )
    broken = [one for one in looked if isinstance(one, Broken)]
    return Tables(sorted(sets, key=lambda one: (-one.rows, one.path)), broken)


def _set(
    inventory: Inventory, folder: str, suffix: str, profiles: Sequence[Profile], files: Sequence[str]
) -> TableSet:
    if len(files) == 1:
        return TableSet(files, profiles, inventory.path(files[0]))
    if not inventory.is_folder and len(files) == len(inventory.files):
        return TableSet(files, profiles, inventory.given)
    inside = config_path(inventory.store.location, folder)
    everything = [file for file in inventory.files if _place(file) == (folder, suffix)]
    if len(files) == len(everything):
        return TableSet(files, profiles, f"{inside}/*{suffix}")
    names = ",".join(PurePosixPath(file).stem for file in files)
    return TableSet(files, profiles, f"{inside}/{{{names}}}{suffix}")


def _place(file: str) -> tuple[str, str]:
    """Folder and suffix, the suffix as it is written."""
    path = PurePosixPath(file)
    return ("" if str(path.parent) == "." else str(path.parent)), path.suffix
