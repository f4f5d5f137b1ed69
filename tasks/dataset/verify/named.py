"""Tars that a person names: one, or by a pattern. Braces promise each of their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby

from tasks.core.errors import UsageError
from tasks.core.patterns import expand, expand_braces, wildcard_in
from tasks.core.stores import (
    absolute_location,
    is_remote,
    is_valid,
    is_web,
    join_location,
    redact,
    split_location,
)
from tasks.dataset.verify.place import KEY, TARS, UNREAD, sizes_of, split_query, tars_in

FEW = 8
"""Names that are looked for one by one rather than in a list of their folder."""


def named_tars(given: str) -> tuple[str, dict[str, int], list[str]]:
    """The folder that all of them lie in, the sizes of those that are there, and the names of the others.

    UsageError when none is there, or when a name is that of something else.
    """
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
    base = _common([*found, *absent])
    if is_remote(given) and not is_valid(base):
        raise UsageError(f"{KEY}: {redact(pattern)} names more than one bucket or host; give one at a time")
    sizes = {one.removeprefix(base).lstrip("/"): size for one, size in found.items()}
    return base + query, sizes, [one.removeprefix(base).lstrip("/") for one in absent]


def _looked_up(folder: str, members: Sequence[str], query: str) -> list[tuple[str, int | None]]:
    """The location and size of each tar that these mean, None for the size of one that is not there."""
    wild = [one for one in members if wildcard_in(one) is not None and not (_is_local_file(one))]
    if is_web(folder) and wild:
        raise UsageError(f"{KEY}: a web server gives no list of its files; name them with {{000000..000042}}")
    plain = [one for one in members if one not in set(wild)]
    found: list[tuple[str, int | None]] = []
    for one in wild:
        files = expand(one, (*TARS, *UNREAD), KEY)
        found += [(file, size) for file, size in _sizes(files, "").items()]
    sizes = _sizes(plain, query)
    for one in plain:
        is_tar = one.endswith((*TARS, *UNREAD)) and (is_remote(one) or not os.path.isdir(one))
        found += [(one, sizes.get(one))] if is_tar else _inside(one)
    return found


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


def _inside(location: str) -> list[tuple[str, int | None]]:
    """The tars of a folder that a pattern names."""
    inside = {} if os.path.isfile(location) else tars_in(location)
    if not inside:
        raise UsageError(f"{KEY}: {redact(location)} is none of {', '.join(TARS)}, nor a folder of them")
    return [(join_location(location, name), size) for name, size in inside.items()]


def _common(locations: Sequence[str]) -> str:
    """The deepest folder that holds all of them."""
    parts = [split_location(one)[0].split("/") for one in locations]
    first, last = min(parts), max(parts)
    count = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return "/".join(first[:count]) or "/"
