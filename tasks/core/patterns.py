"""Expands a location to its files: a file, a folder, or a pattern of files.

Braces are choices and are expanded first, as in a shell (`{000..041}`, `{train,val}`); `*`, `?` and `[..]`
match within a name, `**` any depth. Only folders that may hold a match are listed, hidden names match only
where the pattern names them, and the order is that of the names: fsspec's glob keeps none of this (it lists
everything down to the pattern's depth) and would be imported even for local files.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from braceexpand import braceexpand

from tasks.core.errors import UsageError
from tasks.core.folders import LocalStore, open_store
from tasks.core.stores import (
    ABSENT,
    Store,
    StoreUnreachable,
    absolute_location,
    host_of,
    is_hidden,
    is_remote,
    is_web,
    join_location,
    redact,
    split_location,
    without_query,
)
from tasks.core.units import shorten

MOST_FILES = 10_000_000
"""The most names to which braces may expand."""
LONGEST_RANGE = 60
"""The most characters of a range; Python cannot parse numbers of thousands of digits."""
FEW_FILES = 8
"""Up to this many names are checked one by one; more are looked up in a listing of their folder."""

_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.|\{).*\}")
_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?\d+)?")
_WILD, _WEB_WILD = re.compile(r"[*?[]"), re.compile(r"[*[]")
_TOKENS = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\])")
_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def expand(location: str, suffixes: Sequence[str], config_key: str = "dataset.source.path") -> list[str]:
    """Return the files of a location, as locations; local ones are absolute.

    `raw/*.parquet` promises at least one file, `s3://b/{train,val}/{000000..000042}.tar` every one of them. A
    folder stands for all files below it with one of `suffixes` (lower case, with the dot), sorted by name,
    without hidden ones. Raises a UsageError that names `config_key` if a promised file is missing.
    """
    promised = [location] if _exists(location) else list(dict.fromkeys(expand_braces(location, config_key)))
    try:
        files = _files_among(promised)
        found = [[one] if one in files else _below(one, suffixes) for one in promised]
    except StoreUnreachable:
        raise
    except OSError as error:
        place, why = redact(error.filename or location), error.strerror or error
        raise UsageError(f"{config_key}: {place} cannot be read: {why}") from None
    for one, its_files in zip(promised, found, strict=True):
        has_suffix = without_query(one).lower().endswith(tuple(suffixes))
        if one in files and not has_suffix:
            raise UsageError(
                f"{config_key}: {redact(one)} is none of {', '.join(suffixes)}; convert it to one"
            )
        if not its_files:
            raise UsageError(f"{config_key}: {_nothing_found(one, location, has_suffix, suffixes)}")
    return [absolute_location(file) for its_files in found for file in its_files]


def _nothing_found(promised: str, location: str, has_suffix: bool, suffixes: Sequence[str]) -> str:
    of_whole = "" if promised == location else f" of {redact(location)}"
    if has_suffix and wildcard_in(promised) is None:
        start = "" if os.path.isabs(promised) else "; paths start at the working directory"
        return f"there is no file {redact(promised)}{of_whole}{start}"
    return f"there is no {redact(promised)}{of_whole}, or it holds no {' or '.join(suffixes)} file"


def expand_braces(location: str, config_key: str) -> list[str]:
    """Return the names to which the braces of a location expand, in order; without braces, the location.

    Raises UsageError for a range that runs backwards and for more than MOST_FILES names.
    """
    if _most_names(location, config_key) > MOST_FILES:
        name = shorten(location)
        raise UsageError(f"{config_key}: {name} stands for more than {MOST_FILES:,} files; give fewer")
    try:
        return list(braceexpand(location, escape=False))
    except (ValueError, RecursionError):  # unbalanced braces, or thousands of them
        return [location]


def _most_names(location: str, config_key: str) -> int:
    """Return an upper bound of the number of names without expanding the braces: braceexpand holds all names
    of a group at once, so a hostile pattern would exhaust the memory before it could be counted."""
    most, rest = 1, location
    while most <= MOST_FILES and (group := _GROUP.search(rest)):
        numbers = _RANGE.fullmatch(group[1])
        if numbers is None:
            most *= group[1].count(",") + 1
        elif len(group[1]) > LONGEST_RANGE:
            return MOST_FILES + 1
        elif int(numbers[1]) > int(numbers[2]):
            raise UsageError(f"{config_key}: {group[0]} needs the smaller number first")
        else:
            most *= int(numbers[2]) - int(numbers[1]) + 1
        rest = rest[: group.start()] + rest[group.end() :]
    return most


def would_match(location: str, file: str) -> bool:
    """Whether a local location would include this file, an absolute path, if the file existed."""
    promised = [location] if _exists(location) else expand_braces(location, "path")
    return any(_would_match(os.path.abspath(one), file) for one in promised)


def _would_match(promised: str, file: str) -> bool:
    wildcard = None if _exists(promised) else wildcard_in(promised)
    if wildcard is None:
        base = os.path.realpath(promised)
        return file == base or file.startswith(f"{base.rstrip('/')}/")
    cut = promised.rfind("/", 0, wildcard)
    base, pattern = os.path.realpath(promised[:cut] or "/").rstrip("/") + "/", promised[cut + 1 :]
    if not file.startswith(base):
        return False
    below = file.removeprefix(base)
    if "**" in pattern:
        return _expression(pattern).fullmatch(below) is not None
    names, parts = below.split("/"), pattern.split("/")
    return len(names) >= len(parts) and all(map(_matches, names, parts))


def base_folder(location: str) -> str:
    """Return the folder that holds all files of a location, absolute if local; names in messages start
    there."""
    if not _exists(location):
        start = pattern_start(location)
        if start is not None:
            return absolute_location(split_location(location[:start])[0])
    return absolute_location(split_location(location)[0] if _files_among([location]) else location)


def pattern_start(location: str) -> int | None:
    """Return the position of the first brace or wildcard of a location; None without any."""
    braces = _BRACES.search(location)
    starts = (braces.start() if braces else None, wildcard_in(location))
    return min((start for start in starts if start is not None), default=None)


def wildcard_in(location: str) -> int | None:
    """Return the position of the first wildcard. In an address of a web server `?` begins the query."""
    wild = _WEB_WILD if is_web(location) else _WILD
    found = wild.search(location, len(host_of(location)) if is_remote(location) else 0)
    return found.start() if found else None


def _exists(location: str) -> bool:
    """Whether a local file or folder has exactly this name, whatever pattern the name looks like."""
    return not is_remote(location) and os.path.exists(location)


def _files_among(locations: Sequence[str]) -> set[str]:
    """Return the locations that are files: by a `stat` each, or by a listing of a folder that has many."""
    files = set()
    for folder, group in itertools.groupby(locations, key=lambda location: split_location(location)[0]):
        members = list(group)
        if folder.endswith(":/"):
            continue  # a bucket or host by itself
        store = open_store(folder)
        if len(members) > FEW_FILES and not is_web(folder):
            names = set(_entries(store, "")[1])
            files |= {member for member in members if split_location(member)[1] in names}
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
    """Return the files in a folder or of a pattern; empty if there are none."""
    wildcard = None if _exists(location) else wildcard_in(location)
    if wildcard is None:
        return [join_location(location, file) for file in _listed(open_store(location), suffixes)]
    cut = location.rfind("/", 0, wildcard) + 1
    base, pattern = location[:cut] or ".", location[cut:]
    store = open_store(base)
    if "**" in pattern:
        wanted = _expression(pattern)
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
    """Yield the names that match a pattern without `**`, each with whether it is a folder."""
    *parts, last = pattern.split("/")
    around = [""]
    for part in parts:
        around = [
            f"{folder}{name}/"
            for folder in around
            for name in _entries(store, folder.rstrip("/"))[0]
            if _matches(name, part)
        ]
    for folder in around:
        folders, files = _entries(store, folder.rstrip("/"))
        names = sorted([(name, True) for name in folders] + [(name, False) for name in files])
        yield from ((folder + name, is_folder) for name, is_folder in names if _matches(name, last))


def _listed(store: Store, suffixes: Sequence[str]) -> Iterator[str]:
    """Yield the visible files below a store's folder: none if the folder is missing, but an error if it
    vanishes later."""
    files = store.files()
    try:
        first = next(files, None)
    except (FileNotFoundError, NotADirectoryError):
        return
    for file in itertools.chain([] if first is None else [first], files):
        if file.lower().endswith(tuple(suffixes)) and not is_hidden(file):
            yield file


def _matches(name: str, part: str) -> bool:
    """Whether one name matches one part of a pattern; `*` leaves hidden names out, as in a shell."""
    return bool(_expression(part).fullmatch(name)) and (part.startswith(".") or not is_hidden(name))


@lru_cache(maxsize=64)
def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern of whole paths: `a/**/[!b]*` matches `a/c1` and
    `a/x/y/c1`."""
    return re.compile("".join(map(_translated, _TOKENS.split(pattern))), re.DOTALL)


def _translated(token: str) -> str:
    if token in _EXPRESSIONS:
        return _EXPRESSIONS[token]
    if not _TOKENS.fullmatch(token):
        return re.escape(token)
    is_negated = token[1] == "!"
    inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", token[1 + is_negated : -1])
    try:
        return re.compile(f"(?!/)[{'^' if is_negated else ''}{inside}]").pattern
    except re.error:  # a range that ends before it begins
        return "(?!)" if not is_negated else "[^/]"
