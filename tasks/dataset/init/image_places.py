"""Where the images lie that a table names: at the paths as they stand, or below another root.

A few of the names are looked for. Where they are not there, as in a table that was written on another machine
or moved, the images below the place and the folders around it show the root under which they are.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tasks.core.folders import open_store
from tasks.core.stores import ABSENT, is_hidden, is_remote, join_location
from tasks.dataset.init.addresses import try_addresses
from tasks.dataset.init.column_counts import ColumnCounts
from tasks.dataset.init.columns import SurveyedTable
from tasks.dataset.init.evidence import BUDGET, LOOKED_AT, Grade, shown, spread
from tasks.dataset.init.inventory import IMAGES, Inventory, config_path
from tasks.dataset.sources.linked_files import LinkedFiles

MOST_FOLDERS = 300
"""Folders around a table in which its images are looked for."""
DEPTH = 2
"""Levels of folders below the table's and the one around it."""
_DRIVE = re.compile(r"[A-Za-z]:(?=/)")


@dataclass(frozen=True)
class ImagePlace:
    """Where a table's images are, as evidence. With a `grade` of 0 nearly none is there, and the `problem`
    states that; `root` is the folder below which they are, as the config names it."""

    evidence: str
    grade: Grade = 2
    problem: str = ""
    root: str | None = None
    why: str = ""
    """The evidence for the root."""
    is_nowhere: bool = False
    """Whether not one image could be found."""
    is_fetched: bool = False
    """Whether they lie at web addresses."""
    reject_budget: float = BUDGET


def place_of_images(inventory: Inventory, table: SurveyedTable, image: ColumnCounts) -> ImagePlace:
    if image.is_binary:
        return ImagePlace("the images themselves")
    if image.share("address") >= 0.5:
        tried = try_addresses(spread(list(image.values), LOOKED_AT))
        place = ImagePlace(tried.where, tried.grade, tried.fix, is_fetched=True)
        return replace(place, reject_budget=tried.budget)
    names = [name for name in spread(list(image.values), LOOKED_AT) if not is_remote(name)]
    there = sum(is_image_there(inventory, table, name) for name in names)
    form = "paths with Windows' backslashes" if any("\\" in name for name in names) else "paths"
    seen = f"{there} of {len(names)} looked at are there"
    if 2 * there >= len(names):
        return ImagePlace(f"{form} relative to the table's folder, {seen}")
    best = max(_roots(inventory, table, names), key=lambda root: len(_below(root, names)), default=None)
    below = [] if best is None else _below(best, names)
    if best is not None and len(below) > there and 2 * len(below) >= len(names):
        why = f"{len(below)} of {len(names)} looked at are there, and {there} below the table's folder"
        return ImagePlace(f"{form}, such as {shown(names[0])}", root=config_path(best), why=why)
    first = names[0]
    fix = "put them there, or give the folder that holds both"
    problem = f"{shown(image.name)} names images that are not there, such as {shown(first)} ({seen}): {fix}"
    return ImagePlace(f"{form} relative to the table's folder, {seen}", 0, problem, is_nowhere=not there)


def is_image_there(inventory: Inventory, table: SurveyedTable, name: str) -> bool:
    """Whether an image is there that one of the table's files names."""
    folders = dict.fromkeys(map(posixpath.dirname, table.files))
    return any(_is_found(LinkedFiles(inventory.store, "PATH"), name, folder) for folder in folders)


def _below(root: str, names: Sequence[str]) -> list[str]:
    """Return the names of which a build would find a file below the root."""
    files = LinkedFiles(open_store(root, "PATH"), "PATH", root)
    return [name for name in names if _is_found(files, name, "")]


def _is_found(files: LinkedFiles, name: str, folder: str) -> bool:
    return files.store.stat(files.name(name, folder)) != ABSENT


def _roots(inventory: Inventory, table: SurveyedTable, names: Sequence[str]) -> list[str]:
    """Return folders below which the first of the names may lie, the likelier ones first."""
    location = inventory.store.location
    tails = [tail for name in names[:3] for tail in _tails(name)]
    endings = {posixpath.basename(tail) for tail in tails}
    files = [file for file in inventory.of(IMAGES) if posixpath.basename(file) in endings]
    inside = [
        file[: len(file) - len(tail)] for tail in tails for file in files if f"/{file}".endswith(f"/{tail}")
    ]
    found = [join_location(location, folder).rstrip("/") for folder in inside]
    if not found and not is_remote(location):
        start = os.path.normpath(os.path.join(location, posixpath.dirname(table.file)))
        around = islice(_folders(start), MOST_FOLDERS)
        found = [root for root in around if any(os.path.isfile(f"{root}/{tail}") for tail in tails)]
    return list(dict.fromkeys(found))


def _tails(name: str) -> list[str]:
    """Return a relative path as it is, and an absolute one without each number of its first folders."""
    path = _DRIVE.sub("", name.replace("\\", "/"))
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ["/".join(parts[number:]) for number in range(len(parts) if path.startswith("/") else 1)]


def _folders(start: str) -> Iterator[str]:
    """Yield a folder and those below it, then the one around and those below that, level by level."""
    for top in (start, os.path.dirname(start)):
        level = [top]
        for _ in range(DEPTH + 1):
            yield from level
            level = [folder for one in level for folder in _subfolders(one)]


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(one.path for one in entries if not is_hidden(one.name) and one.is_dir())
    except OSError:
        return []
