"""Find what a person points verify at: a dataset, a version of one, or tars of any origin, here or remote.

A folder is Tarmac's when it holds any of the files that a version has beside its tars, or lies in
`versions/`; what is missing of them is a fault then. Any other tars are judged by themselves. Braces in a
pattern promise each of their names. This module looks at names only, runs no command and writes nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.patterns import expand, expand_braces, pattern_start, wildcard_in
from tasks.core.stores import (
    ABSENT,
    Store,
    absolute_location,
    is_remote,
    is_valid,
    is_web,
    join_location,
    redact,
    split_location,
)
from tasks.core.units import counted
from tasks.dataset.verify.findings import RESEND, Fault, file_fault
from tasks.dataset.verify.tars import (
    KEY,
    TARS,
    UNREAD,
    is_indexed,
    list_folder,
    sizes_of,
    split_query,
    store_at,
    tars_in,
)
from tasks.dataset.version import layout
from tasks.dataset.version.layout import CURRENT, MANIFEST, STAGING, VERSION_NAME, VERSIONS

SIGNS = (*layout.MARKS, layout.BUILD)
TABLES = {"samples": ".parquet", "index": ".npy"}
RULES = "dataset.json"
"""The file in the staging folder of a build that is under way."""
LONGEST_NAME = 100
MOST_BELOW = 3
"""Datasets that a message names."""
FEW = 8
"""Up to this many names in a bucket are looked up one by one; for more, their folder is listed."""


@dataclass(frozen=True)
class ShardLocation:
    """Where the tars are: all lie in `folder`, a path or an address, to which their names are relative.

    For a version, `repairable` is the path to give to `tarmac repair`, None where a repair cannot help, and
    `fault` is why there is no version although one should be. For other tars, `tars` holds their sizes by
    name, `absent` the names that a pattern promised and that are not there; `is_folder` means that the whole
    folder was given.
    """

    folder: str
    is_version: bool
    repairable: str | None = None
    fault: Fault | None = None
    tars: Mapping[str, int] = field(default_factory=dict)
    absent: Sequence[str] = ()
    is_folder: bool = False

    @property
    def is_indexed(self) -> bool:
        """Whether it is a version of tars that others wrote."""
        return self.is_version and is_indexed(self.folder)


def locate(path: str | os.PathLike[str]) -> ShardLocation:
    """Find what lies there without reading it; UsageError when there is nothing, or nothing that verify can
    judge."""
    given = os.fspath(path)
    if given.startswith("pipe:"):
        raise UsageError(f"{KEY}: no command is run; give the tars themselves, or a folder of them")
    if "://" in given and not is_remote(given):
        raise UsageError(f"{KEY}: {given.partition('://')[0]}:// is not read; give a path, s3:// or https://")
    if not is_remote(given) and os.path.isdir(given):
        return _folder(os.path.abspath(given), given)
    if pattern_start(split_query(given)[0]) is not None or split_query(given)[0].endswith((*TARS, *UNREAD)):
        return _named_tars(given)
    if is_remote(given):
        return _folder(given.rstrip("/"), given)
    if os.path.isfile(given):
        raise UsageError(f"{KEY}: {given} is none of {', '.join(TARS)}, nor a folder")
    raise UsageError(
        f"{KEY}: there is no {given}; give a dataset, a version's folder, a folder of tars, or a pattern "
        "such as data/{000000..000042}.tar"
    )


def _folder(folder: str, given: str) -> ShardLocation:
    store = store_at(folder)
    if is_web(folder):
        return _on_web_server(store, folder)
    folders, files = list_folder(store)
    if not folders and not files and is_remote(folder):
        raise UsageError(f"{KEY}: there is nothing at {redact(folder)}")
    if MANIFEST in files:
        return _version(folder, given)
    inside = _current(store, folder, given, folders, files)
    if inside is not None:
        return inside
    _refuse_staging(folder, folders, given)
    if _is_ours(store, folder, folders, files):
        return _version(folder, given)
    tars = tars_in(folder)
    if not tars:
        raise UsageError(
            f"{KEY}: {redact(given)} holds no dataset and no tar{_below(folder, given, folders)}"
        )
    return ShardLocation(folder, False, tars=tars, is_folder=True)


def _refuse_staging(folder: str, folders: Sequence[str], given: str) -> None:
    """UsageError for the tars of an unfinished build: they are no dataset yet, however sound each is."""
    inside = [folder, *([f"{folder}/{STAGING}"] if STAGING in folders else [])]
    if any(split_location(one)[1] == STAGING and store_at(one).stat(RULES) != ABSENT for one in inside):
        raise UsageError(
            f"{KEY}: {redact(given)} holds no version: a build was interrupted, or is under way; "
            "tarmac build CONFIG goes on where it stopped"
        )


def _below(folder: str, given: str, folders: Sequence[str]) -> str:
    """The first datasets in a folder, for a message."""
    marks = (CURRENT, VERSIONS, MANIFEST)
    found = [
        os.path.join(given, name)
        for name in folders
        if not is_remote(folder) and any(os.path.lexists(f"{folder}/{name}/{mark}") for mark in marks)
    ]
    more = ", …" if len(found) > MOST_BELOW else ""
    return f"; give one of those below it: {', '.join(found[:MOST_BELOW])}{more}" if found else ""


def _is_ours(store: Store, folder: str, folders: Sequence[str], files: Sequence[str]) -> bool:
    above = split_location(_real(folder))[0]
    if any(name in files for name in SIGNS) or split_location(above)[1] == VERSIONS:
        return True
    return any(
        name in folders and any(file.endswith(suffix) for file in list_folder(store, name)[1])
        for name, suffix in TABLES.items()
    )


def _real(folder: str) -> str:
    return folder if is_remote(folder) else os.path.realpath(folder)


def _version(folder: str, given: str) -> ShardLocation:
    version = _real(folder)
    return ShardLocation(version, True, None if is_remote(folder) else _repairable(version, given))


def _repairable(version: str, given: str) -> str | None:
    """The path to give to `tarmac repair` for a version: its dataset where the version is the current one."""
    for dataset in (given, dataset_of(version)):
        if is_current(dataset, version):
            return dataset
    if not layout.looks_like_version(Path(version)):
        return None
    return given if os.path.realpath(given) == version else version


def dataset_of(version: str) -> str:
    """The dataset that a version's folder lies in, if it lies in one."""
    return os.path.dirname(os.path.dirname(version))


