"""The tars of a version as files: every one there, whole by size and end blocks, none beside them."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

from tasks.core.findings import Finding
from tasks.core.stores import NotRegular, is_remote
from tasks.dataset.layout import shard_name
from tasks.dataset.tar.writer import END
from tasks.dataset.verify.faults import REMAKE, RIGHTS, fault, where
from tasks.dataset.verify.place import ends
from tasks.dataset.verify.tables import Shard, Shards

MOST_NAMED = 1_000_000
"""Shards of a split that a damaged manifest can make anybody look for."""


class Expected:
    """The shards that should be there: `counts` by split, and what their table says of each if there is one.

    `others` are tars of which nobody knows whether they should be there, for want of a table.
    """

    def __init__(
        self, shards: Shards | None, counts: Mapping[str, int], others: Collection[str] = ()
    ) -> None:
        self._shards = shards
        self._counts = {split: min(count, MOST_NAMED) for split, count in counts.items()}
        self._others = dict.fromkeys(name for name in others if not self._is_counted(name))

    def __len__(self) -> int:
        return sum(self._counts.values()) + len(self._others)

    def __iter__(self) -> Iterator[str]:
        """Their names, in order."""
        for split, count in self._counts.items():
            yield from (shard_name(split, number) for number in range(count))
        yield from self._others

    def __contains__(self, name: str) -> bool:
        return self._is_counted(name) or name in self._others

    def _is_counted(self, name: str) -> bool:
        split, _, file = name.partition("/")
        digits = file.removesuffix(".tar")
        if split not in self._counts or not digits.isdecimal():
            return False
        return int(digits) < self._counts[split] and name == shard_name(split, int(digits))

    def shard(self, name: str) -> Shard | None:
        """What the table says of one of them; None without a table."""
        split, _, file = name.partition("/")
        return None if self._shards is None else self._shards[split].shard(int(file.removesuffix(".tar")))


def odd_ends(folder: str, names: Iterable[str]) -> dict[str, OSError | None]:
    """The tars that do not end in two zero blocks, or why their end cannot be read."""
    odd: dict[str, OSError | None] = {}
    for name, end in ends(folder, names, len(END)):
        if isinstance(end, OSError):
            odd[name] = end
        elif end != END:
            odd[name] = None
    return odd


def file_faults(
    folder: str, there: Mapping[str, int], odd: Mapping[str, OSError | None], expected: Expected
) -> Iterator[Finding]:
    """What names, sizes and ends tell; `there` are the tars that there are, with their sizes."""
    found = list(shut_faults(folder, expected))
    yield from found
    shut = shut_in(found)
    for name in expected:
        if name.rpartition("/")[0] in shut:
            continue
        if name not in there:
            yield _missing(folder, name, expected)
        else:
            yield from _look(folder, name, there[name], odd, expected)


def shut_faults(folder: str, names: Iterable[str]) -> Iterator[Finding]:
    """Of the folders of these tars those that this user may not list or enter: whether their tars are there,
    nobody can say."""
    for split in () if is_remote(folder) else sorted({name.rpartition("/")[0] for name in names}):
        try:
            os.listdir(f"{folder}/{split}")
            os.stat(f"{folder}/{split}/.")
        except PermissionError as error:
            problem = f"the folder is unreadable: {error.strerror or error}"
            yield fault("shard.checksum", RIGHTS, {"split": split}, problem=problem)
        except OSError:
            continue  # none there: its tars are missing


def shut_in(findings: Iterable[Finding]) -> frozenset[str]:
    """The splits whose folders are told to be shut."""
    return frozenset(found.where["split"] for found in findings if found.where.keys() == {"split"})


def unread(folder: str, name: str, error: OSError, remedy: str, **evidence: int) -> Finding:
    """A tar that cannot be opened: one that this user may not read, or that its disk or server does not give,
    is there; of any other thing in its place, `remedy` says how to come by the tar."""
    if isinstance(error, FileNotFoundError | NotRegular) or error.errno == errno.ELOOP:
        return fault("shard.missing", remedy, where(name), **evidence, **in_its_place(folder, name))
    problem = f"unreadable: {error.strerror or error}"
    remedy = RIGHTS if isinstance(error, PermissionError) else remedy
    return fault("shard.checksum", remedy, where(name), problem=problem)


def in_its_place(folder: str, name: str) -> dict[str, str]:
    """What there is where a tar should be."""
    path = f"{folder}/{name}"
    if is_remote(folder) or not os.path.lexists(path):
        return {}
    if os.path.isdir(path):
        return {"problem": "a folder stands in its place"}
    if os.path.islink(path) and not os.path.exists(path):
        return {"problem": f"a link to {os.readlink(path)}, which leads nowhere, stands in its place"}
    return {"problem": "what stands in its place is no regular file"}


def _look(
    folder: str, name: str, size: int, odd: Mapping[str, OSError | None], expected: Expected
) -> Iterator[Finding]:
    shard, error = expected.shard(name), odd.get(name)
    if error is not None:
        yield unread(folder, name, error, REMAKE, **_samples(shard))
    elif shard is not None and size not in (shard.bytes, -1):
        code = "shard.truncated" if size < shard.bytes else "shard.checksum"
        yield fault(code, REMAKE, where(name), bytes=size, expected=shard.bytes)
    elif name in odd:
        yield fault("shard.truncated", REMAKE, where(name), problem="it does not end in two zero blocks")


def _missing(folder: str, name: str, expected: Expected) -> Finding:
    return unread(folder, name, FileNotFoundError(), REMAKE, **_samples(expected.shard(name)))


def _samples(shard: Shard | None) -> dict[str, int]:
    return {} if shard is None else {"samples": shard.samples}


def extra_faults(there: Mapping[str, int], expected: Expected) -> Iterator[Finding]:
    """Tars that no table names; one as large as a shard that is missing may be just that."""
    missing: dict[int, str] = {}
    for name in expected:
        shard = None if name in there else expected.shard(name)
        if shard is not None:
            missing[shard.bytes] = name
    for name in there:
        if name not in expected:
            remedy = "move it away: it is in no table of this version"
            evidence = {"bytes": there[name]}
            if there[name] in missing:
                remedy = f"{missing[there[name]]} is missing and as large: rename it, if that is what it is"
            yield fault("shard.extra", remedy, where(name), **evidence)
