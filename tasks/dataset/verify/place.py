"""What a person points verify at: a dataset, a version of one, or tars of whatever origin, here or remote.

A folder is Tarmac's when it holds any of the files that a version has beside its tars, or lies in
`versions/`; what is missing of them then is a fault. Any other tars are judged by themselves. Braces in a
pattern promise each of their names. Looks at names only, runs no command and writes nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, takewhile
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
from tasks.dataset.layout import (
    BUILD,
    CURRENT,
    INPUTS,
    MANIFEST,
    SHARDS,
    STAGING,
    VERSION_NAME,
    VERSIONS,
)
from tasks.dataset.verify.findings import RESEND, Fault, file_fault
from tasks.dataset.verify.tars import KEY, TARS, UNREAD, list_folder, sizes_of, split_query, store_at, tars_in

SIGNS = (MANIFEST, SHARDS, INPUTS, BUILD)
TABLES = {"samples": ".parquet", "index": ".npy"}
RULES = "dataset.json"
"""Of a build under way, in its staging folder."""
LONGEST_NAME = 100
MOST_BELOW = 3
"""Datasets that a message names."""
FEW = 8
"""Names in a bucket that are looked for one by one rather than in a list of their folder."""


@dataclass(frozen=True)
class ShardLocation:
    """Where the tars are: all lie in `folder`, a path or an address, to which their names are relative.

    Of a version, `repairable` is what `tarmac repair` is to be given, None where that cannot help, and
    `fault` says why there is no version although one should be. Of other tars, `tars` are their sizes by
    name, `absent` those that a pattern promised and that are not there; `is_folder` says that all of a folder
    was meant.
    """

    folder: str
    is_version: bool
    repairable: str | None = None
    fault: Fault | None = None
    tars: Mapping[str, int] = field(default_factory=dict)
    absent: Sequence[str] = ()
    is_folder: bool = False


def locate(path: str | os.PathLike[str]) -> ShardLocation:
    """Look at what is there, not into it; UsageError when that is nothing, or nothing that can be judged."""
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
        return _of_web(store, folder)
    folders, files = list_folder(store)
    if not folders and not files and is_remote(folder):
        raise UsageError(f"{KEY}: there is nothing at {redact(folder)}")
    if MANIFEST in files:
        return _version(folder, given)
    if CURRENT in (*folders, *files) or VERSIONS in folders:
        inside = _current(store, folder, given, CURRENT in files)
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
    """The tars of an unfinished build are no dataset yet, however sound each of them is."""
    inside = [folder, *([f"{folder}/{STAGING}"] if STAGING in folders else [])]
    if any(split_location(one)[1] == STAGING and store_at(one).stat(RULES) != ABSENT for one in inside):
        raise UsageError(
            f"{KEY}: {redact(given)} holds no version: a build was interrupted, or is under way; "
            "tarmac build CONFIG goes on where it stopped"
        )


def _below(folder: str, given: str, folders: Sequence[str]) -> str:
    """The first datasets in a folder, for a message."""
    marks = (CURRENT, VERSIONS, MANIFEST)
    datasets = (
        os.path.join(given, name)
        for name in folders
        if not is_remote(folder) and any(os.path.lexists(f"{folder}/{name}/{mark}") for mark in marks)
    )
    some = list(islice(datasets, MOST_BELOW + 1))
    more = ", …" if len(some) > MOST_BELOW else ""
    return f"; give one of those below it: {', '.join(some[:MOST_BELOW])}{more}" if some else ""


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
    """What `tarmac repair` is to be given for a version: its dataset where it is the current one."""
    if is_current(given, version):
        return given
    if is_current(dataset_of(version), version):
        return dataset_of(version)
    folder, name = os.path.split(version)
    has_its_name = os.path.basename(folder) == VERSIONS and VERSION_NAME.fullmatch(name)
    if not has_its_name and not any(
        os.path.exists(f"{version}/{mark}") for mark in (MANIFEST, SHARDS, INPUTS)
    ):
        return None
    return given if os.path.realpath(given) == version else version


def dataset_of(version: str) -> str:
    """The dataset that a version's folder lies in, if it lies in one."""
    return os.path.dirname(os.path.dirname(version))


def is_current(dataset: str, version: str) -> bool:
    """Whether the dataset's link leads to this version, whose path is a real one."""
    path = f"{dataset}/{CURRENT}"
    return os.path.islink(path) and os.path.realpath(path) == version


