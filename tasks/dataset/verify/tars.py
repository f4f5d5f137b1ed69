"""List, measure and open tars on this machine or remote, and find what is wrong with them from outside:
whether they are there, can be read, and leave out no number.

A folder is a path or an address. The query of a web address (`https://host/x?signature`) belongs to all files
in it and stays with the folder, so that no name shows it.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from functools import lru_cache, partial
from itertools import cycle, takewhile
from typing import Any, BinaryIO, TypeVar

from blake3 import blake3

from tasks.core.errors import UsageError
from tasks.core.files import page_aligned, read_buffer
from tasks.core.folders import LocalStore, open_store
from tasks.core.stores import (
    ABSENT,
    NotRegular,
    Store,
    StoreUnreachable,
    is_hidden,
    is_remote,
    is_web,
    redact,
)
from tasks.core.threads import map_in_threads
from tasks.dataset.tar.gunzip import ZIPPED, unzipped
from tasks.dataset.verify.findings import Fault, Fix, fault, shard_place
from tasks.dataset.version.layout import FOREIGN

KEY = "DATASET"
"""How errors name the place: the command's argument."""
TARS = (".tar", *ZIPPED)
UNREAD = {".tar.bz2": "bzip2", ".tar.xz": "xz", ".tar.zst": "zstd", ".tar.lz4": "lz4"}
"""Compressions that verify does not read, by suffix."""
AT_ONCE = 1 << 21
"""Bytes that several threads hash at once, so many that each has enough of them."""
TOGETHER = 16
"""Requests for the ends of remote tars that run at the same time."""
_NUMBER = re.compile(r"\d+")


def split_query(folder: str) -> tuple[str, str]:
    """The folder's address without its query, and the query with its `?`."""
    base, mark, query = folder.partition("?") if is_web(folder) else (folder, "", "")
    return base, mark + query


def store_at(folder: str) -> Store:
    """A new store of the folder; UsageError for an invalid address."""
    store = open_store(split_query(folder)[0], KEY)
    if isinstance(store, LocalStore) and is_indexed(store.location):
        from tasks.dataset.foreign import with_remote_tars  # few versions have tars elsewhere

        return with_remote_tars(store, KEY)
    return store


@lru_cache(maxsize=8)
def kept_store(folder: str) -> Store:
    """One store for all tars of a process, because each new remote store opens its own connections."""
    return store_at(folder)


def open_file(folder: str, name: str) -> BinaryIO:
    """The bytes of a file in order, as they are stored; OSError."""
    file = kept_store(folder).open(name + split_query(folder)[1])
    if isinstance(kept_store(folder), LocalStore):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return file


def open_tar(folder: str, name: str) -> BinaryIO:
    """The bytes of a tar in order, decompressed where its name ends as gzip; OSError."""
    return unzipped(open_file(folder, name), name)


