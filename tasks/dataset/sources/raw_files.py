"""The raw files of a source: those in its folder or under its path, and those that rows of a table name.

A file that cannot be read is handled by its cause. A file that is missing, or that its disk refuses, costs
its own sample. A server outside the source that does not answer costs the samples it holds, and the next
build tries them again. When the source itself is gone (unmounted, its server down), the build ends: treating
that as bad samples would publish a dataset that lacks them.

Files at web addresses outside the source are not looked at when they are listed, which would double the
requests and ask every server at every build. They are fetched ahead of their reader, as
`tasks.core.remote.addresses` does it.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, TypeVar

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
    hidden_part,
    host_of,
    is_hidden,
    is_remote,
    is_valid,
    is_web,
    join_location,
    redact,
)
from tasks.dataset.formats import images
from tasks.dataset.manifest import HIDDEN, THUMBNAILS
from tasks.dataset.rejects import TRANSIENT, Reason, Reject
from tasks.dataset.sources.protocol import BY_ROW, Absent, RawSample, fault_of
from tasks.dataset.tar.format import LFS, LFS_POINTER

if TYPE_CHECKING:  # asyncio takes as long to import as all of a source
    from tasks.core.remote.addresses import AddressFetcher
    from tasks.core.remote.answers import Problem

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
PACKED = (".gz", ".bz2", ".xz", ".zst")
_KIND = re.compile(r"\.(?=\d*[a-z])[a-z0-9]{1,8}")
"""A suffix, but not the number of a frame (`.0001`) or the end of a title with dots in it."""
PICTURES = frozenset(f".{suffix}" for suffix in (*images.SUFFIXES, *images.UNREAD))
THUMBNAIL_PLACES = frozenset({"@eaDir", "__MACOSX", "._*", ".@__thumb", ".thumbnails", ".thumbs"})
"""Where systems keep small copies of pictures, and what macOS adds beside each file."""
AT_ONCE = 1000
"""Files to request from a remote store together."""
ROWS_AT_ONCE = 256
"""Rows whose files are looked up together, since each look-up costs a round trip over the network."""
NO_FILE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO)
"""A name too long, links in a circle, a socket: unlike other errors, these stay the same at the next try."""
HOPELESS = 3
"""After this many files in a row that a server did not give, each requested several times, stop asking it."""
MOST_HOSTS = 10_000
"""Hosts to remember for not answering."""
PROBLEMS: Mapping[Problem, Reason] = {
    "gone": "source.gone",
    "unreachable": "source.unreachable",
    "too_large": "image.too_large",
}
_DRIVE = re.compile(r"[A-Za-z]:(?=[/\\])")
MOST_TRIED = 100
"""Absolute paths to try for one that leads below the root."""
Answer = TypeVar("Answer")


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
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to be read in order; any OSError becomes Unreachable."""
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


def require_root(root: str | None, config_key: str, holds_images: bool) -> None:
    """UsageError that names `config_key` for a root that is not there, or that no path starts at because the
    files of the source hold the images."""
    if root is not None and holds_images:
        raise UsageError(f"{config_key}: the table holds the images themselves; remove the key")
    if root is not None and not is_remote(root) and not os.path.isdir(root):
        raise UsageError(f"{config_key}: there is no folder {root}; paths start at the working directory")


def public_name(base: str, name: str) -> str:
    """Return a file's name below `base`, without the signature or password that an address may hold."""
    if is_remote(name):
        return address_key(name)
    if is_web(base) and "?" in name:
        return address_key(base + name).removeprefix(redact(base))
    return name


