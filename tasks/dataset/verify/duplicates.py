"""Keys that are in more than one shard, in constant memory.

The looks into shards bring a hash of each key. Equal hashes meet in a spool, and only of those are the keys
themselves read again, from the table of samples or from the tars, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.dataset.verify.spool import Spool

TOGETHER = 100_000
"""Hashes whose keys are held at once."""

Found = dict[tuple[str, int], str]
"""Keys by shard and hash."""
Lookup = Callable[[Mapping[str, Collection[int]]], Iterable[tuple[str, str]]]
"""Gives (shard, key) for the keys of those shards that have one of those hashes, or just some of the shards'
keys."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that an earlier shard has, too; `key` is None where it could not be read again. `is_known`:
    something else is wrong with this sample, and was told."""

    shard: str
    key: str | None
    also_in: str
    is_known: bool


def key_hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))


class Duplicates:
    """Takes the hashes of every shard's keys, each once, then tells which are in several shards."""

    def __init__(self) -> None:
        self._spool = Spool()
        self._names: list[str] = []

    def add(self, shard: str, hashes: NDArray[np.uint64], known: Collection[int] = ()) -> None:
        """`known` are hashes of keys of which something was told already."""
        rows = np.isin(hashes, np.array(list(known), np.uint64)).astype(np.uint32)
        self._spool.add(hashes, len(self._names), rows)
        self._names.append(shard)

    def found(self, lookup: Lookup) -> Iterator[Duplicate]:
        """Shards count as earlier by their names."""
        order = np.argsort(np.argsort(np.array(self._names))) if self._names else np.zeros(0, np.int64)
        held: list[NDArray[np.void]] = []
        count = 0
        for piece in self._spool.repeated():
            held.append(piece)
            count += len(piece)
            if count >= TOGETHER:
                yield from self._resolved(np.concatenate(held), order, lookup)
                held, count = [], 0
        if count:
            yield from self._resolved(np.concatenate(held), order, lookup)

    def _resolved(
        self, met: NDArray[np.void], order: NDArray[np.int64], lookup: Lookup
    ) -> Iterator[Duplicate]:
        met = met[np.lexsort((order[met["place"]], met["value"]))]
        wanted: dict[str, set[int]] = {}
        for entry in met:
            wanted.setdefault(self._names[entry["place"]], set()).add(int(entry["value"]))
        found: Found = {}
        for shard, key in lookup(wanted):
            value = key_hash(key)
            if value in wanted.get(shard, ()):
                found[shard, value] = key
        starts = np.flatnonzero(np.diff(met["value"], prepend=met["value"][:1] + np.uint64(1)))
        for start, stop in pairwise([*starts, len(met)]):
            yield from self._compared(met[start:stop], found)

    def _compared(self, met: NDArray[np.void], found: Found) -> Iterator[Duplicate]:
        """Of one hash's shards those whose key an earlier one has; two keys of one hash are no duplicates. A
        key that could not be read again is taken for equal."""
        first: dict[str | None, str] = {}
        for entry in met:
            shard = self._names[entry["place"]]
            key = found.get((shard, int(entry["value"])))
            is_new = key is not None and None not in first
            same = key if key in first or is_new else next(iter(first), None)
            if same in first:
                yield Duplicate(shard, key or same, first[same], bool(entry["row"]))
            else:
                first[key] = shard

    def close(self) -> None:
        self._spool.close()
