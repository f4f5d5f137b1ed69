"""Rows by key, on disk: a join with a table of any length takes no more memory than a short one.

SQLite keeps a private temporary database in memory until it outgrows its cache, then in a file that no other
process sees and that goes with this one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable


class Lookup:
    """Texts by key, several a key, in the order in which they came; distinct ones only."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE rows (key BLOB, value BLOB, UNIQUE (key, value))")
        self._database.execute("BEGIN")
        pairs = ((_encoded(key), _encoded(value)) for key, value in rows)
        self._database.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?)", pairs)
        self._database.execute("COMMIT")

    def __getitem__(self, key: str) -> list[str]:
        query = "SELECT value FROM rows WHERE key = ? ORDER BY rowid"
        found = self._database.execute(query, (_encoded(key),)).fetchall()
        return [value.decode("utf-8", "surrogatepass") for (value,) in found]

    def __len__(self) -> int:
        """How many keys there are."""
        return int(self._database.execute("SELECT count(DISTINCT key) FROM rows").fetchone()[0])


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