class LinkedFiles:
    """Files that a table names: relative to its folder or to a `root`, or by an address of their own.

    A path may have Windows' backslashes. With a root, an absolute path is one of another machine: as many of
    its folders are left out at its front as the first one requires of which a file is there.

    An address may hold a signature or a password, which only `with_stats` and `read` need: `name` returns the
    whole address where the file lies outside the source, `public_name` the part that people may see.
    """

    def __init__(self, store: Store, config_key: str, root: str = "") -> None:
        self.store = self._store = store
        self._config_key = config_key
        self._root = redact(root)
        self._left_out: int | None = None
        self._tried = 0
        self._is_remote = is_remote(store.location)
        self._base = store.location.rstrip("/") + "/"
        self._fetcher: AddressFetcher | None = None
        self._foreign: dict[str, Store] = {}
        self._failures: Counter[str] = Counter()

    def name(self, written: str, folder: str = "") -> str:
        """Return the name for a path `written` in a table of the source's `folder`: relative to the source
        for files within it."""
        if is_remote(written):
            return written.removeprefix(self._base)
        below = f"{folder}/" if folder and not self._root else ""
        if "\\" in written and (self._is_remote or self._store.stat(below + written) == ABSENT):
            written = written.replace("\\", "/")
        if self._root:
            written = self._below_root(written)
        elif not written.startswith("/") and not _DRIVE.match(written):
            written = below + written
        if "/" not in written:
            return written
        if self._is_remote:
            return posixpath.normpath(written.lstrip("/"))
        return os.path.normpath(written).removeprefix(self._base)

    def _below_root(self, written: str) -> str:
        """Return a path relative to the root, of an absolute one without the folders at its front."""
        path = _DRIVE.sub("", written)
        if not path.startswith("/"):
            return path
        parts = [part for part in path.split("/") if part]
        if self._left_out is None and self._tried < MOST_TRIED:
            self._tried += 1
            tails = ("/".join(parts[count:]) for count in range(len(parts)))
            found = (count for count, tail in enumerate(tails) if self._store.stat(tail) != ABSENT)
            self._left_out = next(found, None)
        return "/".join(parts[self._left_out or 0 :])

    def public_name(self, name: str) -> str:
        return public_name(self._base, name)

    def address(self, name: str) -> str:
        """Return the whole address of a name, which `read` takes as well."""
        return join_location(self._base, name)

    def with_stats(self, items: Iterator[tuple[RawSample, Sequence[str] | None]]) -> Iterator[RawSample]:
        """Yield the samples with the size and stamp of their named files together: ABSENT where one is not
        there, a fault that may pass where one cannot be looked at. Samples with None stay as they are, and
        those with a web address outside the source are stamped by their rows. Remote files are requested for
        many rows at once. Unreachable when the source itself is gone."""
        while some := list(islice(items, ROWS_AT_ONCE)):
            distinct = dict.fromkeys(
                name for _, names in some for name in names or () if not is_elsewhere(name)
            )
            self._look_ahead(distinct)
            stats = {name: self._stat(name) for name in distinct}
            for item, names in some:
                if names is None:
                    yield item
                    continue
                looked_at = [stats[name] for name in names if name in stats]
                found = looked_at[0] if len(looked_at) == 1 else _together(looked_at)
                if len(looked_at) < len(names) and isinstance(found, ObjectStat) and found != ABSENT:
                    found = _stamped_by_row(item, names, found.stamp)
                if isinstance(found, Reject):
                    yield item._replace(content="", fault=fault_of(found), may_pass=True)
                else:
                    yield item._replace(stat=found)

    def read(self, name: str, limit: int) -> bytes:
        """Return a file's content; Absent, or Reject when it is unreadable or exceeds `limit` bytes;
        Unreachable when the source itself is gone."""
        name = self._within(name)
        if not is_remote(name):
            try:
                return read_file(self._store, name, limit)
            except Absent as absent:
                raise Absent(f"{absent.detail}: {self._looked_for(name)}") from None
        if not is_valid(name):
            raise Absent("no valid address")
        if is_web(name):
            return self._fetched(name, limit)
        return self._request(name, lambda store: read_file(store, name, limit))

    def announce(self, names: Iterable[str], limit: int, fetcher: AddressFetcher) -> None:
        """Announce a `read` of each of these names, in this order."""
        self._fetcher = fetcher
        fetcher.announce((name for name in map(self._within, names) if is_elsewhere(name)), limit)

    def _within(self, name: str) -> str:
        return name.removeprefix(self._base)

    def _fetched(self, address: str, limit: int) -> bytes:
        from tasks.core.remote.addresses import AddressFetcher
        from tasks.core.remote.answers import Unfetched

        if self._fetcher is None:
            self._fetcher = AddressFetcher()
        try:
            return self._fetcher.fetch(address, limit)
        except Unfetched as failed:
            raise Reject(PROBLEMS[failed.problem], str(failed)) from None

    def _looked_for(self, name: str) -> str:
        """Return a missing file as it was looked for, and how its path is mended."""
        if self._root:
            return repr(f"{self._root.rstrip('/')}/{name}")
        is_whole = name.startswith("/") or _DRIVE.match(name)
        fix = "; if that is another machine's path, give its source a root, the folder of the images here"
        return repr(name) + (fix if is_whole else "")

    def _stat(self, name: str) -> ObjectStat | Reject:
        try:
            if not is_remote(name):
                return self._store.stat(name)
            return self._request(name, lambda store: store.stat(name)) if is_valid(name) else ABSENT
        except Reject as reject:
            return reject
        except OSError as error:
            return unreadable(error)

    def _request(self, address: str, request: Callable[[Store], Answer]) -> Answer:
        """Send a request to the server of an address; Reject when it does not answer, or did not before."""
        host = host_of(address)
        if not self._is_hopeless(address):
            try:
                answer = request(self._open(address))
                self._failures.pop(host, None)
                return answer
            except StoreUnreachable:
                if len(self._failures) >= MOST_HOSTS:
                    self._failures.clear()
                self._failures[host] += 1
        raise Reject(TRANSIENT, "its server does not answer")

    def _look_ahead(self, names: Iterable[str]) -> None:
        by_store: dict[Store, list[str]] = defaultdict(list)
        for name in names:
            if not is_remote(name):
                if self._is_remote:
                    by_store[self._store].append(name)
            elif is_valid(name) and not self._is_hopeless(name):
                by_store[self._open(name)].append(name)
        for store, wanted in by_store.items():
            store.look_ahead(wanted)

    def _open(self, address: str) -> Store:
        """Return one store for all hosts of a scheme, so that requests to them run at the same time."""
        scheme = address.partition("://")[0]
        if scheme not in self._foreign:
            self._foreign[scheme] = open_store(host_of(address), self._config_key)
        return self._foreign[scheme]

    def _is_hopeless(self, address: str) -> bool:
        return self._failures[host_of(address)] >= HOPELESS


def is_elsewhere(name: str) -> bool:
    """Whether a name of `LinkedFiles` is a web address outside the source."""
    return is_web(name) and is_valid(name)


def _stamped_by_row(item: RawSample, names: Sequence[str], stamp: str) -> ObjectStat:
    """Return the stamp of a sample with files at web addresses; `stamp` is that of its other files."""
    row = repr((item.content, *names)).encode("utf-8", "surrogatepass")
    return ObjectStat(-1, f"{BY_ROW}{blake2b(row, digest_size=10).hexdigest()} {stamp}".rstrip())


def _together(stats: Sequence[ObjectStat | Reject]) -> ObjectStat | Reject:
    """Return the size and stamp of all of a sample's files; the first Reject, and ABSENT where one is not
    there."""
    fault = next((one for one in stats if isinstance(one, Reject)), None)
    if fault is not None or ABSENT in stats:
        return fault or ABSENT
    found = [one for one in stats if isinstance(one, ObjectStat)]
    return ObjectStat(sum(one.size for one in found), " ".join(one.stamp for one in found))
