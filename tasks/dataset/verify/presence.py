"""Tars seen from outside: whether they are there, may be read, and end in two zero blocks."""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from tasks.core.stores import NotRegular, is_remote
from tasks.dataset.verify.report import Fault, Fix, fault, shard_place

_NUMBER = re.compile(r"\d+")


def shut_splits(folder: str, names: Iterable[str]) -> dict[str, Fault]:
    """The folders of these tars that this user may not list or enter: nobody can say what is in them."""
    found = {}
    for split in () if is_remote(folder) else sorted({name.rpartition("/")[0] for name in names}):
        try:
            os.listdir(f"{folder}/{split}")
            os.stat(f"{folder}/{split}/.")
        except PermissionError as error:
            problem = f"the folder is unreadable: {error.strerror or error}"
            found[split] = fault("shard.checksum", {"split": split}, Fix.RIGHTS, problem=problem)
        except OSError:
            continue  # there is none: its tars are missing
    return found


def unread(folder: str, name: str, error: OSError, fix: Fix | str, **evidence: int) -> Fault:
    """A tar that cannot be opened: one that this user may not read, or that its disk or server does not give,
    is there; of any other thing in its place, `fix` says how to come by the tar."""
    if isinstance(error, FileNotFoundError | NotRegular) or error.errno in (errno.ELOOP, errno.EISDIR):
        return missing(folder, name, fix, **evidence)
    problem = f"unreadable: {error.strerror or error}"
    fix = Fix.RIGHTS if isinstance(error, PermissionError) else fix
    return fault("shard.checksum", shard_place(name), fix, problem=problem)


def missing(folder: str, name: str, fix: Fix | str, **evidence: object) -> Fault:
    return fault("shard.missing", shard_place(name), fix, **{**evidence, **_in_its_place(folder, name)})


def _in_its_place(folder: str, name: str) -> dict[str, str]:
    """What there is where a tar should be."""
    path = f"{folder}/{name}"
    if is_remote(folder) or not os.path.lexists(path):
        return {}
    if os.path.isdir(path):
        return {"problem": "a folder stands in its place"}
    if os.path.islink(path) and not os.path.exists(path):
        return {"problem": f"a link to {os.readlink(path)}, which leads nowhere, stands in its place"}
    return {"problem": "what stands in its place is no regular file"}


def holes(names: Collection[str]) -> list[str]:
    """The names left out of consecutive numbers: `0.tar`, `1.tar`, `3.tar` lack `2.tar`.

    Numbers of which fewer than half are there are taken for names that only look like numbers.
    """
    groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for name in names:
        for found in _NUMBER.finditer(name, name.rfind("/") + 1):
            groups[name[: found.start()], name[found.end() :]][int(found[0])] = found[0]
    known = set(names)
    lacking = set()
    for (before, after), members in groups.items():
        first, last = min(members), max(members)
        left_out = last - first + 1 - len(members)
        if not 0 < left_out <= len(members):
            continue
        width = max((len(text) for text in members.values() if text.startswith("0")), default=0)
        lacking |= {f"{before}{n:0{width}d}{after}" for n in range(first, last) if n not in members}
    return sorted(lacking - known)


def hole_faults(names: Collection[str], fix: Fix | str) -> Iterator[Fault]:
    for name in holes(names):
        problem = "its number is left out, while those around it are there"
        yield fault("shard.missing", shard_place(name), fix, problem=problem)
