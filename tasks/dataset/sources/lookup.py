"""What is found by key and must not be held in memory, on disk: joined rows, and the names of a folder's
files.

SQLite keeps a private temporary database in memory until it outgrows its cache, then in a file that no other
process sees and that goes with this one.
"""

from __future__ import annotations

import posixpath
import sqlite3
from collections.abc import Iterable, Iterator

from tasks.core.stores import Stat
from tasks.dataset.keys import stem


class Lookup:
    """Texts by key, several per key, in the order in which they came; distinct ones only."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE rows (key BLOB, value BLOB, UNIQUE (key, value))")
        self._database.execute("BEGIN")
        pairs = ((_raw(key), _raw(value)) for key, value in rows)
        self._database.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?)", pairs)
        self._database.execute("COMMIT")

    def __getitem__(self, key: str) -> list[str]:
        query = "SELECT value FROM rows WHERE key = ? ORDER BY rowid"
        return [_text(value) for (value,) in self._database.execute(query, (_raw(key),))]


class FileList:
    """A folder's files with their Stat, in the order in which they came; `sharing` counts those of one
    name."""

    def __init__(self, files: Iterable[tuple[str, Stat]]) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE files (file BLOB, name BLOB, size INTEGER, stamp BLOB)")
        self._database.execute("BEGIN")
        rows = ((_raw(file), _raw(name_of(file)), stat.size, _raw(stat.stamp)) for file, stat in files)
        self._database.executemany("INSERT INTO files VALUES (?, ?, ?, ?)", rows)
        self._database.execute("CREATE TABLE names (name BLOB PRIMARY KEY, files INTEGER) WITHOUT ROWID")
        self._database.execute("INSERT INTO names SELECT name, count(*) FROM files GROUP BY name")
        self._database.execute("COMMIT")

    def __iter__(self) -> Iterator[tuple[str, Stat]]:
        for file, size, stamp in self._database.execute("SELECT file, size, stamp FROM files ORDER BY rowid"):
            yield _text(file), Stat(size, _text(stamp))

    def sharing(self, file: str) -> int:
        """How many files have the name of this one of them."""
        query = "SELECT files FROM names WHERE name = ?"
        return int(self._database.execute(query, (_raw(name_of(file)),)).fetchone()[0])


def name_of(file: str) -> str:
    """The last part of a file's path, without its suffix."""
    return stem(posixpath.basename(file))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")
