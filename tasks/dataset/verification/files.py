"""The tars of a version as files: every one there, whole by size and end blocks, none beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tasks.core.findings import Finding
from tasks.dataset.shards import shard_name
from tasks.dataset.tar import END
from tasks.dataset.verification.faults import REMAKE, fault, where
from tasks.dataset.verification.place import tails
from tasks.dataset.verification.tables import Shard, Shards

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
    for name, end in tails(folder, names, len(END)):
        if isinstance(end, OSError):
            odd[name] = end
        elif end != END:
            odd[name] = None
    return odd


def file_faults(
    there: Mapping[str, int], odd: Mapping[str, OSError | None], expected: Expected
) -> Iterator[Finding]:
    """What names, sizes and ends tell; `there` are the tars that there are, with their sizes."""
    for name in expected:
        if name not in there or isinstance(odd.get(name), FileNotFoundError):
            yield _missing(name, expected)
        else:
            yield from _look(name, there[name], odd, expected)


def _look(name: str, size: int, odd: Mapping[str, OSError | None], expected: Expected) -> Iterator[Finding]:
    shard, error = expected.shard(name), odd.get(name)
    if error is not None:
        problem = f"unreadable: {error.strerror or error}"
        yield fault("shard.missing", REMAKE, where(name), problem=problem)
    elif shard is not None and size not in (shard.bytes, -1):
        code = "shard.truncated" if size < shard.bytes else "shard.checksum"
        yield fault(code, REMAKE, where(name), bytes=size, expected=shard.bytes)
    elif name in odd:
        yield fault("shard.truncated", REMAKE, where(name), problem="it does not end in two zero blocks")


def _missing(name: str, expected: Expected) -> Finding:
    shard = expected.shard(name)
    evidence = {} if shard is None else {"samples": shard.samples}
    return fault("shard.missing", REMAKE, where(name), **evidence)


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
