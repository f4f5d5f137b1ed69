"""Holds every listed sample of a build on disk, so a build of a billion samples needs no more memory than a
small one.

SQLite sorts and finds duplicates out of core. The dataset's lease ensures that there is one writer; workers
open the finished catalogue read-only. Containers of a sequential source are committed whole, so a build that
is killed while it reads continues with the next container. If samples have files of their own, the catalogue
serves a single build and need not survive a crash.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.schema.dataset import ShardRules
from tasks.core.stores import ObjectStat
from tasks.dataset.building.listed.shard_plan import PlannedShard, plan_shards
from tasks.dataset.keys import HASH_BITS
from tasks.dataset.sources import Container
from tasks.dataset.version.rejects import FILTERED, Reason, printable

NAME = "catalogue.sqlite"
SOURCE_BITS = 40
_SIGN = 1 << (HASH_BITS - 1)
"""SQLite's integers are signed, so shard hashes are shifted, which keeps their order."""


class ListedSample(NamedTuple):  # takes a quarter of a frozen dataclass's time to make
    """A listed sample that is to be converted.

    `source` is the index of its source in the config. `number` orders all raw samples as their sources do: it
    is `source << SOURCE_BITS` plus the count of raw samples listed so far. `size` (bytes) and `stamp` belong
    to its files. If its raw members wait in the spill instead, `size` and `stamp` are their size and digest,
    and `part`, `offset` and `length` locate them there.
    """

    number: int
    key: str
    original_key: str
    place: str
    source: int
    file: str
    size: int
    stamp: str
    content: str
    group: str | None
    part: int | None = None
    offset: int | None = None
    length: int | None = None

    @property
    def identity(self) -> bytes:
        """The facts that must stay equal for a sample to count as unchanged; its place is not among them."""
        group = "\1" if self.group is None else self.group
        facts = (self.key, self.original_key, self.file, str(self.size), self.stamp, self.content, group)
        return "\0".join(facts).encode("utf-8", "surrogatepass")


class Listed(NamedTuple):
    """A listed sample with its split, its shard hash and its weight (in samples or bytes)."""

    entry: ListedSample
    split: str
    shard_hash: int
    weight: int


@dataclass(frozen=True, slots=True)
class RejectedSample:
    """A raw sample that was rejected: a row of `rejects.parquet`. The catalogue makes its texts printable."""

    number: int
    key: str
    original_key: str
    reason: Reason
    detail: str
    source: str
    file: str

    @classmethod
    def of(cls, entry: ListedSample, reason: Reason, detail: str) -> RejectedSample:
        """Return the entry as a rejected one."""
        return cls(entry.number, entry.key, entry.original_key, reason, detail, entry.place, entry.file)


_COLUMNS = "key TEXT, split TEXT, shard_hash INTEGER, weight INTEGER, size INTEGER, entry BLOB"
"""`entry` is the whole ListedSample by marshal: that takes half the time of a column per field, and accepts
texts that are not valid Unicode, as paths and captions may be."""
SCHEMA = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE containers (
    source INTEGER, name BLOB, size INTEGER, stamp TEXT, filtered INTEGER, PRIMARY KEY (source, name));
CREATE TABLE listed (number INTEGER PRIMARY KEY, {_COLUMNS});
CREATE TABLE rejects (number INTEGER PRIMARY KEY, key TEXT, original_key TEXT, reason TEXT, detail TEXT,
    place TEXT, file TEXT, is_entry INTEGER);
CREATE TABLE entries (rank INTEGER PRIMARY KEY, number INTEGER, {_COLUMNS});
CREATE TABLE shards (
    ordinal INTEGER PRIMARY KEY, split TEXT, start INTEGER, stop INTEGER, digest TEXT UNIQUE);
"""
_SHARED_HASH = "SELECT 1 FROM listed GROUP BY shard_hash HAVING count(*) > 1 LIMIT 1"
_DUPLICATES = """
SELECT later.entry, first.entry
FROM (SELECT key AS shared, min(number) AS least FROM listed GROUP BY key HAVING count(*) > 1)
JOIN listed AS later ON later.key = shared AND later.number > least
JOIN listed AS first ON first.key = shared AND first.number = least
"""
Advice = Mapping[int, str]
"""What to do if samples of a source share a key, by the source's index."""