def _current(store: Store, folder: str, given: str, is_text: bool) -> ShardLocation | None:
    """The dataset's current version; None when the folder is no dataset.

    `current` is a link, or in a bucket, which has none, a text that holds the version's name.
    """
    path = f"{folder}/{CURRENT}"
    if not is_remote(folder) and os.path.isdir(path):
        inside = list_folder(store, CURRENT)
        is_ours = os.path.islink(path) or MANIFEST in inside[1] or _is_ours(store, path, *inside)
        return _version(path, given) if is_ours else None
    if not is_remote(folder) and os.path.islink(path):
        return _lost(folder, given, f"leads to {os.readlink(path)}, which is not there")
    if not is_text:
        names = [name for name in list_folder(store, VERSIONS)[0] if VERSION_NAME.fullmatch(name)]
        if not names:
            return None
        return _lost(folder, given, f"missing, so that none of {counted(len(names), 'version')} is current")
    name = _text(store)
    if VERSION_NAME.fullmatch(name) and _is_there(store, f"{VERSIONS}/{name}"):
        return _version(f"{folder}/{VERSIONS}/{name}", given)
    return _lost(folder, given, f"names {name[:20]!r}, which is no version of this dataset")


def _lost(folder: str, dataset: str, problem: str) -> ShardLocation:
    """A dataset in `folder`, which commands are to call `dataset`, has no current version."""
    build = "tarmac build CONFIG builds one"
    fault = file_fault(CURRENT, problem, RESEND if is_remote(folder) else build)
    from tasks.dataset import versions  # here, because few datasets have lost their version

    others = [] if is_remote(folder) else versions.list_versions(Path(folder))
    newest = next((one.name for one in others if os.path.isfile(one / MANIFEST)), None)
    if newest is not None:
        remedy = f"tarmac versions DATASET rollback {newest} makes the newest version there current, {build}"
        command = f"tarmac versions {shlex.quote(dataset)} rollback {newest}"
        fault = replace(fault, fix=remedy, command=command)
    return ShardLocation(folder, True, fault=fault)


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


def _of_web(store: Store, folder: str) -> ShardLocation:
    """A web server gives no lists, but a version says itself what it holds."""
    if store.stat(MANIFEST) != ABSENT or store.stat(SHARDS) != ABSENT:
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
        raise UsageError(f"{KEY}: a pattern in the query of an address says nothing about files; name them")
    found: dict[str, int] = {}
    absent: list[str] = []
    for folder, group in groupby(map(absolute_location, promised), key=lambda one: split_location(one)[0]):
        for one, size in _looked_up(folder, list(group), query):
            if size is None:
                absent.append(one)
            else:
                found[one] = size
    if not found:
        raise UsageError(
            f"{KEY}: there is no {redact(pattern)}; give a folder of tars, or a pattern of those there are"
        )
    for folder in {split_location(one)[0] for one in found}:
        _refuse_staging(folder, (), given)
    base = _common([*found, *absent])
    if is_remote(given) and not is_valid(base):
        raise UsageError(f"{KEY}: {redact(pattern)} names more than one bucket or host; give one at a time")
    sizes = {one.removeprefix(base).lstrip("/"): size for one, size in found.items()}
    lacking = [one.removeprefix(base).lstrip("/") for one in absent]
    return ShardLocation(base + query, False, tars=sizes, absent=lacking)


def _looked_up(folder: str, members: Sequence[str], query: str) -> Iterator[tuple[str, int | None]]:
    """The location and size of each tar that these mean, None for the size of one that is not there."""
    wild = [one for one in members if wildcard_in(one) is not None and not _is_local_file(one)]
    if is_web(folder) and wild:
        raise UsageError(f"{KEY}: a web server gives no list of its files; name them with {{000000..000042}}")
    for one in wild:
        yield from _sizes(expand(one, (*TARS, *UNREAD), KEY), "").items()
    plain = [one for one in members if one not in set(wild)]
    sizes = _sizes(plain, query)
    for one in plain:
        if one.endswith((*TARS, *UNREAD)) and (is_remote(one) or not os.path.isdir(one)):
            yield one, sizes.get(one)
            continue
        inside = {} if os.path.isfile(one) else tars_in(one)
        if not inside:
            raise UsageError(f"{KEY}: {redact(one)} is none of {', '.join(TARS)}, nor a folder of them")
        yield from ((join_location(one, name), size) for name, size in inside.items())


def _is_local_file(location: str) -> bool:
    return not is_remote(location) and os.path.exists(location)


def _sizes(locations: Sequence[str], query: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for folder, group in groupby(locations, key=lambda one: split_location(one)[0]):
        names = [split_location(one)[1] for one in group]
        if is_remote(folder) and not is_web(folder) and len(names) > FEW:
            there = tars_in(folder, hidden=True)
        else:
            there = sizes_of(folder + query, names)
        sizes |= {join_location(folder, name): there[name] for name in names if name in there}
    return sizes


def _common(locations: Sequence[str]) -> str:
    """The deepest folder that holds all of them."""
    parts = [split_location(one)[0].split("/") for one in locations]
    first, last = min(parts), max(parts)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "/".join(one for one, _ in same) or "/"
