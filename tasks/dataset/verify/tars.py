"""Tars and the files beside them where they lie, on this machine or remote: listed, measured and opened.

A folder is a path or an address. The query of a web address (`https://host/x?signature`) belongs to all files
in it and stays with the folder, so that no name shows it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from blake3 import blake3

from tasks.core.errors import UsageError
from tasks.core.files import CHUNK, disk_full_as_error
from tasks.core.stores import (
    ABSENT,
    LocalStore,
    NotRegular,
    Store,
    Unreachable,
    is_hidden,
    is_web,
    open_store,
    redact,
)
from tasks.dataset.tar.gunzip import ZIPPED, unzipped

KEY = "DATASET"
"""What errors about the place call it: the command's argument."""
TARS = (".tar", *ZIPPED)
UNREAD = {".tar.bz2": "bzip2", ".tar.xz": "xz", ".tar.zst": "zstd", ".tar.lz4": "lz4"}
"""Other compressions, by suffix."""
HASHED = 1 << 18
"""Bytes that are read and hashed at once: what is read is still in the processor's cache."""
TOGETHER = 16
"""Requests for the ends of remote tars at the same time."""


def split_query(folder: str) -> tuple[str, str]:
    """The folder's address without its query, and the query with its `?`."""
    base, mark, query = folder.partition("?") if is_web(folder) else (folder, "", "")
    return base, mark + query


def store_at(folder: str) -> Store:
    """The folder's store, which knows nothing yet; UsageError for an address that is none."""
    return open_store(split_query(folder)[0], KEY)


@lru_cache(maxsize=8)
def kept_store(folder: str) -> Store:
    """One store for all of a process's tars: a new one costs a remote store its connections."""
    return store_at(folder)


def open_file(folder: str, name: str) -> BinaryIO:
    """A file's bytes in order, as they are stored; OSError."""
    file = kept_store(folder).open(name + split_query(folder)[1])
    if isinstance(kept_store(folder), LocalStore):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return file


def open_tar(folder: str, name: str) -> BinaryIO:
    """A tar's bytes in order, decompressed where its name says gzip; OSError."""
    return unzipped(open_file(folder, name), name)


def blake3_of(folder: str, name: str) -> str:
    """The BLAKE3 of a file in hexadecimal; OSError. It leaves the interpreter to other threads."""
    digest = blake3()
    buffer = bytearray(HASHED)
    view = memoryview(buffer)
    with open_file(folder, name) as file:
        while count := file.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(view[:count])
    return digest.hexdigest()


def ends(folder: str, names: Iterable[str], count: int) -> Iterator[tuple[str, bytes | OSError]]:
    """The last bytes of each tar; of one in gzip the first, which say as much without unpacking.

    Many at once where they are remote; Unreachable for a store that does not answer.
    """
    store, query = kept_store(folder), split_query(folder)[1]

    def one(name: str) -> tuple[str, bytes | OSError]:
        try:
            with store.open(name + query, in_order=False) as file:
                if not name.endswith(ZIPPED):
                    file.seek(max(file.seek(0, os.SEEK_END) - count, 0))
                return name, file.read(count)
        except Unreachable:
            raise
        except OSError as error:
            return name, error

    if isinstance(store, LocalStore):
        yield from map(one, names)
        return
    with ThreadPoolExecutor(TOGETHER) as pool:
        yield from pool.map(one, names)


def tars_in(folder: str, *, hidden: bool = False, lenient: bool = False) -> dict[str, int]:
    """The tars in a folder and in the folders right below it, in order, with their sizes in bytes.

    -1 where a link leads nowhere. UsageError when the folder cannot be listed; when one below it cannot, too,
    unless `lenient`, which takes that for empty.
    """
    store = store_at(folder)
    folders, files = listed(store)
    found = _sizes(store, files, hidden)
    for below in folders:
        if hidden or not is_hidden(below):
            try:
                inside = listed(store, below)[1]
            except UsageError:
                if not lenient:
                    raise
                continue
            found |= _sizes(store, [f"{below}/{name}" for name in inside], hidden)
    return found


def listed(store: Store, folder: str = "") -> tuple[list[str], list[str]]:
    """The folders and files in a folder; UsageError when it cannot be listed."""
    place = redact(f"{store.location}/{folder}".rstrip("/"))
    try:
        return store.entries(folder)
    except Unreachable:
        raise
    except FileNotFoundError:
        raise UsageError(f"{KEY}: there is nothing at {place}") from None
    except OSError as error:
        raise UsageError(f"{KEY}: {place} cannot be listed: {error.strerror or error}") from None


def _sizes(store: Store, names: list[str], hidden: bool) -> dict[str, int]:
    """Right after they were listed, when a remote store knows their sizes."""
    return {
        name: store.stat(name).size
        for name in names
        if name.endswith((*TARS, *UNREAD)) and (hidden or not is_hidden(name))
    }


def sizes_of(folder: str, names: list[str]) -> dict[str, int]:
    """The sizes in bytes of those files that are there, -1 where the server does not tell."""
    store, query = store_at(folder), split_query(folder)[1]
    asked = [name + query for name in names]
    store.look_ahead(asked)
    found = {name: store.stat(file) for name, file in zip(names, asked, strict=True)}
    return {name: stat.size for name, stat in found.items() if stat != ABSENT}


def compression_unread(name: str) -> str | None:
    """The compression that keeps a tar from being read, by its name."""
    return next((kind for suffix, kind in UNREAD.items() if name.endswith(suffix)), None)


class VersionFiles:
    """The files beside a version's tars as local files, by their names in the version.

    Those of this machine are used where they lie. A remote one is fetched when it is first asked for, into
    a temporary folder that goes with this object.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self.root = Path(folder)
        """The folder that holds what was asked for."""
        if not isinstance(kept_store(folder), LocalStore):
            self._copies = tempfile.TemporaryDirectory(prefix="tarmac-verify-")
            self.root = Path(self._copies.name)

    def require(self, name: str) -> Path:
        """The file, there and readable; OSError, NotRegular for a pipe or a folder in its place."""
        path = self.root / name
        if self._copies is None:
            if not stat.S_ISREG(path.stat().st_mode):
                raise NotRegular("not a regular file")
            path.open("rb").close()
        elif not path.exists():
            path.parent.mkdir(exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            with (
                open_file(self._folder, name) as file,
                disk_full_as_error(self.root),
                part.open("wb") as copy,
            ):
                shutil.copyfileobj(file, copy, CHUNK)
            part.replace(path)
        return path

    def __enter__(self) -> VersionFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._copies is not None:
            self._copies.cleanup()