class HashedReads:
    """A file that takes the BLAKE3 of what is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake3()
        self._count = 0

    def readinto(self, buffer: memoryview) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._digest.update(buffer[:count])
        self._count += count
        return count

    def finish(self) -> tuple[str, int]:
        """Read the rest, and return the BLAKE3 and the size of the whole file."""
        buffer = read_buffer()
        while self.readinto(buffer):
            pass
        return self._digest.hexdigest(), self._count


def blake3_of(folder: str, name: str, threads: int = 1) -> str:
    """The BLAKE3 of a file in hexadecimal; OSError. It releases the interpreter to other threads.

    With several `threads`, so many hash a block of the file while one more reads the next.
    """
    with open_file(folder, name) as file:
        if threads == 1:
            return HashedReads(file).finish()[0]
        digest = blake3(max_threads=threads)
        buffers = cycle((page_aligned(AT_ONCE), page_aligned(AT_ONCE)))
        with closing(map_in_threads(partial(_fill, file), buffers, 1)) as blocks:
            for block in takewhile(len, blocks):
                digest.update(block)
        return digest.hexdigest()


def _fill(file: BinaryIO, buffer: memoryview) -> memoryview:
    """The next bytes of a file in this buffer; none at its end."""
    count: int = file.readinto(buffer)  # type: ignore[attr-defined]
    return buffer[:count]


Result = TypeVar("Result")


def attempt(read: Callable[..., Result], *arguments: Any) -> Result | OSError:
    """Return what `read` returns, or its OSError; StoreUnreachable is raised, because it is no fault of a
    file."""
    try:
        return read(*arguments)
    except StoreUnreachable:
        raise
    except OSError as error:
        return error


def ends(folder: str, names: Iterable[str], count: int) -> Iterator[tuple[str, bytes | OSError]]:
    """The last bytes of each tar; the first bytes of a gzip file, which show as much without unpacking.

    Remote tars are read many at a time; StoreUnreachable for a store that does not answer.
    """
    store, query = kept_store(folder), split_query(folder)[1]

    def one(name: str) -> tuple[str, bytes | OSError]:
        read = store.read if name.endswith(ZIPPED) else store.read_end
        return name, attempt(read, name + query, count)

    yield from map(one, names) if isinstance(store, LocalStore) else map_in_threads(one, names, TOGETHER)


def tars_in(folder: str, *, hidden: bool = False, lenient: bool = False) -> dict[str, int]:
    """The tars in a folder and in the folders right below it, in order, with their sizes in bytes, which are
    -1 where a link leads nowhere.

    UsageError when the folder or one below it cannot be listed; with `lenient`, one below counts as empty
    then.
    """
    store = store_at(folder)
    folders, files = list_folder(store)
    found = _sizes(store, files, hidden)
    for below in folders:
        if hidden or not is_hidden(below):
            try:
                inside = list_folder(store, below)[1]
            except UsageError:
                if not lenient:
                    raise
                continue
            found |= _sizes(store, [f"{below}/{name}" for name in inside], hidden)
    return found


def list_folder(store: Store, folder: str = "") -> tuple[list[str], list[str]]:
    """The folders and files in a folder; UsageError when it cannot be listed."""
    place = redact(f"{store.location}/{folder}".rstrip("/"))
    try:
        return store.entries(folder)
    except StoreUnreachable:
        raise
    except FileNotFoundError:
        raise UsageError(f"{KEY}: there is nothing at {place}") from None
    except OSError as error:
        raise UsageError(f"{KEY}: {place} cannot be listed: {error.strerror or error}") from None


def _sizes(store: Store, names: list[str], hidden: bool) -> dict[str, int]:
    """The sizes of the tars among these names; right after a listing, a remote store knows them already."""
    found = [one for one in names if one.endswith((*TARS, *UNREAD)) and (hidden or not is_hidden(one))]
    if is_indexed(store.location):
        store.look_ahead(found)
    return {name: store.stat(name).size for name in found}


def is_indexed(folder: str) -> bool:
    """Whether a folder is a version of tars that others wrote, made by `tarmac index`."""
    return not is_remote(folder) and os.path.exists(f"{folder}/{FOREIGN}")


def sizes_of(folder: str, names: list[str]) -> dict[str, int]:
    """The sizes in bytes of the files that are there, -1 where the server does not report one."""
    store, query = store_at(folder), split_query(folder)[1]
    store.look_ahead([name + query for name in names])
    found = {name: store.stat(name + query) for name in names}
    return {name: stat.size for name, stat in found.items() if stat != ABSENT}


def compression_unread(name: str) -> str | None:
    """The compression that keeps a tar from being read, by its name."""
    return next((kind for suffix, kind in UNREAD.items() if name.endswith(suffix)), None)


def shut_splits(folder: str, names: Iterable[str]) -> dict[str, Fault]:
    """A fault for each folder of these tars that this user may not list or enter, so that its content is
    unknown."""
    found = {}
    for split in () if is_remote(folder) else sorted({name.rpartition("/")[0] for name in names}):
        try:
            os.listdir(f"{folder}/{split}")
            os.stat(f"{folder}/{split}/.")
        except PermissionError as error:
            problem = f"the folder is unreadable: {error.strerror or error}"
            found[split] = fault("shard.checksum", {"split": split}, Fix.RIGHTS, problem=problem)
        except OSError:
            continue  # the folder does not exist: its tars are missing
    return found


def unread(folder: str, name: str, error: OSError, fix: Fix | str, **evidence: int) -> Fault:
    """The fault of a tar that cannot be opened. It is there if this user may not read it, or if its disk or
    server fails; where something else stands in its place, `fix` is how to get the tar."""
    if isinstance(error, FileNotFoundError | NotRegular) or error.errno in (errno.ELOOP, errno.EISDIR):
        return missing(folder, name, fix, **evidence)
    problem = f"unreadable: {error.strerror or error}"
    fix = Fix.RIGHTS if isinstance(error, PermissionError) else fix
    return fault("shard.checksum", shard_place(name), fix, problem=problem)


def missing(folder: str, name: str, fix: Fix | str, **evidence: object) -> Fault:
    """The fault of a missing tar, with what lies in its place."""
    path = f"{folder}/{name}"
    if not is_remote(folder) and os.path.lexists(path):
        evidence["problem"] = "what stands in its place is no regular file"
        if os.path.isdir(path):
            evidence["problem"] = "a folder stands in its place"
        elif not os.path.exists(path):
            target = os.readlink(path)
            evidence["problem"] = f"a link to {target}, which leads nowhere, stands in its place"
    return fault("shard.missing", shard_place(name), fix, **evidence)


def holes(names: Collection[str]) -> list[str]:
    """The names that are left out of consecutive numbers: `0.tar`, `1.tar`, `3.tar` lack `2.tar`.

    If fewer than half of the numbers are there, they count as names that only look like numbers.
    """
    groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for name in names:
        for found in _NUMBER.finditer(name, name.rfind("/") + 1):
            groups[name[: found.start()], name[found.end() :]][int(found[0])] = found[0]
    known = set(names)
    lacking = set()
    for (before, after), members in groups.items():
        first, last = min(members), max(members)
        left_out = last - first + 1 - len(members)
        if not 0 < left_out <= len(members):
            continue
        width = max((len(text) for text in members.values() if text.startswith("0")), default=0)
        lacking |= {f"{before}{n:0{width}d}{after}" for n in range(first, last) if n not in members}
    return sorted(lacking - known)


def hole_faults(names: Collection[str], fix: Fix | str) -> Iterator[Fault]:
    for name in holes(names):
        problem = "its number is left out, while those around it are there"
        yield fault("shard.missing", shard_place(name), fix, problem=problem)