class Catalogue:
    """The samples of one build, which are listed, then sorted, then planned."""

    def __init__(self, path: Path, *, reads_only: bool = False, is_kept: bool = False) -> None:
        """`reads_only` is for workers, which open a finished catalogue. With `is_kept` a later build may
        continue it, so every transaction waits for the disk."""
        self.path = path
        mode = "mode=ro&immutable=1" if reads_only else "mode=rwc&nolock=1"
        if not reads_only:
            os.environ["SQLITE_TMPDIR"] = str(path.parent)  # which needs room anyway
        self._database = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
        if reads_only:
            return
        if not is_kept:
            self._database.execute("PRAGMA synchronous = OFF")
        if not self._database.execute("SELECT name FROM sqlite_master").fetchone():
            self._database.execute("PRAGMA page_size = 16384")  # the rows of a shard lie in fewer pages
            self._database.executescript(f"BEGIN; {SCHEMA} COMMIT;")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep everything that the block writes, or nothing."""
        self._database.execute("BEGIN")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:  # SQLite ends it itself when the disk is full
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def fact(self, name: str) -> Any:
        """Return what `note` has stored under this name, or None."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def note(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    # listing

    def add_containers(self, source: int, containers: Iterable[Container]) -> None:
        """Add containers that are still to be read."""
        rows = ((source, _raw(one.name), one.stat.size, one.stat.stamp) for one in containers)
        self._database.executemany("INSERT INTO containers VALUES (?, ?, ?, ?, NULL)", rows)

    def containers(self, *, are_read: bool) -> list[tuple[int, Container]]:
        """Return the containers that were read, or those that are still to be, in order, with their
        sources."""
        found = self._database.execute(
            f"SELECT * FROM containers WHERE filtered IS {'NOT ' * are_read}NULL ORDER BY rowid"
        )
        return [
            (source, Container(name.decode("utf-8", "surrogatepass"), ObjectStat(size, stamp)))
            for source, name, size, stamp, _ in found
        ]

    def forget_unread(self) -> None:
        """Forget the containers that are still to be read."""
        self._database.execute("DELETE FROM containers WHERE filtered IS NULL")

    def close_container(self, source: int, name: str, filtered: int) -> None:
        """Note that a container was read, and how many of its samples the filter left out."""
        self._database.execute(
            "UPDATE containers SET filtered = ? WHERE source = ? AND name = ?", (filtered, source, _raw(name))
        )

    def add(self, listed: Iterable[Listed]) -> None:
        self._database.executemany(
            "INSERT INTO listed VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (entry[0], entry[1], split, shard_hash - _SIGN, weight, entry[6], marshal.dumps(tuple(entry)))
                for entry, split, shard_hash, weight in listed
            ),
        )

    def reject(self, rejected: Iterable[RejectedSample], *, in_conversion: bool = False) -> None:
        """Note rejected samples: before they became entries, or entries that were rejected
        `in_conversion`."""
        rows = (
            (
                *(one.number, one.key, printable(one.original_key), one.reason, printable(one.detail)),
                *(printable(one.source), printable(one.file), in_conversion),
            )
            for one in rejected
        )
        self._database.executemany("INSERT OR REPLACE INTO rejects VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    # grouping

    @property
    def listed(self) -> int:
        return self._count("SELECT count(*) FROM listed")

    def every_listed(self) -> Iterator[ListedSample]:
        """Yield the listed samples in the sources' order."""
        for (packed,) in self._database.execute("SELECT entry FROM listed ORDER BY number"):
            yield _entry(packed)

    def listed_as(self, numbers: Iterable[int]) -> Iterator[ListedSample]:
        """Yield the listed samples with these numbers, in their order."""
        for number in numbers:
            query = "SELECT entry FROM listed WHERE number = ?"
            yield _entry(self._database.execute(query, (number,)).fetchone()[0])

    def regroup(self, moves: Iterable[tuple[int, str, str]]) -> None:
        """Change group and split of listed samples, given as number, group and split."""
        for number, group, split in moves:
            [entry] = self.listed_as([number])
            changed = marshal.dumps(tuple(entry._replace(group=group)))
            row = (split, changed, number)
            self._database.execute("UPDATE listed SET split = ?, entry = ? WHERE number = ?", row)

    # planning

    def _reject_duplicates(self, advice: Advice) -> None:
        if not self._database.execute(_SHARED_HASH).fetchone():
            return  # equal keys have equal hashes
        self._database.execute("CREATE INDEX IF NOT EXISTS listed_keys ON listed (key, number)")
        for later, first in self._database.execute(_DUPLICATES):
            entry = _entry(later)
            detail = f"{printable(_entry(first).place)} has this key{advice.get(entry.source, '')}"
            self.reject([RejectedSample.of(entry, "key.duplicate", detail)])

    def plan(
        self, rules: ShardRules, rules_digest: str, source_digests: Sequence[str], advice: Advice
    ) -> None:
        """Reject samples whose key an earlier sample has, order the others by `rules` and cut them into
        shards.

        A shard's digest covers all that shapes its bytes: the rules, each sample, and the sample's source.
        """
        self._reject_duplicates(advice)
        order = "shard_hash, key" if rules.order == "hash" else "number"
        self._database.execute(
            "INSERT INTO entries SELECT NULL, * FROM listed "
            f"WHERE number NOT IN (SELECT number FROM rejects) ORDER BY split, {order}"
        )
        prefixes = [f"{digest}\0".encode() for digest in source_digests]
        names = self._database.execute("SELECT DISTINCT split FROM entries ORDER BY split").fetchall()
        splits = ((split, self._weighed(split, prefixes)) for (split,) in names)
        self._add_shards(plan_shards(splits, rules, rules_digest))

    def select(self, wanted: Mapping[str, Sequence[str]], advice: Advice) -> list[str]:
        """Plan, instead of `plan`, one shard per name that holds the samples of these keys, in this order.

        Ordinals count the names that have samples, in their order. Returns the keys that no sample has.
        """
        self._reject_duplicates(advice)
        self._database.execute("CREATE TEMP TABLE wanted (shard TEXT, row INTEGER, key TEXT)")
        rows = ((name, row, key) for name, keys in wanted.items() for row, key in enumerate(keys))
        self._database.executemany("INSERT INTO wanted VALUES (?, ?, ?)", rows)
        self._database.execute(
            "INSERT INTO entries SELECT NULL, listed.* FROM wanted JOIN listed ON listed.key = wanted.key "
            "WHERE number NOT IN (SELECT number FROM rejects) ORDER BY wanted.shard, wanted.row"
        )
        self._database.execute(
            "UPDATE entries SET split = (SELECT shard FROM wanted WHERE wanted.key = entries.key)"
        )
        bounds = self._database.execute(
            "SELECT split, min(rank), max(rank) + 1 FROM entries GROUP BY split ORDER BY split"
        ).fetchall()
        self._add_shards(
            PlannedShard(ordinal, name, start, stop, name.removesuffix(".tar").replace("/", "-"))
            for ordinal, (name, start, stop) in enumerate(bounds)
        )
        missing = self._database.execute(
            "SELECT key FROM wanted WHERE key NOT IN (SELECT key FROM entries) ORDER BY shard, row"
        )
        return [key for (key,) in missing]

    def _weighed(self, split: str, prefixes: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
        """Yield shard hash, weight and identity of a split's samples, in the order of their ranks, which
        count from 1 over all splits."""
        query = "SELECT shard_hash, weight, entry FROM entries WHERE split = ? ORDER BY rank"
        for shard_hash, weight, packed in self._database.execute(query, (split,)):
            entry = _entry(packed)
            yield shard_hash + _SIGN, weight, prefixes[entry.source] + entry.identity

    def _add_shards(self, shards: Iterable[PlannedShard]) -> None:
        rows = ((one.ordinal, one.split, one.start, one.stop, one.digest) for one in shards)
        self._database.executemany("INSERT INTO shards VALUES (?, ?, ?, ?, ?)", rows)

    # the finished catalogue

    @property
    def read(self) -> int:
        """All raw samples, before any rule."""
        return self.accepted + self.rejected_in_listing + self._filtered_in_listing

    @property
    def accepted(self) -> int:
        """Samples that are to be converted."""
        return self._count("SELECT coalesce(max(rank), 0) FROM entries")

    @property
    def rejected_in_listing(self) -> int:
        """Samples that were rejected before conversion."""
        return self._count("SELECT count(*) FROM rejects WHERE NOT is_entry")

    @property
    def left_out_in_conversion(self) -> int:
        """Samples that were rejected or filtered in conversion, as far as `reject` has noted them."""
        return self._count("SELECT count(*) FROM rejects WHERE is_entry")

    @property
    def filtered(self) -> int:
        """Samples that the user's filter leaves out, as far as is known."""
        of_statistics = f"SELECT count(*) FROM rejects WHERE reason = '{FILTERED}'"
        return self._filtered_in_listing + self._count(of_statistics)

    @property
    def _filtered_in_listing(self) -> int:
        return self._count("SELECT coalesce(sum(filtered), 0) FROM containers")

    @property
    def entry_bytes(self) -> int:
        """Raw bytes of all samples that are to be converted."""
        return self._count("SELECT coalesce(sum(max(size, 0)), 0) FROM entries")

    @property
    def container_count(self) -> int:
        return self._count("SELECT count(*) FROM containers")

    def shards(self) -> Iterator[PlannedShard]:
        """Yield the planned shards: splits by name, and shards in order within each."""
        for row in self._database.execute("SELECT * FROM shards ORDER BY ordinal"):
            yield PlannedShard(*row)

    @property
    def planned(self) -> int:
        """The number of planned shards."""
        return self._count("SELECT count(*) FROM shards")

    def shard(self, ordinal: int) -> PlannedShard:
        row = self._database.execute("SELECT * FROM shards WHERE ordinal = ?", (ordinal,)).fetchone()
        return PlannedShard(*row)

    def ordinal(self, digest: str) -> int | None:
        """Return the ordinal of the planned shard with this digest, or None."""
        row = self._database.execute("SELECT ordinal FROM shards WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else int(row[0])

    def shards_of(self, keys: Iterable[str]) -> set[int]:
        """Return the ordinals of the planned shards that hold these keys."""
        self._index_keys()
        self._database.execute("CREATE INDEX IF NOT EXISTS shard_starts ON shards (start)")
        rank = "(SELECT rank FROM entries WHERE key = ?)"
        query = f"SELECT ordinal FROM shards WHERE start <= {rank} ORDER BY start DESC LIMIT 1"
        found = (self._database.execute(query, (key,)).fetchone() for key in keys)
        return {row[0] for row in found if row is not None}

    def entries(self, start: int, stop: int) -> list[ListedSample]:
        """Return the entries with ranks from `start` to before `stop`."""
        query = "SELECT entry FROM entries WHERE rank >= ? AND rank < ? ORDER BY rank"
        return [_entry(packed) for (packed,) in self._database.execute(query, (start, stop))]

    def some_keys(self, most: int) -> list[str]:
        """Return the original keys of at most `most` samples that are to be converted, evenly spread."""
        query = "SELECT entry FROM entries WHERE rank % ? = 0"
        step = 1 + self.accepted // most
        return [_entry(packed).original_key for (packed,) in self._database.execute(query, (step,))]

    def forget_conversions(self) -> None:
        """Forget the rejects that an earlier build noted in its conversion, because its sidecars hold
        them."""
        self._database.execute("DELETE FROM rejects WHERE is_entry")

    def rejects(self) -> Iterator[RejectedSample]:
        """Yield all rejects in the sources' order."""
        query = f"SELECT * FROM rejects WHERE reason <> '{FILTERED}' ORDER BY number"
        for *row, _ in self._database.execute(query):
            yield RejectedSample(*row)

    def examples(self) -> dict[str, str]:
        """Return the place and detail of the first reject of each reason."""
        query = (
            "SELECT reason, place || ': ' || detail, min(number) FROM rejects "
            f"WHERE reason <> '{FILTERED}' GROUP BY reason"
        )
        return {reason: example for reason, example, _ in self._database.execute(query)}

    def reasons(self) -> dict[str, int]:
        query = "SELECT reason, count(*) FROM rejects GROUP BY reason ORDER BY reason"
        counts = dict(self._database.execute(query).fetchall())
        counts.pop(FILTERED, None)
        return counts

    def note_converted(self, rows: Iterable[tuple[str, bytes, int | None, int | None]]) -> None:
        """Note for `find` and `find_filtered` what samples are made of: key, content, and length and
        CRC32C of the span, which filtered ones do not have."""
        self._database.execute(
            "CREATE TEMP TABLE IF NOT EXISTS converted "
            "(key TEXT PRIMARY KEY, content BLOB, length INTEGER, crc32c INTEGER) WITHOUT ROWID"
        )
        self._database.executemany("INSERT INTO converted VALUES (?, ?, ?, ?)", rows)

    def find(self, key: str) -> tuple[bytes | None, int | None, int | None] | None:
        """Return what the accepted sample with this key is made of, as far as that was noted; None if there
        is no such sample."""
        return self._database.execute(self._find, (key,)).fetchone()  # type: ignore[no-any-return]

    def find_filtered(self, key: str) -> tuple[bytes | None] | None:
        """Return the content, as far as that was noted, of the sample with this key that a rule on its
        statistics left out; None if there is no such sample."""
        return self._database.execute(self._find_filtered, (key,)).fetchone()  # type: ignore[no-any-return]

    @cached_property
    def _find_filtered(self) -> str:
        self._database.execute("CREATE INDEX IF NOT EXISTS left_out_keys ON rejects (key)")
        self.note_converted(())
        return (
            "SELECT content FROM rejects LEFT JOIN converted USING (key) "
            f"WHERE key = ? AND reason = '{FILTERED}'"
        )

    @cached_property
    def _find(self) -> str:
        self._index_keys()
        self.note_converted(())
        return (
            "SELECT content, length, crc32c FROM entries LEFT JOIN converted USING (key) "
            "WHERE key = ? AND number NOT IN (SELECT number FROM rejects)"
        )

    def _index_keys(self) -> None:
        self._database.execute("CREATE UNIQUE INDEX IF NOT EXISTS entry_keys ON entries (key)")

    def close(self) -> None:
        self._database.close()

    def _count(self, query: str) -> int:
        return int(self._database.execute(query).fetchone()[0])


def _entry(packed: bytes) -> ListedSample:
    return ListedSample._make(marshal.loads(packed))


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
