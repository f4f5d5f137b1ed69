"""The raw files of a source: those in its folder, and those that one path of the config covers.

A file that cannot be read is handled by its cause. A file that is missing, or that its disk refuses, costs
its own sample. When the source itself is gone (unmounted, its server down), the build ends: treating that as
bad samples would publish a dataset that lacks them.
"""

from __future__ import annotations

import errno
import gzip
import os
import posixpath
import re
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import BinaryIO

from tasks.core.errors import DataError, UsageError
from tasks.core.folders import open_store
from tasks.core.patterns import base_folder, expand
from tasks.core.stores import (
    NotRegular,
    ObjectStat,
    Store,
    StoreUnreachable,
    address_key,
    hidden_part,
    is_hidden,
    is_remote,
    is_web,
    join_location,
    redact,
)
from tasks.dataset.formats import images
from tasks.dataset.sources.protocol import Absent
from tasks.dataset.tar.format import LFS, LFS_POINTER
from tasks.dataset.version.manifest import HIDDEN, THUMBNAILS
from tasks.dataset.version.rejects import TRANSIENT, Reason, Reject

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
PACKED = (".gz", ".bz2", ".xz", ".zst")
_KIND = re.compile(r"\.(?=\d*[a-z])[a-z0-9]{1,8}")
"""A suffix, but not the number of a frame (`.0001`) or the end of a title with dots in it."""
PICTURES = frozenset(f".{suffix}" for suffix in (*images.SUFFIXES, *images.UNREAD))
THUMBNAIL_PLACES = frozenset({"@eaDir", "__MACOSX", "._*", ".@__thumb", ".thumbnails", ".thumbs"})
"""Where systems keep small copies of pictures, and what macOS adds beside each file."""
AT_ONCE = 1000
"""Files to request from a remote store together."""
NO_FILE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO)
"""A name too long, links in a circle, a socket: unlike other errors, these stay the same at the next try."""


def open_file(store: Store, file: str, in_order: bool = True) -> BinaryIO:
    """Open a regular file for reading as `Store.open` does; Absent, or Reject when it cannot be opened."""
    try:
        return store.open(file, in_order)
    except (OSError, ValueError) as error:
        raise _rejected(error) from None


def read_file(store: Store, file: str, limit: int) -> bytes:
    """Return a regular file's content; Absent, or Reject when it is unreadable or exceeds `limit` bytes."""
    content = read_start(store, file, limit)
    if len(content) > limit:
        raise Reject("image.too_large", f"more than {limit:,} bytes, as no image within the limits has")
    return content


def read_start(store: Store, file: str, most: int) -> bytes:
    """Return a regular file's content, or its first `most` + 1 bytes; Absent, or Reject if unreadable."""
    try:
        return store.read(file, most)
    except (OSError, ValueError) as error:
        raise _rejected(error) from None


def require_fetched(start: bytes, reason: Reason) -> None:
    """Reject with this reason for a file that begins like the pointer that Git LFS leaves in its place."""
    if start.startswith(LFS):
        raise Reject(reason, f"it is {LFS_POINTER}")


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
    """Return the Reject of a sample whose file cannot be read; raise the error if the store is gone."""
    if isinstance(error, StoreUnreachable):
        raise error
    return Reject(TRANSIENT, error.strerror or type(error).__name__)


def unreachable(place: str, error: OSError, problem: str = "cannot be read") -> StoreUnreachable:
    """Return the error that ends a build when a file of many samples cannot be read although its content is
    not at fault: the dataset would lack all of them, and the next try may well succeed."""
    if isinstance(error, StoreUnreachable):
        return error
    return StoreUnreachable(error.errno, f"{problem}: {error.strerror or error}", place)