def is_current(dataset: str, version: str) -> bool:
    """Whether the dataset's link leads to this version, whose path is a real one."""
    path = f"{dataset}/{CURRENT}"
    return os.path.islink(path) and os.path.realpath(path) == version


def _current(
    store: Store, folder: str, given: str, folders: Sequence[str], files: Sequence[str]
) -> ShardLocation | None:
    """The dataset's current version; None when the folder is no dataset.

    `current` is a link, or, in a bucket, which has no links, a text that holds the version's name.
    """
    path = f"{folder}/{CURRENT}"
    if not is_remote(folder) and os.path.isdir(path):
        inside = list_folder(store, CURRENT)
        is_ours = os.path.islink(path) or MANIFEST in inside[1] or _is_ours(store, path, *inside)
        return _version(path, given) if is_ours else None
    if not is_remote(folder) and os.path.islink(path):
        return _lost(folder, given, f"leads to {os.readlink(path)}, which is not there")
    listed = list_folder(store, VERSIONS)[0] if VERSIONS in folders else []
    names = [name for name in listed if VERSION_NAME.fullmatch(name)]
    if CURRENT in files:
        name = _text(store)
        if name in names:
            return _version(f"{folder}/{VERSIONS}/{name}", given)
        return _lost(folder, given, f"names {name[:20]!r}, which is no version of this dataset")
    if not names:
        return None
    return _lost(folder, given, f"missing, so that none of {counted(len(names), 'version')} is current")


