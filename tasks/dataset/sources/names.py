"""A listing of files kept on disk, to tell how many of them share a name."""

from __future__ import annotations

import posixpath
import sqlite3
from collections.abc import Iterable, Iterator

from tasks.dataset.keys import stem


class Names:
    """Files in the order in which they came, of any number; `sharing` counts those of one name.

    A file's name here is the last part of its path, without suffix. SQLite keeps the list in memory until it
    outgrows its cache, then in a file that goes with this object.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE files (file BLOB, name BLOB)")
        self._database.execute("BEGIN")
        rows = ((_encoded(file), _encoded(name_of(file))) for file in files)
        self._database.executemany("INSERT INTO files VALUES (?, ?)", rows)
        self._database.execute("CREATE TABLE names (name BLOB PRIMARY KEY, files INTEGER) WITHOUT ROWID")
        self._database.execute("INSERT INTO names SELECT name, count(*) FROM files GROUP BY name")
        self._database.execute("COMMIT")

    def __iter__(self) -> Iterator[str]:
        for (file,) in self._database.execute("SELECT file FROM files ORDER BY rowid"):
            yield file.decode("utf-8", "surrogatepass")

    def sharing(self, file: str) -> int:
        """How many files have the name of this one of them."""
        query = "SELECT files FROM names WHERE name = ?"
        return int(self._database.execute(query, (_encoded(name_of(file)),)).fetchone()[0])


def name_of(file: str) -> str:
    return stem(posixpath.basename(file))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