@contextmanager
def text_errors(place: str, where: Callable[[], str]) -> Iterator[None]:
    """A context in which a file of text is read and unpacked. DataError where it is damaged, or not in its
    encoding, from `where` on; StoreUnreachable where the disk or server is at fault."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{place} is damaged: {where()} cannot be unpacked ({error}); download it again"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: {where()} is not {error.encoding}; save it as UTF-8") from None
    except StoreUnreachable:
        raise
    except OSError as error:
        raise unreachable(place, error, f"{where()} cannot be read") from None


def kind_of(file: str) -> str:
    """Return the kind of a file by the end of its name: `.pdf`, `without suffix`, `other`."""
    stem, suffix = posixpath.splitext(file.lower())
    if not suffix:
        return "without suffix"
    if suffix in PACKED and (inner := posixpath.splitext(stem)[1]) in (".nii", ".tar"):
        return inner + suffix
    return suffix if _KIND.fullmatch(suffix) else "other"


def hidden_kind(file: str) -> str:
    """Return the kind of a hidden file for the counts of what is passed over; "" unless it is a picture."""
    if posixpath.splitext(file)[1].lower() not in PICTURES:
        return ""
    part = hidden_part(file)
    return f"{THUMBNAILS if part in THUMBNAIL_PLACES else HIDDEN}{part}"


def stats_of(store: Store, files: Iterable[str]) -> Iterator[tuple[str, ObjectStat]]:
    """Yield each file with its Stat while they are listed. A bucket's listing already includes it; a web
    server is asked about many files together."""
    if not is_web(store.location):
        for file in files:
            yield file, store.stat(file)
        return
    remaining = iter(files)
    while some := list(islice(remaining, AT_ONCE)):
        store.look_ahead(some)
        yield from ((file, store.stat(file)) for file in some)


class SourceCheck:  # made for every sample, in a quarter of the time that a generator takes
    """A context that turns the Reject of an unreadable file into a DataError where the whole store is gone.

    A build distributes samples to machines, one of which may have lost the mount. Samples that it rejected
    would stay rejected, because the next build does not look for missing files again.
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
    """Whether the store holds anything: a folder that is not mounted is often there, and empty. A remote
    store reports by itself that it is gone."""
    if is_remote(store.location):
        return True
    try:
        with os.scandir(store.location) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


class RawFolder:
    """A folder with all visible files below it, of which a source reads some; the others are counted, and so
    are hidden pictures."""

    def __init__(self, path: str, config_key: str) -> None:
        self._path = path
        self._config_key = config_key
        self.passed_over: Counter[str] = Counter()

    @cached_property
    def store(self) -> Store:
        return open_store(self._path, self._config_key)

    def require(self) -> None:
        """UsageError when the folder is not there or cannot be listed."""
        try:
            self.store.entries()
        except StoreUnreachable:
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{self._config_key}: there is no folder {self.store.location}") from None
        except OSError as error:
            problem = f"{self.store.location} cannot be listed: {error.strerror or error}"
            raise UsageError(f"{self._config_key}: {problem}") from None

    def files(
        self, is_read: Callable[[str], bool], known: Collection[str] = ()
    ) -> Iterator[tuple[str, ObjectStat]]:
        """Yield the files that `is_read` accepts, with their Stat, and count the others by kind, except for
        the `known` ones; DataError when the folder cannot be listed to its end."""
        try:
            yield from stats_of(self.store, self._names(is_read, known))
        except StoreUnreachable:
            raise
        except OSError as error:
            raise DataError(
                f"{self.store.location} could not be listed to its end: {error.strerror or error}; bring it "
                "back and run again, the current version stays as it was"
            ) from None

    def _names(self, is_read: Callable[[str], bool], known: Collection[str]) -> Iterator[str]:
        self.passed_over.clear()
        for file in self.store.files():
            if is_hidden(file):
                if kind := hidden_kind(file):
                    self.passed_over[kind] += 1
                continue
            if is_read(file):
                yield file
            elif file not in known:
                self.passed_over[kind_of(file)] += 1


class Files:
    """The files that one path of the config covers, in their order, listed once.

    A name is relative to the folder that holds all of them, and contains no signature or password of an
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
        """UsageError when there is none, when a listed one is missing, or when a tar is compressed."""
        return list(self._written)

    def location(self, name: str) -> str:
        """Return a file's whole path or address."""
        return join_location(self.store.location, self._written[name])

    def stats(self) -> Iterator[tuple[str, ObjectStat]]:
        """Yield each file with its Stat; Unreachable where that cannot be read."""
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
    def opened(self, name: str, size: int = -1) -> Iterator[BinaryIO]:
        """Open a file, of this size where it is known, to be read in order; any OSError becomes
        Unreachable."""
        try:
            with self.store.open(self._written[name], size=size) as file:
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
            there = expand(self._given, self._suffixes, self._config_key)  # whose error names what is missing
        compressed = next((file for file in there if file.lower().endswith(COMPRESSED)), None)
        if compressed is not None:
            why = "is compressed, which is not read: its members are already; unpack it to .tar"
            raise UsageError(f"{self._config_key}: {compressed} {why}")
        base = self.store.location.rstrip("/") + "/"
        files = [file.removeprefix(base) for file in there if len(there) == 1 or not is_cache(file)]
        return {public_name(base, file): file for file in files}


def is_cache(file: str) -> bool:
    """Whether a file is what `datasets` leaves beside the files of a dataset that it has read."""
    return file.endswith(".arrow") and posixpath.basename(file).startswith("cache-")


def public_name(base: str, name: str) -> str:
    """Return a file's name below `base`, without the signature or password that an address may hold."""
    if is_remote(name):
        return address_key(name)
    if is_web(base) and "?" in name:
        return address_key(base + name).removeprefix(redact(base))
    return name
