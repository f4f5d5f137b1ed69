"""Where raw data lies, as people write it: a path or an address, a file, a folder or a pattern of files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tasks.core.addresses import is_remote, is_valid, is_web, shown
from tasks.core.errors import UsageError
from tasks.core.globs import choices, expression, first_mark, glob_in, is_hidden, matches
from tasks.core.stores import ABSENT, LocalStore, Store, Unreachable

FEW = 8
"""Files that are looked for one by one rather than in a list of their folder."""


def split_location(location: str) -> tuple[str, str]:
    """Folder and name of a file's location: `s3://b/x/t.csv` -> (`s3://b/x`, `t.csv`).

    The query of an address belongs to the name.
    """
    end = location.find("?") if is_web(location) else -1
    cut = location.rfind("/", 0, end if end >= 0 else None)
    return (location[:cut] or "/" if cut >= 0 else "."), location[cut + 1 :]


def path_of(location: str) -> str:
    """The location without the query of an address, whose end is a file's suffix."""
    return location.partition("?")[0] if is_web(location) else location


def absolute_location(location: str) -> str:
    """The location as it reads from any working directory."""
    return location if is_remote(location) else os.path.abspath(location)


def join_location(folder: str, file: str) -> str:
    """A file's location in a folder; a remote or absolute `file` stands for itself."""
    return file if is_remote(file) or file.startswith("/") else f"{folder.rstrip('/')}/{file}"


def open_store(location: str, config_key: str = "dataset.source.path") -> Store:
    """The store of a folder; nothing is touched yet. UsageError naming `config_key` for an address that is
    none, and at first use, when the package for its kind is not installed."""
    if is_remote(location):
        if not is_valid(location):
            raise UsageError(f"{config_key}: {shown(location)} is no valid address")
        from tasks.core.remote import RemoteStore  # fsspec takes a while to import

        return RemoteStore(location, config_key)
    return LocalStore(location)


def expand(location: str, suffixes: Sequence[str], config_key: str = "dataset.source.path") -> list[str]:
    """The files that a location means: a file, a folder, or a pattern; their locations, local ones absolute.

    `raw/*.parquet` promises at least one file, `s3://b/{train,val}/{000000..000042}.tar` every one. Of a
    folder all files below with one of `suffixes` (lower case, with the dot), in the order of their names,
    none of them hidden. UsageError that names `config_key` when what is promised is not there.
    """
    promised = [location] if _is_itself(location) else list(dict.fromkeys(choices(location, config_key)))
    try:
        files = _files_among(promised)
        found = [[one] if one in files else _below(one, suffixes) for one in promised]
    except Unreachable:
        raise
    except OSError as error:
        where, why = shown(error.filename or location), error.strerror or error
        raise UsageError(f"{config_key}: {where} cannot be read: {why}") from None
    for one, its in zip(promised, found, strict=True):
        name = shown(one)
        has_suffix = path_of(one).lower().endswith(tuple(suffixes))
        if one in files and not has_suffix:
            raise UsageError(f"{config_key}: {name} is none of {', '.join(suffixes)}; convert it to one")
        if not its:
            whole, wanted = "" if one == location else f" of {shown(location)}", " or ".join(suffixes)
            if has_suffix and glob_in(one) is None:
                start = "" if os.path.isabs(one) else "; paths start at the working directory"
                raise UsageError(f"{config_key}: there is no file {name}{whole}{start}")
            raise UsageError(f"{config_key}: there is no {name}{whole}, or it holds no {wanted} file")
    return [absolute_location(file) for its in found for file in its]


def means(location: str, file: str) -> bool:
    """Whether a local location would mean this file, an absolute path, if the file were there."""
    promised = [location] if _is_itself(location) else choices(location, "path")
    return any(_means(os.path.abspath(one), file) for one in promised)


