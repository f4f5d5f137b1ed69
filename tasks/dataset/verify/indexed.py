"""The folder of a version whose tars lie in remote stores, as a store that has them in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tasks.core.errors import DataError
from tasks.core.folders import LocalStore, open_store
from tasks.core.stores import ObjectStat, Store, split_location
from tasks.dataset.foreign import addresses


def with_its_tars(store: LocalStore, key: str) -> Store:
    """The version's store. Where a damaged file says no longer where its tars lie, they are not there."""
    try:
        found = addresses(Path(store.location))
    except DataError:
        return store
    return IndexedStore(store, found, key) if found else store


class IndexedStore:
    """What `addresses` name is read where it lies, through one store for each scheme; all else here."""

    def __init__(self, store: LocalStore, addresses: Mapping[str, str], key: str) -> None:
        self.location = store.location
        self._store, self._addresses = store, addresses
        self._remote: dict[str, Store] = {}
        for address in addresses.values():
            scheme = address.partition(":")[0]
            if scheme not in self._remote:
                self._remote[scheme] = open_store(split_location(address)[0], key)

    def _at(self, file: str) -> tuple[Store, str]:
        address = self._addresses.get(file)
        return (self._store, file) if address is None else (self._remote[address.partition(":")[0]], address)

    def stat(self, file: str) -> ObjectStat:
        store, name = self._at(file)
        return store.stat(name)

    def open(self, file: str, in_order: bool = True) -> BinaryIO:
        store, name = self._at(file)
        return store.open(name, in_order)

    def read(self, file: str, most: int) -> bytes:
        store, name = self._at(file)
        return store.read(name, most)

    def read_end(self, file: str, most: int) -> bytes:
        store, name = self._at(file)
        return store.read_end(name, most)

    def look_ahead(self, files: Sequence[str]) -> None:
        for scheme, store in self._remote.items():
            asked = [self._addresses[file] for file in files if file in self._addresses]
            store.look_ahead([address for address in asked if address.startswith(f"{scheme}:")])

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        folders, files = self._store.entries(folder)
        below = f"{folder}/" if folder else ""
        inside = (name.removeprefix(below) for name in self._addresses if name.startswith(below))
        return folders, sorted({*files, *(name for name in inside if "/" not in name)})

    def files(self) -> Iterator[str]:
        yield from sorted({*self._store.files(), *self._addresses})
