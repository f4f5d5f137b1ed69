"""What a person points at: a dataset, a version of one, or tars of whatever origin.

A folder is Tarmac's when it holds any of the files that a version has beside its tars, or lies in
`versions/`; what is missing of them then is a fault. Any other tars are judged by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tasks.core.errors import UsageError
from tasks.core.findings import Finding
from tasks.core.patterns import pattern_start
from tasks.core.stores import ABSENT, Store, is_remote, is_web, redact, split_location
from tasks.core.units import counted
from tasks.dataset.layout import BUILD, VERSION_NAME
from tasks.dataset.verify.lost import CURRENT, dataset_of, is_current, is_version_name, lost, misnamed
from tasks.dataset.verify.named import named_tars
from tasks.dataset.verify.place import KEY, TARS, UNREAD, listed, split_query, store_at, tars_in
from tasks.dataset.verify.tables import MANIFEST, SHARDS
from tasks.dataset.versions import MARKS

SIGNS = (*MARKS, BUILD)
TABLES = {"samples": ".parquet", "index": ".npy"}
LONGEST_NAME = 100
MOST_BELOW = 3
"""Datasets that a message names."""


@dataclass(frozen=True)
class Place:
    """Where the tars are: all lie in `folder`, a path or an address, which goes with their names.

    Of a version, `repaired` is what `tarmac repair` is to be given, None where that cannot help, and
    `problem` says why there is no version although one should be. Of other tars, `tars` are their sizes by
    name, `absent` those that a pattern promised and that are not there; `is_folder` says that all of a folder
    was meant.
    """

    folder: str
    is_version: bool
    repaired: str | None = None
    problem: Finding | None = None
    tars: Mapping[str, int] = field(default_factory=dict)
    absent: Sequence[str] = ()
    is_folder: bool = False


def locate(path: str | os.PathLike[str]) -> Place:
    """Look at what is there, not into it; UsageError when that is nothing, or nothing that can be judged."""
    given = os.fspath(path)
    if given.startswith("pipe:"):
        raise UsageError(f"{KEY}: no command is run; give the tars themselves, or a folder of them")
    if "://" in given and not is_remote(given):
        raise UsageError(f"{KEY}: {given.partition('://')[0]}:// is not read; give a path, s3:// or https://")
    if not is_remote(given) and os.path.isdir(given):
        return _folder(os.path.abspath(given), given)
    if pattern_start(split_query(given)[0]) is not None or split_query(given)[0].endswith((*TARS, *UNREAD)):
        base, tars, absent = named_tars(given)
        return Place(base, False, tars=tars, absent=absent)
    if is_remote(given):
        return _folder(given.rstrip("/"), given)
    if os.path.isfile(given):
        raise UsageError(f"{KEY}: {given} is none of {', '.join(TARS)}, nor a folder")
    raise UsageError(
        f"{KEY}: there is no {given}; give a dataset, a version's folder, a folder of tars, or a pattern "
        "such as data/{000000..000042}.tar"
    )


def _folder(folder: str, given: str) -> Place:
    store = store_at(folder)
    if is_web(folder):
        return _of_web(store, folder)
    folders, files = listed(store)
    if not folders and not files and is_remote(folder):
        raise UsageError(f"{KEY}: there is nothing at {redact(folder)}")
    if MANIFEST in files:
        return _version(folder, given)
    if CURRENT in (*folders, *files) or "versions" in folders:
        inside = _current(store, folder, given, CURRENT in files)
        if inside is not None:
            return inside
    if _is_ours(store, folder, folders, files):
        return _version(folder, given)
    tars = tars_in(folder)
    if not tars:
        raise UsageError(
            f"{KEY}: {redact(given)} holds no dataset and no tar{_below(folder, given, folders)}"
        )
    return Place(folder, False, tars=tars, is_folder=True)


def _below(folder: str, given: str, folders: Sequence[str]) -> str:
    """The first datasets in a folder, for a message."""
    marks = (CURRENT, "versions", MANIFEST)
    datasets = (
        os.path.join(given, name)
        for name in folders
        if not is_remote(folder) and any(os.path.lexists(f"{folder}/{name}/{mark}") for mark in marks)
    )
    some = list(islice(datasets, MOST_BELOW + 1))
    more = ", …" if len(some) > MOST_BELOW else ""
    return f"; give one of those below it: {', '.join(some[:MOST_BELOW])}{more}" if some else ""


def _is_ours(store: Store, folder: str, folders: Sequence[str], files: Sequence[str]) -> bool:
    if (
        any(name in files for name in SIGNS)
        or split_location(split_location(_real(folder))[0])[1] == "versions"
    ):
        return True
    return any(
        name in folders and any(file.endswith(suffix) for file in listed(store, name)[1])
        for name, suffix in TABLES.items()
    )


def _real(folder: str) -> str:
    return folder if is_remote(folder) else os.path.realpath(folder)


def _version(folder: str, given: str) -> Place:
    version = _real(folder)
    return Place(version, True, None if is_remote(folder) else _repaired(version, given))


def _repaired(version: str, given: str) -> str | None:
    """How `tarmac repair` is to be told of a version: by its dataset where it is the current one."""
    if is_current(given, version):
        return given
    if is_current(dataset_of(version), version):
        return dataset_of(version)
    is_known = is_version_name(version) or any(os.path.exists(f"{version}/{mark}") for mark in MARKS)
    if not is_known:
        return None
    return given if os.path.realpath(given) == version else version


def _current(store: Store, folder: str, given: str, is_text: bool) -> Place | None:
    """The dataset's current version; None when the folder is no dataset.

    `current` is a link, or in a bucket, which has none, a text that holds the version's name.
    """
    path = f"{folder}/{CURRENT}"
    if not is_remote(folder) and os.path.isdir(path):
        inside = listed(store, CURRENT)
        is_ours = os.path.islink(path) or MANIFEST in inside[1] or _is_ours(store, path, *inside)
        return _version(path, given) if is_ours else None
    if not is_remote(folder) and os.path.islink(path):
        target = os.readlink(path)
        problem = f"leads to {target}, which is not there"
        return Place(folder, True, problem=lost(folder, given, problem, os.path.basename(target)))
    if not is_text:
        names = [name for name in listed(store, "versions")[0] if VERSION_NAME.fullmatch(name)]
        if not names and (is_remote(folder) or not misnamed(folder)):
            return None
        problem = f"missing, so that none of {counted(len(names), 'version')} is current"
        return Place(folder, True, problem=lost(folder, given, problem if names else "missing"))
    name = _text(store)
    if VERSION_NAME.fullmatch(name) and _is_there(store, f"versions/{name}"):
        return _version(f"{folder}/versions/{name}", given)
    problem = f"names {name[:20]!r}, which is no version of this dataset"
    return Place(folder, True, problem=lost(folder, given, problem, name))


def _is_there(store: Store, folder: str) -> bool:
    try:
        return any(store.entries(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _text(store: Store) -> str:
    try:
        return store.read(CURRENT, LONGEST_NAME).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _of_web(store: Store, folder: str) -> Place:
    """A web server gives no lists, but a version says itself what it holds."""
    if store.stat(MANIFEST) != ABSENT or store.stat(SHARDS) != ABSENT:
        return Place(folder, True)
    name = _text(store)
    if VERSION_NAME.fullmatch(name):
        return Place(f"{folder}/versions/{name}", True)
    raise UsageError(
        f"{KEY}: a web server gives no list of its files; name the tars, such as "
        f"{redact(folder)}/{{000000..000042}}.tar"
    )