def _means(promised: str, file: str) -> bool:
    glob = None if _is_itself(promised) else glob_in(promised)
    if glob is None:
        base = os.path.realpath(promised)
        return file == base or file.startswith(f"{base.rstrip('/')}/")
    cut = promised.rfind("/", 0, glob.start())
    base, pattern = os.path.realpath(promised[:cut] or "/").rstrip("/") + "/", promised[cut + 1 :]
    if not file.startswith(base):
        return False
    below = file.removeprefix(base)
    if "**" in pattern:
        return expression(pattern).fullmatch(below) is not None
    names, parts = below.split("/"), pattern.split("/")
    return len(names) >= len(parts) and all(map(matches, names, parts))


def _is_itself(location: str) -> bool:
    """Whether there is a file or folder of just this name, whatever pattern it looks like."""
    return not is_remote(location) and os.path.exists(location)


def base_of(location: str) -> str:
    """The folder that all files of a location lie in, local ones absolute; names for people start there."""
    if not _is_itself(location):
        mark = first_mark(location)
        if mark is not None:
            return absolute_location(split_location(location[:mark])[0])
    return absolute_location(split_location(location)[0] if _files_among([location]) else location)


def _files_among(locations: Sequence[str]) -> set[str]:
    """Those that are files: by a `stat` each, or where many lie in one folder by a look into it."""
    files = set()
    for folder, group in itertools.groupby(locations, key=lambda location: split_location(location)[0]):
        members = list(group)
        if folder.endswith(":/"):
            continue  # a bucket or host by itself
        store = open_store(folder)
        if len(members) > FEW and not is_web(folder):
            there = set(_entries(store, "")[1])
            files |= {member for member in members if split_location(member)[1] in there}
        else:
            files |= {member for member in members if _is_file(store, member)}
    return files


def _is_file(store: Store, location: str) -> bool:
    if isinstance(store, LocalStore):
        return os.path.isfile(location)
    return store.stat(split_location(location)[1]) != ABSENT


def _entries(store: Store, folder: str) -> tuple[list[str], list[str]]:
    try:
        return store.entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return [], []


def _below(location: str, suffixes: Sequence[str]) -> list[str]:
    """The files of a folder, or of a pattern; none when it is not there."""
    glob = None if _is_itself(location) else glob_in(location)
    if glob is None:
        return [join_location(location, file) for file in _listed(open_store(location), suffixes)]
    cut = location.rfind("/", 0, glob.start()) + 1
    base, pattern = location[:cut] or ".", location[cut:]
    store = open_store(base)
    if "**" in pattern:
        wanted = expression(pattern)
        return [join_location(base, file) for file in _listed(store, suffixes) if wanted.fullmatch(file)]
    found = []
    for name, is_folder in _matching(store, pattern):
        inside = join_location(base, name)
        if is_folder:
            found += [join_location(inside, file) for file in _listed(open_store(inside), suffixes)]
        elif name.lower().endswith(tuple(suffixes)):
            found.append(inside)
    return found


def _matching(store: Store, pattern: str) -> Iterator[tuple[str, bool]]:
    """What matches a pattern without `**`, and whether it is a folder; only folders that may hold it are
    looked into."""
    *parts, last = pattern.split("/")
    around = [""]
    for part in parts:
        around = [
            f"{folder}{name}/"
            for folder in around
            for name in _entries(store, folder.rstrip("/"))[0]
            if matches(name, part)
        ]
    for folder in around:
        folders, files = _entries(store, folder.rstrip("/"))
        names = sorted([(name, True) for name in folders] + [(name, False) for name in files])
        yield from ((folder + name, is_folder) for name, is_folder in names if matches(name, last))


def _listed(store: Store, suffixes: Sequence[str]) -> Iterator[str]:
    files = store.files()
    try:
        first = next(files, None)
    except (FileNotFoundError, NotADirectoryError):
        return  # there is no such folder; one that vanishes later is an error
    for file in itertools.chain([] if first is None else [first], files):
        if file.lower().endswith(tuple(suffixes)) and not is_hidden(file):
            yield file


def require_room(folder: Path, config_key: str) -> None:
    """UsageError naming `config_key` where no such folder can be made or written into."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            if not os.access(path, os.W_OK | os.X_OK):
                raise UsageError(f"{config_key}: {path} may not be written into; give another folder")
            return
        if path.exists():
            raise UsageError(f"{config_key}: {path} is a file; give a folder")
