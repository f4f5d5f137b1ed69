"""Looks at raw data and says what it may be: the best reading first.

A look is cheap and bounded: names are listed up to a limit, a few dozen files are opened, and of tables the
first rows are read. What is found is evidence, not proof: the build judges every sample.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tasks.core.errors import UsageError
from tasks.core.patterns import pattern_start
from tasks.core.stores import absolute_location, split_location
from tasks.dataset.init import chat, image_folder, image_table, tars, volumes
from tasks.dataset.init.evidence import Reading, listed, shown
from tasks.dataset.init.inventory import READ, Inventory, shown_path, take
from tasks.dataset.init.table_sets import Tables, look_at_tables

ORDER = ("shards", "nifti", "npz", "chat", "table", "image_folder")
"""Of readings that are as good and as large as each other, the one that tells more comes first."""
MOST_TOLD = 3
"""Tables of which an error says what they lack."""


@dataclass(frozen=True)
class Survey:
    """What was seen in a place; `readings` holds at least one."""

    name: str
    inventory: Inventory
    readings: Sequence[Reading]

    @property
    def best(self) -> Reading:
        return self.readings[0]


def survey(location: str) -> Survey:
    """Look at a folder, a table or a pattern, local or remote; UsageError when nothing fits."""
    if not location:
        raise UsageError("PATH: it is empty; give a folder, a file or a pattern")
    location = location.rstrip("/") or "/"
    inventory = take(location)
    tables = look_at_tables(inventory)
    found = [
        *tars.readings(inventory),
        *volumes.readings(inventory),
        *chat.readings(inventory, tables),
        *image_table.readings(inventory, tables),
        *image_folder.readings(inventory),
    ]
    if not found:
        raise UsageError(shown(_nothing(inventory, tables, location), 1000))
    found.sort(key=lambda one: (-one.grade, -one.samples, ORDER.index(one.kind)))
    return Survey(name_of(location), inventory, found)


def name_of(location: str) -> str:
    """A config's name out of the place's: `data/raw/digits` and `digits.csv` -> `digits`."""
    mark = pattern_start(location)
    last = split_location(location[:mark])[0] if mark is not None else location
    last = last.rstrip("/").rpartition("/")[2]
    stem = re.sub(r"\.(csv|tsv|jsonl|ndjson|parquet|tar)\Z", "", last, flags=re.IGNORECASE)
    if last in ("", ".", ".."):
        stem = PurePosixPath(absolute_location(last or ".")).name
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64].rstrip("-._")
    return clean or "dataset"


def _nothing(inventory: Inventory, tables: Tables, location: str) -> str:
    """What was seen, what is missing, and what can be read."""
    place = shown_path(location)
    fixes = [
        tars.without_use(inventory),
        volumes.without_reports(inventory),
        chat.other_conversations(tables),
        "; ".join(filter(None, [image_folder.without_captions(inventory), *_refused(inventory, tables)])),
    ]
    fix = next((fix for fix in fixes if fix), "")
    if inventory.datasets and not fix:
        dataset = shlex.quote(shown_path(inventory.path(inventory.datasets[0])))
        return f"PATH: {place} holds a dataset that Tarmac built; tarmac look {dataset}"
    held = inventory.described if inventory.files else "no files"
    return f"PATH: {place} holds {held}; {fix or f'Tarmac reads {READ}'}"


def _refused(inventory: Inventory, tables: Tables) -> Iterator[str]:
    """Why the first tables are no source."""
    yield from (f"{one.file} cannot be read: {one.why}" for one in tables.broken[:MOST_TOLD])
    for one in tables.sets[:MOST_TOLD]:
        names = list(one.profile.columns)
        if doubt := image_table.header_doubt(inventory, one.profile):
            yield doubt
        else:
            yield (
                f"{one.files[0]} has no column of images (paths or bytes) with one of captions, or of "
                f"conversations; its columns: {listed(names, 12)}"
            )
