"""Files named in a table: relative to its folder, or by an address of their own.

A file in the source's own store that cannot be reached ends the build, for the source is gone; a foreign
server that does not answer costs its own samples, which the next build tries again.
"""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterable

from tasks.core.stores import (
    ABSENT,
    Stat,
    Store,
    Unreachable,
    address_key,
    host_of,
    is_remote,
    is_valid,
    is_web,
    join_location,
    open_store,
    redact,
)
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.base import read_file

HOPELESS = 3
"""Files in a row that a server did not give, each asked for several times: it is asked for no more."""
MOST_HOSTS = 10_000
"""That are remembered for not answering."""


class Located:
    """Opens what a table names. Files within the source are named relative to it."""

    def __init__(self, store: Store, config_key: str) -> None:
        self._store = store
        self._config_key = config_key
        self._is_remote, self._is_web = is_remote(store.location), is_web(store.location)
        self._base = store.location.rstrip("/") + "/"
        self._foreign: dict[str, Store] = {}
        self._failures: Counter[str] = Counter()

    def name(self, written: str, folder: str = "") -> str:
        """The name of what is `written` in a table of the source's `folder`, which `stat` and `read` take."""
        if is_remote(written):
            return written.removeprefix(self._base)
        if folder and not written.startswith("/"):
            written = f"{folder}/{written}"
        if "/" not in written:
            return written
        if self._is_remote:
            return posixpath.normpath(written.lstrip("/"))
        return os.path.normpath(written).removeprefix(self._base)

    def told(self, name: str) -> str:
        """The name as people may see it: without the signature or password that an address may hold."""
        if is_remote(name):
            return address_key(name)
        if self._is_web and "?" in name:
            return address_key(self._base + name).removeprefix(redact(self._base))
        return name

    def address(self, name: str) -> str:
        """The whole address of a name, which `stat` and `read` take as well."""
        return join_location(self._base, name)

    def stat(self, file: str) -> Stat:
        file = file.removeprefix(self._base)
        if not is_remote(file):
            return self._store.stat(file)
        if self._is_hopeless(file) or not is_valid(file):
            return ABSENT
        try:
            found = self._open(file).stat(file)
        except Unreachable:
            self._failed(file)
            return ABSENT
        self._failures.pop(host_of(file), None)
        return found

    def read(self, file: str, limit: int) -> bytes:
        """Reject when the file is absent or unreadable; Unreachable when the source itself is gone."""
        file = file.removeprefix(self._base)
        if not is_remote(file):
            return read_file(self._store, file, limit)
        if not is_valid(file):
            raise Reject("member.missing", "no valid address")
        try:
            if not self._is_hopeless(file):
                content = read_file(self._open(file), file, limit)
                self._failures.pop(host_of(file), None)
                return content
        except Unreachable:
            self._failed(file)
        raise Reject("source.unreadable", "its server does not answer")

    def look_ahead(self, files: Iterable[str]) -> None:
        """Ask remote stores for many files at once, ahead of `stat`."""
        by_store: dict[int, tuple[Store, list[str]]] = {}
        for file in files:
            if is_remote(file):
                if self._is_hopeless(file) or not is_valid(file):
                    continue
                store = self._open(file)
            elif self._is_remote:
                store = self._store
            else:
                continue
            by_store.setdefault(id(store), (store, []))[1].append(file)
        for store, wanted in by_store.values():
            store.look_ahead(wanted)

    def _open(self, address: str) -> Store:
        """One store for all hosts of a kind, so that they are asked at the same time."""
        scheme = address.partition("://")[0]
        if scheme not in self._foreign:
            self._foreign[scheme] = open_store(host_of(address), self._config_key)
        return self._foreign[scheme]

    def _is_hopeless(self, address: str) -> bool:
        return self._failures[host_of(address)] >= HOPELESS

    def _failed(self, address: str) -> None:
        if len(self._failures) >= MOST_HOSTS:
            self._failures.clear()
        self._failures[host_of(address)] += 1
