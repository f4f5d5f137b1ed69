"""What only all shards together show: keys that are in several, and members that nearly all samples have.

The keys of examined shards go to a temporary database of SQLite's, which keeps them in memory until they
outgrow its cache, then in a file that no other process sees and that goes with this one.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tasks.core.files import disk_full_as_error
from tasks.dataset.verify.findings import Fault, fault, shard_place

SHARE = 0.9
"""Of the samples that have a member which is required for want of a modality that says so."""
IMAGE = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jp2", "avif", "heic", "ppm"})
MOST_SETS = 10_000
"""Sets of members that are told apart; of further ones, only what a tenth of the samples has counts."""
MOST_MEMBERS = 100_000

Roles = frozenset[str]


class KeyFault(NamedTuple):
    """A fault of a sample; `is_known` when something else is wrong with this sample."""

    shard: str
    key: str
    fault: Fault
    is_known: bool


class SampleKeys:
    """Takes the keys of one shard after the other, in any order. DataError when the disk is full."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE shards (number INTEGER PRIMARY KEY, name BLOB)")
        self._database.execute("CREATE TABLE samples (key BLOB, shard INTEGER, roles INTEGER, known INTEGER)")
        self._database.execute("BEGIN")
        self._shards = 0
        self._numbers: dict[Roles, int] = {}
        self._counts: Counter[int] = Counter()
        self._have: Counter[str] = Counter()
        self._images: set[str] = set()

    def add(self, shard: str, keys: Mapping[str, tuple[str, ...] | None], known: Collection[str]) -> None:
        """Take a shard's keys, each with its members, or None where these are not known or do not count;
        `known` are those of which something is wrong that was reported."""
        number, self._shards = self._shards, self._shards + 1
        counts = Counter(keys.values())
        roles = {one: -1 if one is None else self._number(one, count) for one, count in counts.items()}
        rows = ((_encoded(key), number, roles[members], key in known) for key, members in keys.items())
        with disk_full_as_error(Path(tempfile.gettempdir())):
            self._database.execute("INSERT INTO shards VALUES (?, ?)", (number, _encoded(shard)))
            self._database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)

    def _number(self, suffixes: tuple[str, ...], count: int) -> int:
        """The number of a set of members, in which all kinds of images are one."""
        roles = frozenset("image" if suffix.lower() in IMAGE else suffix for suffix in suffixes)
        self._images.update(suffix for suffix in suffixes if suffix.lower() in IMAGE)
        for role in roles:
            if role in self._have or len(self._have) < MOST_MEMBERS:
                self._have[role] += count
        if roles not in self._numbers and len(self._numbers) >= MOST_SETS:
            roles = roles & {role for role, its in self._have.items() if its >= self._counts.total() / 10}
        number = self._numbers.setdefault(roles, len(self._numbers))
        self._counts[number] += count
        return number

    def duplicates(self) -> Iterator[KeyFault]:
        """Each further shard of a key, in order; the one it belongs to is the first by the shards' names."""
        if self._shards < 2:
            return
        named = "samples JOIN shards ON number = shard"
        query = (
            f"SELECT name, key, first, known FROM {named} JOIN "
            f"(SELECT key, min(name) AS first FROM {named} GROUP BY key HAVING count(*) > 1) USING (key) "
            "WHERE name > first ORDER BY name, key"
        )
        with disk_full_as_error(Path(tempfile.gettempdir())):
            self._database.execute("CREATE INDEX by_key ON samples (key, shard)")
            for name, key, first, known in self._database.execute(query):
                yield _fault("sample.duplicate_key", name, key, known, also_in=_decoded(first))

    def lacking(self) -> Iterator[KeyFault]:
        """The samples that lack a member which nearly all others have, shard by shard."""
        total = self._counts.total()
        required = sorted(role for role, count in self._have.items() if count >= SHARE * total)
        lacking = {
            number: (" ".join(sorted(roles)), [member for member in required if member not in roles])
            for roles, number in self._numbers.items()
            if not roles.issuperset(required)
        }
        self._database.execute("CREATE TEMP TABLE lacking (roles INTEGER PRIMARY KEY)")
        self._database.executemany("INSERT INTO lacking VALUES (?)", ((number,) for number in lacking))
        query = (
            "SELECT name, key, roles, known FROM samples JOIN shards ON number = shard "
            "WHERE roles IN (SELECT roles FROM lacking) ORDER BY name, samples.rowid"
        )
        for name, key, number, known in self._database.execute(query):
            there, members = lacking[number]
            for member in members:
                named = "|".join(sorted(self._images)) if member == "image" else member
                share = f"{self._have[member]:,} of {total:,} samples have it"
                evidence = {"there": there, "problem": share}
                yield _fault("sample.missing_member", name, key, known, named, **evidence)
                known = True

    def close(self) -> None:
        self._database.close()


def _fault(
    code: str, shard: bytes, key: bytes, known: int, member: str | None = None, **evidence: str
) -> KeyFault:
    name, decoded = _decoded(shard), _decoded(key)
    where = {**shard_place(name), "key": decoded, **({} if member is None else {"member": member})}
    return KeyFault(name, decoded, fault(code, where, **evidence), bool(known))


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _decoded(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
