"""The files that rows of a table name: below its folder or a root, or at an address of their own.

A file that is missing, or that its disk refuses, costs its own sample. A server outside the source that does
not answer costs the samples it holds, and the next build tries them again. When the source itself is gone,
the build ends.

Files at web addresses outside the source are not looked at when they are listed, which would double the
requests and ask every server at every build. They are fetched ahead of their reader, as
`tasks.core.remote.addresses` does it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, filterfalse, islice
from typing import TYPE_CHECKING, TypeVar

from tasks.core.errors import UsageError
from tasks.core.folders import open_store
from tasks.core.stores import (
    ABSENT,
    ObjectStat,
    Store,
    StoreUnreachable,
    absolute_location,
    host_of,
    is_remote,
    is_valid,
    is_web,
    join_location,
    redact,
)
from tasks.dataset.sources.protocol import BY_ROW, Absent, RawSample, fault_of
from tasks.dataset.sources.raw_files import Files, public_name, read_file, unreadable
from tasks.dataset.version.rejects import TRANSIENT, Reason, Reject

if TYPE_CHECKING:  # asyncio takes as long to import as all of a source
    from tasks.core.remote.addresses import AddressFetcher
    from tasks.core.remote.answers import Problem

ROWS_AT_ONCE = 256
"""Rows whose files are looked up together, since each look-up costs a round trip over the network."""
HOPELESS = 3
"""After this many files in a row that a store did not give, each requested several times, stop asking it. Web
hosts, of which a table may name thousands, are judged where they are fetched."""
PROBLEMS: Mapping[Problem, Reason] = {
    "gone": "source.gone",
    "unreachable": "source.unreachable",
    "too_large": "image.too_large",
}
_DRIVE = re.compile(r"[A-Za-z]:(?=[/\\])")
MOST_TRIED = 100
"""Absolute paths to try for one that leads below the root."""
Answer = TypeVar("Answer")
Row = TypeVar("Row")


def require_root(root: str | None, config_key: str, holds_images: bool) -> None:
    """UsageError that names `config_key` for a root that is not there, or that no path starts at because the
    files of the source hold the images."""
    if root is not None and holds_images:
        raise UsageError(f"{config_key}: the table holds the images themselves; remove the key")
    if root is not None and not is_remote(root) and not os.path.isdir(root):
        raise UsageError(f"{config_key}: there is no folder {root}; paths start at the working directory")


def with_root(location: str, root: str | None) -> str:
    """Return where a source's tables lie and, where it differs, the root of what they name."""
    return location if root is None else f"{location} with images in {absolute_location(root)}"


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
        self.is_remote = is_remote(store.location)
        self._base = store.location.rstrip("/") + "/"
        self._fetcher: AddressFetcher | None = None
        self._foreign: dict[str, Store] = {}
        self._failures: Counter[str] = Counter()

    @classmethod
    def of(cls, tables: Files, root: str | None, config_key: str) -> LinkedFiles:
        """Return what rows of these tables name: files below their common folder, or below `root`."""
        if root is None:
            return cls(tables.store, f"{config_key}.path")
        key = f"{config_key}.root"
        return cls(open_store(root, key), key, root)

    def name(self, written: str, folder: str = "") -> str:
        """Return the name for a path `written` in a table of the source's `folder`: relative to the source
        for files within it."""
        if is_remote(written):
            return written.removeprefix(self._base)
        below = f"{folder}/" if folder and not self._root else ""
        if "\\" in written and (self.is_remote or self._store.stat(below + written) == ABSENT):
            written = written.replace("\\", "/")
        if self._root:
            written = self._below_root(written)
        elif not written.startswith("/") and not _DRIVE.match(written):
            written = below + written
        if "/" not in written:
            return written
        if self.is_remote:
            return posixpath.normpath(written.lstrip("/"))
        return os.path.normpath(written).removeprefix(self._base)

    def decided(self, rows: Iterator[Row], name_of: Callable[[Row], str]) -> Iterator[Row]:
        """Yield the rows once the names of the first ones have decided what is left out of all, so that the
        name of a missing image does not depend on whether it stands before the first that is there."""
        ahead = list(islice(rows, MOST_TRIED)) if self._root and self._left_out is None else []
        for row in ahead:
            name_of(row)
        return chain(ahead, rows)

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

    def announce(self, names: Iterable[str], limit: int, fetcher: AddressFetcher | None) -> None:
        """Announce a `read` of each of these names, in this order, as `FileSource.announce` does."""
        within = map(self._within, names)
        if fetcher is not None:
            self._fetcher = fetcher
            fetcher.announce(filter(is_elsewhere, within), limit)
            return
        for store, wanted in self._by_store(filterfalse(is_elsewhere, within)).items():
            store.announce(wanted, limit)

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
                self._failures[host] += 1
        raise Reject(TRANSIENT, "its server does not answer")

    def _look_ahead(self, names: Iterable[str]) -> None:
        for store, wanted in self._by_store(names).items():
            store.look_ahead(wanted)

    def _by_store(self, names: Iterable[str]) -> dict[Store, list[str]]:
        """Return the files that lie in remote stores."""
        by_store: dict[Store, list[str]] = defaultdict(list)
        for name in names:
            if not is_remote(name):
                if self.is_remote:
                    by_store[self._store].append(name)
            elif is_valid(name) and not self._is_hopeless(name):
                by_store[self._open(name)].append(name)
        return by_store

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
