"""What only all shards together show: keys that are in several, and members that nearly all samples have.

The keys of examined shards go to a temporary database of SQLite's, which keeps them in memory until they
outgrow its cache, then in a file that no other process sees and that goes with this one.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from tasks.core.files import disk_full_as_error

SHARE = 0.9
"""Of the samples that have a member which is required for want of a modality that says so."""
IMAGE = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jp2", "avif", "heic", "ppm"})
MOST_SETS = 10_000
"""Sets of members that are told apart in all; of further ones, only what most samples have counts."""
MOST_MEMBERS = 100_000

Roles = frozenset[str]


class Duplicate(NamedTuple):
    """A key that an earlier shard has, too. `is_known` when something else is wrong with this sample."""

    shard: str
    key: str
    also_in: str
    is_known: bool


class Lacking(NamedTuple):
    """A sample without a member that nearly all others have; `there` are the members that it has."""

    shard: str
    key: str
    member: str
    there: str
    share: str
    is_known: bool


class SampleKeys:
    """Takes the keys of one shard after the other, in any order. DataError when the disk is full."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE samples (key BLOB, shard INTEGER, roles INTEGER, known INTEGER)")
        self._database.execute("BEGIN")
        self._shards: list[str] = []
        self._numbers: dict[Roles, int] = {}
        self._counts: Counter[int] = Counter()
        self._have: Counter[str] = Counter()
        self._images: set[str] = set()

    def add(
        self, shard: str, keys: Mapping[str, int], sets: Sequence[Sequence[str]], known: Iterable[str]
    ) -> None:
        """Take a shard's keys, each with the number of its set of members in `sets`, or -1 where that is not
        known; `known` are those of which something is wrong that was reported."""
        number = len(self._shards)
        self._shards.append(shard)
        counts = Counter(keys.values())
        roles = {-1: -1} | {one: self._number(sets[one], count) for one, count in counts.items() if one >= 0}
        bad = frozenset(known)
        rows = ((_encoded(key), number, roles[its_set], key in bad) for key, its_set in keys.items())
        with disk_full_as_error(Path(tempfile.gettempdir())):
            self._database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)

    def _number(self, suffixes: Sequence[str], count: int) -> int:
        roles = frozenset("image" if suffix.lower() in IMAGE else suffix for suffix in suffixes)
        self._images.update(suffix for suffix in suffixes if suffix.lower() in IMAGE)
        for role in roles:
            if role in self._have or len(self._have) < MOST_MEMBERS:
                self._have[role] += count
        if roles not in self._numbers and len(self._numbers) >= MOST_SETS:
            roles = roles & {role for role, its in self._have.items() if its >= self._samples / 10}
        number = self._numbers.setdefault(roles, len(self._numbers))
        self._counts[number] += count
        return number

    @property
    def _samples(self) -> int:
        return self._counts.total()

    def duplicates(self) -> Iterator[Duplicate]:
        """Each further shard of a key; the one it belongs to is the first by the shards' names."""
        if len(self._shards) < 2:
            return
        order = sorted(range(len(self._shards)), key=self._shards.__getitem__)
        rank = {number: place for place, number in enumerate(order)}
        query = (
            "SELECT key, shard, known FROM samples WHERE key IN "
            "(SELECT key FROM samples GROUP BY key HAVING count(*) > 1) ORDER BY key"
        )
        with disk_full_as_error(Path(tempfile.gettempdir())):
            self._database.execute("CREATE INDEX by_key ON samples (key)")
            for key, rows in groupby(self._database.execute(query), key=itemgetter(0)):
                first, *others = sorted(rows, key=lambda row: rank[row[1]])
                for _, shard, known in others:
                    yield Duplicate(self._shards[shard], _decoded(key), self._shards[first[1]], bool(known))

    def lacking(self) -> Iterator[Lacking]:
        """The samples that lack a required member, shard by shard."""
        required = sorted(role for role, count in self._have.items() if count >= SHARE * self._samples)
        lacking = {
            number: (roles, [member for member in required if member not in roles])
            for roles, number in self._numbers.items()
            if not roles.issuperset(required)
        }
        self._database.execute("CREATE TEMP TABLE lacking (roles INTEGER PRIMARY KEY)")
        self._database.executemany("INSERT INTO lacking VALUES (?)", ((number,) for number in lacking))
        query = (
            "SELECT key, shard, roles, known FROM samples WHERE roles IN (SELECT roles FROM lacking) "
            "ORDER BY shard, rowid"
        )
        for key, shard, number, known in self._database.execute(query):
            roles, members = lacking[number]
            for member in members:
                named = "|".join(sorted(self._images)) if member == "image" else member
                share = f"{self._have[member]:,} of {self._samples:,} samples have it"
                there = " ".join(sorted(roles))
                yield Lacking(self._shards[shard], _decoded(key), named, there, share, bool(known))

    def close(self) -> None:
        self._database.close()


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _decoded(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
