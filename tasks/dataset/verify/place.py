"""Tars where they lie, on this machine or remote: which there are, how large, and their bytes in order.

A folder is a path or an address. The query of a web address (`https://host/x?signature`) belongs to all files
in it and stays with the folder, so that no name shows it. Nothing here runs a command or writes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import BinaryIO

from tasks.core.errors import UsageError
from tasks.core.files import CHUNK
from tasks.core.stores import ABSENT, LocalStore, Store, Unreachable, is_hidden, is_web, open_store, redact
from tasks.dataset.verify.gunzip import Gunzipped

KEY = "DATASET"
"""What errors about the place call it: the command's argument."""
ZIPPED = (".tar.gz", ".tgz")
"""Read through gzip, as other loaders of tars do."""
TARS = (".tar", *ZIPPED)
UNREAD = {".tar.bz2": "bzip2", ".tar.xz": "xz", ".tar.zst": "zstd", ".tar.lz4": "lz4"}
"""Other compressions, by suffix."""
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
def _kept_store(folder: str) -> Store:
    """One for all of a process's tars: making one anew costs a remote store its connections."""
    return store_at(folder)


def opened(folder: str, name: str) -> BinaryIO:
    """A tar's bytes in order, decompressed where its name says gzip; OSError."""
    file = _kept_store(folder).open(name + split_query(folder)[1])
    if name.endswith(ZIPPED):
        return io.BufferedReader(Gunzipped(file), CHUNK)
    if isinstance(_kept_store(folder), LocalStore):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return file


def head(folder: str, name: str, count: int) -> bytes:
    """The first bytes of a file as it is stored, all of a shorter one; OSError."""
    with _kept_store(folder).open(name + split_query(folder)[1], in_order=False) as file:
        return file.read(count)


def tail(folder: str, name: str, count: int) -> bytes:
    """The last bytes, as `head`."""
    with _kept_store(folder).open(name + split_query(folder)[1], in_order=False) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - count, 0))
        return file.read(count)


def ends(folder: str, names: Iterable[str], count: int) -> Iterator[tuple[str, bytes | OSError]]:
    """The `tail` of each tar, of one in gzip the `head`, which says as much as can be told without unpacking.

    Many at once where they are remote; Unreachable for a store that does not answer.
    """

    def one(name: str) -> tuple[str, bytes | OSError]:
        try:
            return name, (head if name.endswith(ZIPPED) else tail)(folder, name, count)
        except Unreachable:
            raise
        except OSError as error:
            return name, error

    if isinstance(_kept_store(folder), LocalStore):
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
    try:
        return store.entries(folder)
    except Unreachable:
        raise
    except FileNotFoundError:
        place = redact(f"{store.location}/{folder}".rstrip("/"))
        raise UsageError(f"{KEY}: there is nothing at {place}") from None
    except OSError as error:
        place = redact(f"{store.location}/{folder}".rstrip("/"))
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
