"""Files named in a table: relative to its folder, or by an address of their own.

A file in the source's own store that cannot be reached ends the build, for the source is gone; a foreign
server that does not answer costs its own samples, which the next build tries again.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable

from tasks.core.stores import ABSENT, Stat, Store, Unreachable, is_remote, open_store
from tasks.dataset.reasons import Reject
from tasks.dataset.sources.source import read_file


class Located:
    """Opens what a table names. Files within the source are named relative to it."""

    def __init__(self, store: Store, config_key: str) -> None:
        self._store = store
        self._config_key = config_key
        self._foreign: dict[str, Store] = {}

    def name(self, written: str, folder: str = "") -> str:
        """The name of what is `written` in a table of the source's `folder`, as it counts for keys."""
        if is_remote(written):
            return written.removeprefix(f"{self._store.location}/")
        if folder and not written.startswith("/"):
            written = f"{folder}/{written}"
        if "/" not in written:
            return written
        if is_remote(self._store.location):
            return posixpath.normpath(written.lstrip("/"))
        return os.path.normpath(written).removeprefix(f"{self._store.location}/")

    def stat(self, file: str) -> Stat:
        if not is_remote(file):
            return self._store.stat(file)
        try:
            return self._open(file).stat(file)
        except Unreachable:
            return ABSENT

    def read(self, file: str, limit: int) -> bytes:
        """Reject when the file is absent or unreadable; Unreachable when the source itself is gone."""
        if not is_remote(file):
            return read_file(self._store, file, limit)
        try:
            return read_file(self._open(file), file, limit)
        except Unreachable:
            raise Reject("source.unreadable", "its server does not answer") from None

    def look_ahead(self, files: Iterable[str]) -> None:
        """Ask remote stores for many files at once, ahead of `stat`."""
        by_store: dict[int, tuple[Store, list[str]]] = {}
        for file in files:
            store = self._open(file) if is_remote(file) else self._store
            by_store.setdefault(id(store), (store, []))[1].append(file)
        for store, wanted in by_store.values():
            store.look_ahead(wanted)

    def _open(self, address: str) -> Store:
        host = "/".join(address.split("/", 3)[:3])
        if host not in self._foreign:
            self._foreign[host] = open_store(host, self._config_key)
        return self._foreign[host]
