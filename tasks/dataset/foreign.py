"""Versions of tars that others wrote, made by `tasks.dataset.indexing`: where the tars lie, and how they are
read."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.core.errors import DataError
from tasks.core.folders import LocalStore, open_store
from tasks.core.remote.remote_shards import RemoteShard
from tasks.core.stores import ObjectStat, Store, split_location
from tasks.dataset.version.layout import FOREIGN, shard_name
from tasks.dataset.version.records import first_problem


class ForeignSplit(BaseModel):
    """The tars of a split, in order: paths of this machine, or addresses with size, stamp and BLAKE3.

    `is_plain` means that every sample is laid out as in our own tars, which are parsed faster.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    is_plain: bool
    paths: tuple[str, ...] = ()
    remote: tuple[RemoteShard, ...] = ()


class Foreign(BaseModel):
    """The content of the file FOREIGN."""

    splits: dict[str, ForeignSplit]


def foreign_split(version: Path, split: str) -> ForeignSplit | None:
    """Where the tars of a split lie, or None if Tarmac wrote them; DataError for a damaged file."""
    return _splits(version).get(split)


def _splits(version: Path) -> Mapping[str, ForeignSplit]:
    path = version / FOREIGN
    try:
        return Foreign.model_validate_json(path.read_bytes()).splits
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        problem = first_problem(error)
        raise DataError(f"{path} is damaged ({problem}); run `tarmac index` again") from None


def addresses(version: Path) -> dict[str, str]:
    """The address of each remote tar of a version, by its name; DataError for a damaged file."""
    return {
        shard_name(split, number): shard.url
        for split, tars in _splits(version).items()
        for number, shard in enumerate(tars.remote)
    }


def with_remote_tars(store: LocalStore, key: str) -> Store:
    """The version's store with its remote tars in their places. Where FOREIGN is damaged, the tars are
    missing."""
    try:
        found = addresses(Path(store.location))
    except DataError:
        return store
    return IndexedStore(store, found, key) if found else store


class IndexedStore:
    """Reads each file of `addresses` at its address, through one store per scheme, and all others in the
    folder."""

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

    def open(self, file: str, in_order: bool = True, size: int = -1) -> BinaryIO:
        store, name = self._at(file)
        return store.open(name, in_order, size)

    def blocks(self, file: str, size: int = -1) -> Generator[memoryview, None, None]:
        store, name = self._at(file)
        return store.blocks(name, size)

    def read(self, file: str, most: int) -> bytes:
        store, name = self._at(file)
        return store.read(name, most)

    def read_end(self, file: str, most: int) -> bytes:
        store, name = self._at(file)
        return store.read_end(name, most)

    def announce(self, files: Iterable[str], most: int) -> None:
        """Tars are read whole, one after the other."""

    def look_ahead(self, files: Sequence[str]) -> None:
        for scheme, store in self._remote.items():
            wanted = [self._addresses[file] for file in files if file in self._addresses]
            store.look_ahead([address for address in wanted if address.startswith(f"{scheme}:")])

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        folders, files = self._store.entries(folder)
        below = f"{folder}/" if folder else ""
        inside = (name.removeprefix(below) for name in self._addresses if name.startswith(below))
        return folders, sorted({*files, *(name for name in inside if "/" not in name)})

    def files(self) -> Iterator[str]:
        yield from sorted({*self._store.files(), *self._addresses})
