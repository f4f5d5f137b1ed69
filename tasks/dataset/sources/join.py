"""Partners of samples by key: members of further tars, or the fields of a table's row.

Only an index on disk (`Lookup`) is kept, never the partners themselves. With `match: key` it covers all
joined files and is made once, which costs a pass over them (over the headers alone for tars on this machine);
with `match: shard` it covers one file at a time. A remote tar is copied to local disk while its index is in
use, because partners are read in any order. A joined file that cannot be read from its disk or server ends
the build.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from typing import BinaryIO

from tasks.core.files import CHUNK
from tasks.core.schema import Join
from tasks.core.schema.source import TABLES
from tasks.core.stores import is_remote
from tasks.dataset.sources.fields import Lookup, look_up, object_of
from tasks.dataset.sources.raw_files import Files, unreachable
from tasks.dataset.sources.tabular import OpenTable, open_table, require, rows_by_key
from tasks.dataset.sources.tar_samples import FIELD, Roles, TarSamples
from tasks.dataset.tar.reader import Member, StoredSample
from tasks.dataset.version.rejects import Reject


class Partners(ABC):
    """The base of both kinds of join: the files to search for a container's samples, and their index."""

    def __init__(self, config: Join, config_key: str, roles: Roles) -> None:
        self._config = config
        self._roles = roles
        self._config_key = config_key
        self.files = Files(config.path, TABLES if config.is_table else (".tar",), f"{config_key}.path")
        self._index: tuple[str, Lookup] | None = None
        self._damage = ""

    @abstractmethod
    def members(self, container: str, key: str) -> dict[str, bytes]:
        """Return the partner's members by suffix; Reject when there is none, or more than one."""

    @abstractmethod
    def _rows(self, files: Iterator[str]) -> Iterator[tuple[str, str]]:
        """Yield the keys of the files' samples, each with the text that finds the sample again."""

    def stamp(self, container: str) -> str:
        """Return a text that changes when the files joined to the container's samples do."""
        return self._stamps.get(self._searched(container), "")

    def _find(self, container: str, key: str) -> str:
        searched = self._searched(container)
        if self._index is None or self._index[0] != searched:
            self._index, self._damage = None, ""  # its disk space is free before the next one's is taken
            chosen = (file for file in self.files.names if not searched or stem(file) == searched)
            self._index = searched, Lookup(self._rows(chosen))
        found = self._index[1][key]
        if len(found) != 1:
            name = self._config.path.rpartition("/")[2] or "the joined folder"
            place = f"{name} for {searched}" if searched else name
            if found:
                raise Reject("key.duplicate", f"{len(found)} partners in {place}")
            raise Reject("member.missing", f"no partner in {place}{self._damage}")
        return found[0]

    def _searched(self, container: str) -> str:
        """Return the name, without suffix, that files must have; "" for all of them."""
        return stem(container) if self._config.match == "shard" else ""

    @cached_property
    def _stamps(self) -> dict[str, str]:
        stamps: dict[str, str] = {}
        every = blake2b(digest_size=16)
        for file, stat in self.files.stats():
            stamps[stem(file)] = stamps.get(stem(file), "") + f"{stat.size}:{stat.stamp};"
            every.update(f"{file}\0{stat.size}\0{stat.stamp}\0".encode("utf-8", "surrogateescape"))
        return stamps if self._config.match == "shard" else {"": every.hexdigest()}


class TableRows(Partners):
    """Partners are rows of a table; each becomes the member that holds a sample's fields."""

    def columns(self) -> list[str]:
        """Return the first table's columns; UsageError when it is not there, or lacks the key."""
        table = self._open(self.files.names[0])
        table.close()
        return table.columns

    def members(self, container: str, key: str) -> dict[str, bytes]:
        return {self._roles.described: self._find(container, key).encode()}

    def _open(self, file: str) -> OpenTable:
        table = open_table(self.files.location(file), f"{self._config_key}.path")
        require(f"{self._config_key}.key", str(self._config.key), table.columns, stem(file))
        return table

    def _rows(self, files: Iterator[str]) -> Iterator[tuple[str, str]]:
        for file in files:
            for key, fields in rows_by_key(self._open(file), str(self._config.key)):
                yield key, json.dumps(fields, default=str)


class TarMembers(Partners):
    """Partners are samples of further tars."""

    def __init__(self, config: Join, config_key: str, roles: Roles) -> None:
        super().__init__(config, config_key, roles)
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self._open: tuple[str, BinaryIO] | None = None

    def members(self, container: str, key: str) -> dict[str, bytes]:
        place = json.loads(self._find(container, key))
        if "fault" in place:
            raise Reject(*place["fault"])
        with self._needed(place["file"]):
            return {suffix: self._read(place["file"], *span) for suffix, span in place["members"].items()}

    def _read(self, file: str, offset: int, size: int) -> bytes:
        if self._open is None or self._open[0] != file:
            if self._open is not None:
                self._open[1].close()
            self._open = file, self._copied(file)
        self._open[1].seek(offset)
        content = self._open[1].read(size)
        if len(content) < size:
            raise Reject("source.unreadable", f"{file} is shorter than when it was indexed")
        return content

    def _rows(self, files: Iterator[str]) -> Iterator[tuple[str, str]]:
        if self._open is not None:
            self._open[1].close()
        self._open = self._copies = None
        for file in files:
            with self._needed(file), self._copied(file) as tar:
                yield from self._samples(file, tar)

    def _samples(self, file: str, tar: BinaryIO) -> Iterator[tuple[str, str]]:
        def is_description(member: Member) -> bool:
            is_small = member.size <= self._roles.limit(member.suffix)[0]
            return self._config.key is not None and member.suffix == self._roles.described and is_small

        samples = TarSamples(tar, self._roles, os.fstat(tar.fileno()).st_size, is_description, seeks=True)
        for sample, fault in samples:
            if fault is not None:
                yield sample.key, json.dumps({"fault": fault})
                continue
            key = self._key(sample)
            spans = {
                one.suffix: (one.offset, one.size) for one in sample.members if self._roles.keeps(one.suffix)
            }
            if key is not None:
                yield key, json.dumps({"file": file, "members": spans})
        if samples.damage:
            self._damage = f" ({file}: {samples.damage})"

    def _key(self, sample: StoredSample) -> str | None:
        """Return the joined sample's key; None when its `json` has none, so that it is no partner."""
        if self._config.key is None:
            return sample.key
        content = next((one.content for one in sample.members if one.content is not None), None)
        try:
            fields = object_of(content) if content is not None else {}
        except Reject:
            return None
        value = look_up(fields, self._config.key.removeprefix(FIELD))
        return None if value is None else str(value)

    @contextmanager
    def _needed(self, file: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unreachable(self.files.location(file), error) from None

    def _copied(self, file: str) -> BinaryIO:
        """Open the tar on this machine's disk, after copying it there once when it is remote."""
        if not is_remote(self.files.store.location):
            return self.files.store.open(file)
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="tarmac-join-")
        copy = os.path.join(self._copies.name, blake2b(file.encode(), digest_size=16).hexdigest())
        if not os.path.exists(copy):
            with self.files.opened(file) as remote, open(f"{copy}.part", "wb") as local:
                shutil.copyfileobj(remote, local, CHUNK)
            os.replace(f"{copy}.part", copy)
        return open(copy, "rb")


def stem(file: str) -> str:
    """`a/00012.tar` -> `00012`, the name that files which belong together share."""
    return file.rpartition("/")[2].partition(".")[0]
