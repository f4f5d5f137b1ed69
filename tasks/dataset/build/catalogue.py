"""Every listed sample of a build, on disk: a build of a thousand million samples takes no more memory than a
small one.

SQLite sorts and finds duplicates out of core; the dataset's lease sees to it that there is one writer, and
workers open the finished catalogue read-only. A container of a sequential source is one transaction, so a
build that was killed while it read goes on with the next container. Where samples have files of their own the
catalogue serves one build alone and need not survive a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.files import fsync_path
from tasks.dataset.build import rows
from tasks.dataset.build.entries import Entry, Identity, Rejected
from tasks.dataset.build.shard_plan import Weighed
from tasks.dataset.rejects import printable

NAME = "catalogue.sqlite"
SCHEMA = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE containers (source INTEGER, name BLOB, stat TEXT, filtered INTEGER, PRIMARY KEY (source, name));
CREATE TABLE listed ({rows.SAMPLE});
CREATE TABLE rejects (number INTEGER PRIMARY KEY, key TEXT, original_key TEXT, reason TEXT, detail TEXT,
    place TEXT, file TEXT, is_entry INTEGER);
CREATE TABLE entries (rank INTEGER PRIMARY KEY, {rows.SAMPLE});
CREATE TABLE leaves (
    ordinal INTEGER PRIMARY KEY, split TEXT, start INTEGER, stop INTEGER, digest TEXT UNIQUE);
"""
_SHARED_POSITION = "SELECT 1 FROM listed GROUP BY position HAVING count(*) > 1 LIMIT 1"
_WHY_ALIKE = "; suffixes do not count, and rows of one image need key: [IMAGE, CAPTION]"
_DUPLICATES = """
SELECT later.number, later.key, later.original_key, later.place, later.file, first.place
FROM (SELECT key AS shared, min(number) AS least FROM listed GROUP BY key HAVING count(*) > 1)
JOIN listed AS later ON later.key = shared AND later.number > least
JOIN listed AS first ON first.key = shared AND first.number = least
"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One planned shard: the samples of ranks start to stop, and the digest of all that shapes its bytes."""

    ordinal: int
    split: str
    start: int
    stop: int
    digest: str

    @property
    def samples(self) -> int:
        return self.stop - self.start


