"""What proves a version's files: the folder's name the manifest, build.json's record all others but the tars.

A name is 12 digits of the manifest's BLAKE3. The record holds size and BLAKE3 of each file; it is believed
as long as it does not contradict itself, sealed or not, and what it says is still compared with what is made
again. Without a record nothing vouches for inputs.arrow, which has to be made again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import DataError
from tasks.core.files import blake3_file
from tasks.dataset.layout import NAME_DIGITS, VERSION_NAME
from tasks.dataset.manifest import Manifest, read_manifest, version_name
from tasks.dataset.repair.install import is_file
from tasks.dataset.repair.place import Place

MANIFEST = "manifest.json"
_SPLIT = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_WHOLE = (MANIFEST, "shards.parquet", "rejects.parquet", "inputs.arrow")
_OF_SPLIT = ("index/{}.npy", "samples/{}.parquet", "{}/sizes.json")
TABLE = re.compile("|".join(re.escape(name).replace(r"\{\}", _SPLIT) for name in (*_WHOLE, *_OF_SPLIT)))
TAR = re.compile(rf"{_SPLIT}/\d{{6,}}\.tar")
"""Names that a repair may write to: nothing that a table says leads out of the version's folder."""
_BLAKE3 = re.compile(r"[0-9a-f]{64}")


class Stated(NamedTuple):
    """A file as build.json remembers it."""

    size_bytes: int
    blake3: str


Record = Mapping[str, Stated]


def read_record(place: Place, build: Mapping[str, Any]) -> Record | None:
    """What build.json says of the files; None unless all of it can be meant of this version."""
    files = build.get("files")
    if not isinstance(files, dict) or MANIFEST not in files:
        return None
    record = {}
    for name, stated in files.items():
        stated = stated if isinstance(stated, dict) else {}
        size, blake3 = stated.get("bytes"), stated.get("blake3")
        if not isinstance(size, int) or not isinstance(blake3, str) or not _BLAKE3.fullmatch(blake3):
            return None
        if TABLE.fullmatch(name):
            record[name] = Stated(size, blake3)
    named = record[MANIFEST].blake3[:NAME_DIGITS]
    return record if _folder_name(place) in (None, named) else None


def name_of(place: Place, record: Record | None) -> str | None:
    """The name that the manifest must give; None where neither folder nor record nor manifest tells it."""
    name = _folder_name(place)
    if name is not None:
        return name
    if record is not None:
        return record[MANIFEST].blake3[:NAME_DIGITS]
    try:
        content = (place.version / MANIFEST).read_bytes()
        Manifest.model_validate_json(content)
    except (OSError, ValueError, RecursionError):
        return None
    return version_name(content)


def _folder_name(place: Place) -> str | None:
    is_name = place.dataset is not None and VERSION_NAME.fullmatch(place.version.name)
    return place.version.name if is_name else None


def read_proven_manifest(place: Place, record: Record | None) -> Manifest | None:
    """The manifest, unless it is damaged."""
    try:
        content = (place.version / MANIFEST).read_bytes()
        manifest = read_manifest(place.version)
    except (OSError, DataError, RecursionError):
        return None
    return manifest if name_of(place, record) == version_name(content) else None


def tables_of(version: Path, splits: Mapping[str, Any] | None) -> list[str]:
    """The files that a version has beside its tars and build.json; the splits are the folders' where no
    manifest tells them."""
    if splits is None:
        there = [*version.glob("*/*.tar"), *version.glob("*/sizes.json")]
        splits = dict.fromkeys(sorted(path.parent.name for path in there))
    names = [*_WHOLE, *(name.format(split) for split in splits for name in _OF_SPLIT)]
    return [name for name in names if TABLE.fullmatch(name)]


def is_as_stated(path: Path, stated: Stated) -> bool:
    """Whether a file has this size and BLAKE3."""
    try:
        is_sized = is_file(path) and path.stat().st_size == stated.size_bytes
        return is_sized and blake3_file(path) == stated.blake3
    except OSError:
        return False


def state(path: Path) -> Stated:
    return Stated(path.stat().st_size, blake3_file(path))
