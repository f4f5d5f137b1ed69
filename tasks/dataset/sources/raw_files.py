"""The raw files of a source: those that a path of the config means, and those that the rows of a table name.

Whose fault a file is that cannot be had decides what becomes of it. One that is not there, or that its disk
refuses, costs its own sample. A server outside of the source that does not answer costs its own samples,
which the next build tries again. When the source itself is gone (not mounted any more, its server down), the
build ends: taking that for bad samples would publish a dataset that lacks them.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import BinaryIO

from tasks.core.errors import DataError, UsageError
from tasks.core.folders import open_store
from tasks.core.patterns import base_folder, expand
from tasks.core.stores import (
    ABSENT,
    NotRegular,
    ObjectStat,
    Store,
    StoreUnreachable,
    address_key,
    host_of,
    is_remote,
    is_valid,
    is_web,
    join_location,
    redact,
)
from tasks.dataset.rejects import TRANSIENT, Reject
from tasks.dataset.sources.protocol import Absent

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
PACKED = (".gz", ".bz2", ".xz", ".zst")
_KIND = re.compile(r"\.(?=\d*[a-z])[a-z0-9]{1,8}")
"""Not the number of a frame (`.0001`), nor the end of a title with dots in it."""
AT_ONCE = 1000
"""Files that a remote store is asked about together."""
NO_FILE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO)
"""A name too long, links in a circle, a socket: as true at the next try, unlike other errors."""
HOPELESS = 3
"""Files in a row that a server did not give, each asked for several times: it is asked for no more."""
MOST_HOSTS = 10_000
"""That are remembered for not answering."""
BACKSLASHES = "; paths with backslashes are those of Windows: write them with /"
SILENT_SERVER = (TRANSIENT, "its server does not answer")


def open_file(store: Store, file: str, in_order: bool = True) -> BinaryIO:
    """A regular file, open for reading as `Store.open` does; Absent, or Reject when it cannot be opened."""
    try:
        return store.open(file, in_order)
    except (OSError, ValueError) as error:
        raise _rejected(error) from None


def read_file(store: Store, file: str, limit: int) -> bytes:
    """A regular file's content; Absent, or Reject when it is unreadable or larger than `limit` bytes."""
    content = read_start(store, file, limit)
    if len(content) > limit:
        raise Reject("image.too_large", f"more than {limit:,} bytes, as no image within the limits has")
    return content


def read_start(store: Store, file: str, most: int) -> bytes:
    """A regular file's content, or its first `most` + 1 bytes; Absent, or Reject when it is unreadable."""
    try:
        return store.read(file, most)
    except (OSError, ValueError) as error:
        raise _rejected(error) from None


def _rejected(error: OSError | ValueError) -> Reject:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Absent()
    if isinstance(error, NotRegular):
        return Absent(str(error))
    if not isinstance(error, OSError):
        return Absent("no file can have such a name")
    if error.errno in NO_FILE:
        return Absent(os.strerror(error.errno))
    return unreadable(error)


def unreadable(error: OSError) -> Reject:
    """The Reject of a sample whose file cannot be read; raises what is the whole source's trouble."""
    if isinstance(error, StoreUnreachable):
        raise error
    return Reject(TRANSIENT, error.strerror or type(error).__name__)


def unreachable(place: str, error: OSError, problem: str = "cannot be read") -> StoreUnreachable:
    """The error that ends a build when a file of many samples cannot be read for no fault of its content: the
    dataset would lack them all, and the next try may well read it."""
    if isinstance(error, StoreUnreachable):
        return error
    return StoreUnreachable(error.errno, f"{problem}: {error.strerror or error}", place)


def kind_of(file: str) -> str:
    """What a file is by the end of its name: `.pdf`, `without suffix`, `other`."""
    stem, suffix = posixpath.splitext(file.lower())
    if not suffix:
        return "without suffix"
    if suffix in PACKED and (inner := posixpath.splitext(stem)[1]) in (".nii", ".tar"):
        return inner + suffix
    return suffix if _KIND.fullmatch(suffix) else "other"


def stats_of(store: Store, files: Iterable[str]) -> Iterator[tuple[str, ObjectStat]]:
    """Each file with its Stat, as they are listed: a bucket's listing has just given it, a web server is
    asked about many files together."""
    if not is_web(store.location):
        for file in files:
            yield file, store.stat(file)
        return
    remaining = iter(files)
    while some := list(islice(remaining, AT_ONCE)):
        store.look_ahead(some)
        yield from ((file, store.stat(file)) for file in some)


class SourceCheck:  # made for every sample, in a quarter of the time that a generator takes
    """While the block runs: a Reject of a file that cannot be had passes, but is a DataError where the whole
    store is gone.

    A build hands out samples to machines of which one may have lost the mount. What that one rejected would
    stay rejected, because files that are not there are not asked for again.
    """

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Reject) or not (isinstance(error, Absent) or error.reason == TRANSIENT):
            return
        if not _is_there(self._store):
            raise DataError(
                f"{self._store.location} is not there any more on {socket.gethostname()} (removed, or not "
                "mounted); bring it back and run again, the current version stays as it was"
            ) from None


def _is_there(store: Store) -> bool:
    """A folder that is not mounted is often there, and empty. A remote store reports that by itself."""
    if is_remote(store.location):
        return True
    try:
        with os.scandir(store.location) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


