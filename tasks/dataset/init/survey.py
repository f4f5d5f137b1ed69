"""Examine raw data and propose ways to read it, the best one first.

The examination is cheap and bounded: names are listed up to a limit, a few dozen files are opened, and only
the first rows of tables are read. Findings are evidence, not proof: the build checks every sample.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from tasks.core.errors import UsageError
from tasks.core.patterns import pattern_start
from tasks.core.schema.source import TABLES
from tasks.core.stores import absolute_location, is_remote, split_location
from tasks.core.units import counted
from tasks.dataset.init import captions, conversations, tar_folders, volumes
from tasks.dataset.init.columns import MOST_NAMED, SurveyedTables, survey_tables
from tasks.dataset.init.evidence import LONGEST, LOOKED_AT, Reading, observe, shown, spread
from tasks.dataset.init.inventory import IMAGES, NIFTI, NPZ, READ, Inventory, take_inventory
from tasks.dataset.tar.format import LFS

MOST_OF_A_POINTER = 1024
"""Bytes; Git LFS's specification limits its pointers to fewer."""
ORDER = ("shards", "nifti", "npz", "chat", "table", "image_folder")
"""Between readings of equal grade and size, the more specific kind comes first."""


@dataclass(frozen=True)
class PlaceSurvey:
    """What was found in a place; `readings` holds at least one."""

    name: str
    inventory: Inventory
    readings: Sequence[Reading]

    @property
    def best(self) -> Reading:
        return self.readings[0]


def survey(location: str) -> PlaceSurvey:
    """Examine a folder, a file or a pattern, local or remote; UsageError when nothing fits."""
    if not location:
        raise UsageError("PATH: it is empty; give a folder, a file or a pattern")
    location = location.rstrip("/") or "/"
    inventory = take_inventory(location)
    not_fetched = _not_fetched(inventory, location)
    tables = survey_tables(inventory)
    found = [
        *tar_folders.tar_readings(inventory),
        *volumes.volume_readings(inventory, tables),
        *conversations.conversation_readings(inventory, tables),
        *captions.caption_readings(inventory, tables),
    ]
    if not found:
        raise UsageError(shown(_nothing_fits(inventory, tables, location), LONGEST))
    found.sort(key=lambda one: (-one.grade, -one.samples, ORDER.index(one.kind)))
    unreadable = tables.unreadable
    if found[0].is_guess and unreadable:
        images = counted(len(inventory.of(IMAGES)), "image")
        doubt = f"{shown(unreadable[0].file)} may hold the captions of {images}, and it cannot be read"
        way_out = "To use the folders' names as captions, move it out of the folder"
        raise UsageError(shown(f"PATH: {doubt}: {unreadable[0].problem}. {way_out}", LONGEST))
    notes = [*tables.notes, *not_fetched, *captions.unread_heic(inventory)]
    readings = [replace(one, warnings=[*one.warnings, *notes]) for one in found]
    return PlaceSurvey(name_of(location), inventory, readings)


def _not_fetched(inventory: Inventory, location: str) -> list[str]:
    """Return a warning for each kind of file of which some are pointers of Git LFS; UsageError where most of
    a kind are."""
    if is_remote(location):
        return []  # a server of repositories sends the files
    warnings = []
    for suffixes in (IMAGES, TABLES, (*NIFTI, *NPZ), (".tar",)):
        chosen = spread(inventory.of(suffixes), LOOKED_AT)
        pointers = [file for file in chosen if inventory.size(file) < MOST_OF_A_POINTER]
        pointers = [file for file, start in observe(pointers, inventory.start) if start.startswith(LFS)]
        if pointers:
            place, of = shown(location, LONGEST), f"{len(pointers)} of {len(chosen)} looked at"
            problem = f"Git LFS pointers and not the files themselves ({of}, such as {shown(pointers[0])})"
            if 2 * len(pointers) > len(chosen):
                raise UsageError(f"PATH: {place} holds {problem}: run git lfs pull there")
            warnings.append(f"some files are {problem}: run git lfs pull")
    return warnings


def name_of(location: str) -> str:
    """Return a config's name for a place: `data/raw/digits` and `digits.csv` -> `digits`."""
    mark = pattern_start(location)
    last = split_location(location[:mark])[0] if mark is not None else location
    last = last.rstrip("/").rpartition("/")[2]
    stem = re.sub(
        r"\.((csv|tsv|jsonl|ndjson|json)(\.gz)?|parquet|arrow|txt|token|tar)\Z", "", last, flags=re.IGNORECASE
    )
    if last in ("", ".", ".."):
        stem = PurePosixPath(absolute_location(last or ".")).name
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64].rstrip("-._")
    return clean or "dataset"


def _nothing_fits(inventory: Inventory, tables: SurveyedTables, location: str) -> str:
    """Return what the place holds, what is missing, and what can be read."""
    place = shown(location, LONGEST)
    if os.path.isfile(location) and tables.unreadable:
        return f"PATH: {place}: {tables.unreadable[0].problem}"
    about_tables = [
        *(f"{shown(one.file)} cannot be read: {one.problem}" for one in tables.unreadable[:MOST_NAMED]),
        *(captions.unused_table(inventory, one) for one in tables.joined[:MOST_NAMED]),
    ]
    fix = (
        tar_folders.without_use(inventory)
        or volumes.without_reports(inventory)
        or "; ".join(filter(None, [captions.without_captions(inventory), *about_tables]))
    )
    if inventory.datasets and not fix:
        dataset = shlex.quote(shown(inventory.path(inventory.datasets[0]), LONGEST))
        return f"PATH: {place} holds a dataset that Tarmac built; tarmac look {dataset}"
    if os.path.isfile(location):
        return f"PATH: {place}: {fix or f'not a kind of file that Tarmac reads: {READ}'}"
    return f"PATH: {place} holds {inventory.described}; {fix or f'Tarmac reads {READ}'}"
