"""Look at raw data and say what it may be, the best reading first.

A look is cheap and bounded: names are listed up to a limit, a few dozen files are opened, and of tables the
first rows are read. What is found is evidence, not proof: the build checks every sample.
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
from tasks.core.stores import absolute_location, split_location
from tasks.core.units import counted
from tasks.dataset.init import captions, conversations, tar_folders, volumes
from tasks.dataset.init.columns import MOST_NAMED, SurveyedTables, look_at_tables
from tasks.dataset.init.evidence import LONGEST, Reading, shown
from tasks.dataset.init.inventory import IMAGES, READ, Inventory, take_inventory

ORDER = ("shards", "nifti", "npz", "chat", "table", "image_folder")
"""Of readings that are as good and as large as each other, the one that says more comes first."""


@dataclass(frozen=True)
class PlaceSurvey:
    """What was seen in a place; `readings` holds at least one."""

    name: str
    inventory: Inventory
    readings: Sequence[Reading]

    @property
    def best(self) -> Reading:
        return self.readings[0]


def survey(location: str) -> PlaceSurvey:
    """Look at a folder, a file or a pattern, local or remote; UsageError when nothing fits."""
    if not location:
        raise UsageError("PATH: it is empty; give a folder, a file or a pattern")
    location = location.rstrip("/") or "/"
    inventory = take_inventory(location)
    tables = look_at_tables(inventory)
    found = [
        *tar_folders.tar_readings(inventory),
        *volumes.volume_readings(inventory, tables),
        *conversations.conversation_readings(inventory, tables),
        *captions.caption_readings(inventory, tables),
    ]
    if not found:
        raise UsageError(shown(_nothing_fits(inventory, tables, location), LONGEST))
    found.sort(key=lambda one: (-one.grade, -one.samples, ORDER.index(one.kind)))
    if found[0].is_guess and tables.unreadable:
        table, images_there = tables.unreadable[0], counted(len(inventory.of(IMAGES)), "image")
        doubt = f"{shown(table.file)} may hold the captions of {images_there}, and it cannot be read"
        way_out = "To have the folders' names as captions, move it out of the folder"
        raise UsageError(shown(f"PATH: {doubt}: {table.problem}. {way_out}", LONGEST))
    return PlaceSurvey(name_of(location), inventory, [_with_notes(one, tables) for one in found])


def _with_notes(reading: Reading, tables: SurveyedTables) -> Reading:
    """The reading with what holds for all: tables that cannot be read."""
    return replace(reading, warnings=list(dict.fromkeys([*reading.warnings, *tables.warnings()])))


def name_of(location: str) -> str:
    """A config's name from the place's: `data/raw/digits` and `digits.csv` -> `digits`."""
    mark = pattern_start(location)
    last = split_location(location[:mark])[0] if mark is not None else location
    last = last.rstrip("/").rpartition("/")[2]
    stem = re.sub(r"\.(csv|tsv|jsonl|ndjson|parquet|tar)\Z", "", last, flags=re.IGNORECASE)
    if last in ("", ".", ".."):
        stem = PurePosixPath(absolute_location(last or ".")).name
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64].rstrip("-._")
    return clean or "dataset"


def _nothing_fits(inventory: Inventory, tables: SurveyedTables, location: str) -> str:
    """What was seen, what is missing, and what can be read."""
    place = shown(location, LONGEST)
    about_tables = [f"{shown(one.file)} cannot be read: {one.problem}" for one in tables.unreadable]
    about_tables[MOST_NAMED:] = [captions.unused_table(inventory, one) for one in tables.joined[:MOST_NAMED]]
    fix = (
        tar_folders.without_use(inventory)
        or volumes.without_reports(inventory)
        or conversations.other_conversations(tables)
        or "; ".join(filter(None, [captions.without_captions(inventory), *about_tables]))
    )
    if inventory.datasets and not fix:
        dataset = shlex.quote(shown(inventory.path(inventory.datasets[0]), LONGEST))
        return f"PATH: {place} holds a dataset that Tarmac built; tarmac look {dataset}"
    if os.path.isfile(location):
        return f"PATH: {place}: {fix or f'not a kind of file that Tarmac reads: {READ}'}"
    return f"PATH: {place} holds {inventory.described}; {fix or f'Tarmac reads {READ}'}"