class Files:
    """The files that one path of the config means, in their order, listed once.

    A name is relative to the folder that all of them lie in, and holds no signature or password of an
    address. UsageErrors name `config_key`.
    """

    def __init__(self, given: str, suffixes: Sequence[str], config_key: str) -> None:
        self._given = given
        self._suffixes = tuple(suffixes)
        self._config_key = config_key

    @cached_property
    def store(self) -> Store:
        return open_store(base_folder(self._given), self._config_key)

    @property
    def names(self) -> list[str]:
        """UsageError when there is none, when one that is promised is not there, or a tar is compressed."""
        return list(self._written)

    def location(self, name: str) -> str:
        """A file's whole path or address."""
        return join_location(self.store.location, self._written[name])

    def stats(self) -> Iterator[tuple[str, ObjectStat]]:
        """Each file with its Stat; Unreachable where it cannot be looked at."""
        remaining = iter(self.names)
        while some := list(islice(remaining, AT_ONCE)):
            self.store.look_ahead([self._written[name] for name in some])
            yield from ((name, self.stat(name)) for name in some)

    def stat(self, name: str) -> ObjectStat:
        try:
            return self.store.stat(self._written[name])
        except OSError as error:
            raise unreachable(redact(self.location(name)), error, "cannot be looked at") from None

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file to be read in order; Unreachable for whatever OSError comes of it."""
        try:
            with self.store.open(self._written[name]) as file:
                yield file
        except OSError as error:
            raise unreachable(redact(self.location(name)), error) from None

    @cached_property
    def _written(self) -> dict[str, str]:
        """The files by their names, as the store takes them."""
        try:
            packed = COMPRESSED if ".tar" in self._suffixes else ()
            there = expand(self._given, (*self._suffixes, *packed), self._config_key)
        except UsageError:
            there = expand(self._given, self._suffixes, self._config_key)  # says what is missing
        compressed = next((file for file in there if file.lower().endswith(COMPRESSED)), None)
        if compressed is not None:
            raise UsageError(
                f"{self._config_key}: {compressed} is compressed, which is not read: its members are "
                "already; unpack it to .tar"
            )
        base = self.store.location.rstrip("/") + "/"
        files = [file.removeprefix(base) for file in there]
        return {public_name(base, file): file for file in files}


def public_name(base: str, name: str) -> str:
    """The name of a file below `base`, without the signature or password that an address may hold."""
    if is_remote(name):
        return address_key(name)
    if is_web(base) and "?" in name:
        return address_key(base + name).removeprefix(redact(base))
    return name


class LinkedFiles:
    """Files that a table names: relative to its folder, or by an address of their own.

    An address may hold a signature or a password, which only `stats` and `read` are given: `name` gives the
    whole address where the file lies outside of the source, `public_name` what people may see of it.
    """

    def __init__(self, store: Store, config_key: str) -> None:
        self._store = store
        self._config_key = config_key
        self._is_remote = is_remote(store.location)
        self._base = store.location.rstrip("/") + "/"
        self._foreign: dict[str, Store] = {}
        self._failures: Counter[str] = Counter()

    def name(self, written: str, folder: str = "") -> str:
        """The name of what is `written` in a table of the source's `folder`: relative to the source for the
        files within it."""
        if is_remote(written):
            return written.removeprefix(self._base)
        if folder and not written.startswith("/"):
            written = f"{folder}/{written}"
        if "/" not in written:
            return written
        if self._is_remote:
            return posixpath.normpath(written.lstrip("/"))
        return os.path.normpath(written).removeprefix(self._base)

    def public_name(self, name: str) -> str:
        return public_name(self._base, name)

    def address(self, name: str) -> str:
        """The whole address of a name, which `read` takes as well."""
        return join_location(self._base, name)

    def stats(self, names: Sequence[str]) -> list[ObjectStat | Reject]:
        """Of each file, remote ones asked for together and each once: its Stat, ABSENT where it is not there,
        a Reject that may pass where it cannot be looked at; Unreachable when the source itself is gone."""
        distinct = dict.fromkeys(names)
        self._look_ahead(distinct)
        found = {name: self._stat(name) for name in distinct}
        return [found[name] for name in names]

    def read(self, name: str, limit: int) -> bytes:
        """A file's content; Absent, or Reject when it is unreadable or larger than `limit` bytes; Unreachable
        when the source itself is gone."""
        name = name.removeprefix(self._base)
        if not is_remote(name):
            try:
                return read_file(self._store, name, limit)
            except Absent as absent:
                raise Absent(f"{absent.detail}: {name!r}{BACKSLASHES if chr(92) in name else ''}") from None
        if not is_valid(name):
            raise Absent("no valid address")
        try:
            if not self._is_hopeless(name):
                content = read_file(self._open(name), name, limit)
                self._failures.pop(host_of(name), None)
                return content
        except StoreUnreachable:
            self._failed(name)
        raise Reject(*SILENT_SERVER)

    def _stat(self, name: str) -> ObjectStat | Reject:
        if not is_remote(name):
            try:
                return self._store.stat(name)
            except OSError as error:
                return unreadable(error)
        if not is_valid(name):
            return ABSENT
        try:
            if not self._is_hopeless(name):
                found = self._open(name).stat(name)
                self._failures.pop(host_of(name), None)
                return found
        except StoreUnreachable:
            self._failed(name)
        except OSError as error:
            return unreadable(error)
        return Reject(*SILENT_SERVER)

    def _look_ahead(self, names: Iterable[str]) -> None:
        by_store: dict[int, tuple[Store, list[str]]] = {}
        for name in names:
            if is_remote(name):
                if self._is_hopeless(name) or not is_valid(name):
                    continue
                store = self._open(name)
            elif self._is_remote:
                store = self._store
            else:
                continue
            by_store.setdefault(id(store), (store, []))[1].append(name)
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
