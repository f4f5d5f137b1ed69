"""Members of a tar as samples, by webdataset's rule; what is unsafe, too large or torn becomes a fault.

A key is the path up to the first dot of its last part; a sample ends where the key changes or a suffix comes
again (`tariterators.group_by_keys_nothrow` of open_clip). Where a tar is damaged, the sample in hand may lack
members without a trace, so it is given up with all that follows: each sample whose header can still be found
is a fault of its own, so that a dataset which has lost most of a tar does not look whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from tasks.dataset.rejects import Reason, Reject
from tasks.dataset.sources.foreign_tar import Damage, Member, TarReader
from tasks.dataset.sources.roles import LARGEST_BYTES, Roles
from tasks.dataset.tar.format import split_name
from tasks.dataset.tar.reader import BESIDE

MOST_MEMBERS = 10_000

Content = TypeVar("Content")


@dataclass
class Group(Generic[Content]):
    """Adjacent members of one key: the kept ones by suffix, and the suffixes of all."""

    key: str
    members: dict[str, Content] = field(default_factory=dict)
    suffixes: set[str] = field(default_factory=set)
    size_bytes: int = 0
    fault: tuple[Reason, str] | None = None

    @property
    def is_sample(self) -> bool:
        return not self.suffixes or not self.suffixes <= BESIDE


def groups(
    reader: TarReader, roles: Roles, load: Callable[[str, Member], Content]
) -> Iterator[Group[Content]]:
    """Samples in the tar's order; `load` gives what is kept of a member. OSError."""
    current: Group[Content] | None = None
    try:
        for member in reader:
            key, suffix = split_name(member.name)
            oddity = _oddity(member)
            if oddity is None and _is_beside(member.name, suffix):
                continue
            if current is None or key != current.key or suffix in current.suffixes:
                if current is not None and current.is_sample:
                    yield current
                current = Group(key)
            try:
                if oddity is not None:
                    raise Reject("archive.unsafe", f"{member.name!r} is {oddity}")
                _add(current, suffix, member, roles, load)
            except Reject as reject:
                current.members.clear()
                current.fault = current.fault or (reject.reason, reject.detail)
    except Damage as error:
        problem = f"the tar: {error}; this sample and whatever follows cannot be read"
        key = current.key if current is not None else ""
        for lost in chain([key], _keys_behind(reader, key)):
            yield Group(lost, fault=("source.unreadable", problem))
        return
    if current is not None and current.is_sample:
        yield current


def _keys_behind(reader: TarReader, key: str) -> Iterator[str]:
    """The keys of samples behind the damage that `key` has."""
    for name in reader.names_behind():
        found, suffix = split_name(name)
        if found != key and suffix not in BESIDE and not _is_beside(name, suffix):
            key = found
            yield key


def _add(
    group: Group[Content],
    suffix: str,
    member: Member,
    roles: Roles,
    load: Callable[[str, Member], Content],
) -> None:
    if len(group.suffixes) >= MOST_MEMBERS:
        raise Reject("archive.bomb", f"more than {MOST_MEMBERS:,} members of one key")
    group.suffixes.add(suffix)
    if group.fault is not None or not roles.keeps(suffix):
        return
    roles.check_size(suffix, member.size)
    group.size_bytes += member.size
    if group.size_bytes > LARGEST_BYTES:
        raise Reject("archive.bomb", f"its members have more than {LARGEST_BYTES:,} bytes")
    group.members[suffix] = load(suffix, member)


def _oddity(member: Member) -> str | None:
    """Why the member is no plain file of a relative path."""
    if member.kind is not None:
        return member.kind
    if member.name.startswith("/"):
        return "an absolute path"
    return "a path that leaves its folder" if ".." in member.name.split("/") else None


def _is_beside(name: str, suffix: str) -> bool:
    """Whether webdataset, too, passes the member over: hidden, without a suffix, or its own `__meta__`."""
    last = name.rpartition("/")[2]
    return not suffix or last.startswith(".") or (name.startswith("__") and name.endswith("__"))