def _lost(folder: str, dataset: str, problem: str) -> ShardLocation:
    """A dataset in `folder`, called `dataset` in commands, that has no current version."""
    if is_remote(folder):
        return ShardLocation(folder, True, fault=file_fault(CURRENT, problem, RESEND))
    from tasks.dataset.version import versions  # here, because few datasets have lost their version

    fault = file_fault(CURRENT, problem, "tarmac build CONFIG builds one")
    newest = next((one.name for one in versions.list_versions(Path(folder)) if layout.is_version(one)), None)
    if newest is not None:
        rollback = f"tarmac versions DATASET rollback {newest} makes the newest version there current"
        command = f"tarmac versions {shlex.quote(dataset)} rollback {newest}"
        fault = replace(fault, fix=f"{rollback}, {fault.fix}", command=command)
    return ShardLocation(folder, True, fault=fault)


def _text(store: Store) -> str:
    try:
        return store.read(CURRENT, LONGEST_NAME).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _on_web_server(store: Store, folder: str) -> ShardLocation:
    """A version on a web server, which lists no files: the version's own tables name them."""
    if store.stat(MANIFEST) != ABSENT or store.stat(layout.SHARDS) != ABSENT:
        return ShardLocation(folder, True)
    name = _text(store)
    if VERSION_NAME.fullmatch(name):
        return ShardLocation(f"{folder}/{VERSIONS}/{name}", True)
    raise UsageError(
        f"{KEY}: a web server gives no list of its files; name the tars, such as "
        f"{redact(folder)}/{{000000..000042}}.tar"
    )


def _named_tars(given: str) -> ShardLocation:
    """The tars that a pattern names, or one; UsageError when none is there, or when one is something else."""
    pattern, query = split_query(given)
    promised = [pattern] if not is_remote(given) and os.path.exists(pattern) else expand_braces(pattern, KEY)
    if "{" in query:
        raise UsageError(f"{KEY}: a pattern in the query of an address names no files; name them")
    sizes: dict[str, int | None] = {}
    for one in map(absolute_location, promised):
        sizes |= _expanded(one)
    sizes |= _sizes([one for one, size in sizes.items() if size is None], query)
    folders = [split_location(one)[0] for one, size in sizes.items() if size is not None]
    if not folders:
        raise UsageError(
            f"{KEY}: there is no {redact(pattern)}; give a folder of tars, or a pattern of those there are"
        )
    for folder in set(folders):
        _refuse_staging(folder, (), given)
    steps = zip(*(split_location(one)[0].split("/") for one in sizes), strict=False)
    base = "/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, steps)) or "/"
    if is_remote(given) and not is_valid(base):
        raise UsageError(f"{KEY}: {redact(pattern)} names more than one bucket or host; give one at a time")
    below = {one.removeprefix(base).lstrip("/"): size for one, size in sizes.items()}
    found = {name: size for name, size in below.items() if size is not None}
    return ShardLocation(base + query, False, tars=found, absent=[one for one in below if one not in found])


def _expanded(location: str) -> Mapping[str, int | None]:
    """The tars that a name without braces stands for, with their sizes; a tar's own name is not looked up, so
    its size is None."""
    is_there = not is_remote(location) and os.path.exists(location)
    if wildcard_in(location) is not None and not is_there:
        if is_web(location):
            raise UsageError(
                f"{KEY}: a web server gives no list of its files; name them with {{000000..000042}}"
            )
        return _sizes(expand(location, (*TARS, *UNREAD), KEY), "")
    if location.endswith((*TARS, *UNREAD)) and not (is_there and os.path.isdir(location)):
        return {location: None}
    inside = {} if is_there and os.path.isfile(location) else tars_in(location)
    if not inside:
        raise UsageError(f"{KEY}: {redact(location)} is none of {', '.join(TARS)}, nor a folder of them")
    return {join_location(location, name): size for name, size in inside.items()}


def _sizes(locations: Sequence[str], query: str) -> dict[str, int | None]:
    """The sizes in bytes of the tars that are there."""
    sizes: dict[str, int | None] = {}
    for folder, group in groupby(locations, key=lambda one: split_location(one)[0]):
        names = [split_location(one)[1] for one in group]
        if is_remote(folder) and not is_web(folder) and len(names) > FEW:
            there = tars_in(folder, hidden=True)
        else:
            there = sizes_of(folder + query, names)
        sizes |= {join_location(folder, name): there[name] for name in names if name in there}
    return sizes