class Catalogue:
    """The samples of one build: listed first, then sorted, then planned; the rest is for what is finished."""

    def __init__(self, path: Path, *, reads_only: bool = False, is_kept: bool = False) -> None:
        """`is_kept`: a later build may take it up, so every transaction waits for the disk."""
        self.path = path
        mode = "mode=ro&immutable=1" if reads_only else "mode=rwc&nolock=1"
        if not reads_only:
            os.environ["SQLITE_TMPDIR"] = str(path.parent)  # where there must be room anyway
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
        """All of it is kept, or none."""
        self._database.execute("BEGIN")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:  # SQLite has ended it itself when the disk is full
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def flush(self) -> None:
        """Workers on other machines find all that was written so far when this returns."""
        fsync_path(self.path)

    def fact(self, name: str) -> Any:
        """What `note` noted under this name; None before."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def note(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    # listing

    def containers(self) -> list[tuple[int, str, str]]:
        """The containers read so far, in order: source, name, stat."""
        found = self._database.execute("SELECT source, name, stat FROM containers ORDER BY rowid")
        return [(source, rows.text(name), stat) for source, name, stat in found]

    def close_container(self, source: int, name: str, stat: str, filtered: int) -> None:
        self._database.execute(
            "INSERT INTO containers VALUES (?, ?, ?, ?)", (source, rows.raw(name), stat, filtered)
        )

    @property
    def following_number(self) -> int:
        """The number of the next raw sample."""
        query = (
            "SELECT max(n) FROM (SELECT max(number) AS n FROM listed UNION SELECT max(number) FROM rejects)"
        )
        last = self._database.execute(query).fetchone()[0]
        return 0 if last is None else last + 1

    def add(self, listed: Iterable[Weighed[Entry]]) -> None:
        self._database.executemany(f"INSERT INTO listed VALUES ({', '.join('?' * 16)})", map(rows.of, listed))

    def reject(self, rejected: Iterable[Rejected], *, in_conversion: bool = False) -> None:
        """Note what is not taken: before it could become an entry, or `in_conversion` of what is one."""
        self._database.executemany(
            "INSERT OR REPLACE INTO rejects VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (r.number, r.key, r.original_key, r.reason, r.detail, r.source, r.file, in_conversion)
                for r in rejected
            ),
        )

    # planning

    def sort(self, by_hash: bool) -> None:
        """Refuse what has the key of an earlier sample, and bring the others into the order of the shards."""
        if self._database.execute(_SHARED_POSITION).fetchone():
            self._refuse_duplicates()
        order = "position, key" if by_hash else "number"
        self._database.execute(
            "INSERT INTO entries SELECT NULL, * FROM listed "
            f"WHERE number NOT IN (SELECT number FROM rejects) ORDER BY split, {order}"
        )

    def _refuse_duplicates(self) -> None:
        self._database.execute("CREATE INDEX IF NOT EXISTS listed_keys ON listed (key, number)")
        for number, key, original_key, place, file, first in self._database.execute(_DUPLICATES):
            names = [printable(rows.text(name)) for name in (original_key, place, file)]
            detail = f"{printable(rows.text(first))} has this key{_WHY_ALIKE}"
            self.reject([Rejected(number, key, names[0], "key.duplicate", detail, names[1], names[2])])

    def splits(self) -> list[str]:
        return [
            split for (split,) in self._database.execute("SELECT DISTINCT split FROM entries ORDER BY split")
        ]

    def sorted_samples(self, split: str) -> Iterator[Weighed[Identity]]:
        """What planning needs of a split's samples, in the order of their ranks, which count from 1 over all
        splits."""
        query = f"SELECT position, weight, {rows.IDENTITY} FROM entries WHERE split = ? ORDER BY rank"
        for position, weight, *rest in self._database.execute(query, (split,)):
            yield Weighed(position + rows.SIGN, weight, rows.identity(rest))

    def add_leaves(self, leaves: Iterable[Leaf]) -> None:
        self._database.executemany(
            "INSERT INTO leaves VALUES (?, ?, ?, ?, ?)",
            ((leaf.ordinal, leaf.split, leaf.start, leaf.stop, leaf.digest) for leaf in leaves),
        )

    # the finished catalogue

    @property
    def read(self) -> int:
        """Raw samples in all, before any rule."""
        return self.accepted + self.refused + self.filtered

    @property
    def accepted(self) -> int:
        """Samples that are to be converted."""
        return self._count("SELECT coalesce(max(rank), 0) FROM entries")

    @property
    def refused(self) -> int:
        """Samples that were rejected before conversion."""
        return self._count("SELECT count(*) FROM rejects WHERE NOT is_entry")

    @property
    def rejected_entries(self) -> int:
        """Samples that were rejected in conversion, as far as `reject` was told."""
        return self._count("SELECT count(*) FROM rejects WHERE is_entry")

    @property
    def filtered(self) -> int:
        return self._count("SELECT coalesce(sum(filtered), 0) FROM containers")

    def leaves(self) -> Iterator[Leaf]:
        """Split by split in the order of their names, in shard order within."""
        for row in self._database.execute("SELECT * FROM leaves ORDER BY ordinal"):
            yield Leaf(*row)

    @property
    def planned(self) -> int:
        """The number of leaves."""
        return self._count("SELECT count(*) FROM leaves")

    def leaf(self, ordinal: int) -> Leaf:
        return Leaf(*self._database.execute("SELECT * FROM leaves WHERE ordinal = ?", (ordinal,)).fetchone())

    def ordinal(self, digest: str) -> int | None:
        """The leaf of this digest, if it is planned."""
        row = self._database.execute("SELECT ordinal FROM leaves WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else int(row[0])

    def entries(self, leaf: Leaf) -> list[Entry]:
        return list(self.between(leaf.start, leaf.stop))

    def between(self, start: int, stop: int) -> Iterator[Entry]:
        """The entries of ranks start to stop."""
        query = f"SELECT {rows.ENTRY} FROM entries WHERE rank >= ? AND rank < ? ORDER BY rank"
        return map(rows.entry, self._database.execute(query, (start, stop)))

    def forget_conversions(self) -> None:
        """Forget the rejects that a build noted which was killed later: its sidecars tell them again."""
        self._database.execute("DELETE FROM rejects WHERE is_entry")

    def rejects(self) -> Iterator[Rejected]:
        """In the sources' order."""
        for *row, _ in self._database.execute("SELECT * FROM rejects ORDER BY number"):
            yield Rejected(*row)

    def reasons(self) -> dict[str, int]:
        query = "SELECT reason, count(*) FROM rejects GROUP BY reason ORDER BY reason"
        return dict(self._database.execute(query).fetchall())

    def kept_of(self, keys: Iterable[str]) -> int:
        """How many of these keys (of an earlier version) are of accepted samples."""
        self._database.execute("CREATE UNIQUE INDEX IF NOT EXISTS entry_keys ON entries (key)")
        query = "SELECT 1 FROM entries WHERE key = ? AND number NOT IN (SELECT number FROM rejects)"
        return sum(self._database.execute(query, (key,)).fetchone() is not None for key in keys)

    def close(self) -> None:
        self._database.close()

    def _count(self, query: str) -> int:
        return int(self._database.execute(query).fetchone()[0])


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Catalogue]:
    """A finished catalogue, as workers open it."""
    catalogue = Catalogue(path, reads_only=True)
    try:
        yield catalogue
    finally:
        catalogue.close()
