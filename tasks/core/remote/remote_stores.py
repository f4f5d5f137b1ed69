"""Remote stores (`s3://`, `gs://`, `https://`, `hf://`) through fsspec.

A file read in order fetches each byte once, several ranges ahead of its reader. Every request has a time
limit and is tried again where that may help, so a dead server is an error within minutes and never a hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import math
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from tasks.core.remote import clients, ranges, remote_files, web
from tasks.core.remote.clients import call, failure, filesystem, persistent
from tasks.core.remote.remote_files import FileRanges, RemoteFile, sign
from tasks.core.stores import (
    ABSENT,
    NotRegular,
    ObjectStat,
    StoreUnreachable,
    host_of,
    is_remote,
    is_web,
    read_at_most,
    redact,
)

PROBE = 1 << 16
"""Bytes of the request that finds out whether a web server supports range requests."""
LISTING_S = 3600
"""Time limit for listing a whole folder; each of its pages may take as long as a request."""
TOGETHER = 32
"""Concurrent requests for sizes and tags."""
ANNOUNCED = 48
"""Announced files that are opened at once, or open and waiting for their reader."""
HOPELESS = 8
"""Failures in a row after which a host is not asked for the other files."""

TAGS = ("ETag", "etag", "md5Hash", "Content-MD5", "LastModified", "Last-Modified", "mtime")

_plain_hosts: set[str] = set()
"""Web hosts that have answered a request for the beginning of a file with it."""


class RemoteStore:
    """A folder of a bucket or web server. A file name that is an address of the same kind, on any host, is
    used as it is."""

    def __init__(self, location: str, config_key: str = "dataset.source.path") -> None:
        self.location = location.rstrip("/")
        self._config_key = config_key
        self._is_web = is_web(location)
        self._known: dict[str, ObjectStat | OSError] = {}
        self._coming: Iterator[tuple[str, FileRanges]] = iter(())
        self._most = 0
        self._begun: deque[tuple[str, Future[RemoteFile | BinaryIO]]] = deque()
        """The announced files that are being opened."""

    @cached_property
    def _fs(self) -> Any:
        return filesystem(self.location, self._config_key)

    def path(self, file: str) -> str:
        if is_remote(file):
            return file
        return f"{self.location}/{file.replace('#', '%23') if self._is_web else file}".rstrip("/")

    def stat(self, file: str) -> ObjectStat:
        """Use an answer of `entries` or `look_ahead` once, and query the store after that."""
        known = self._known.pop(file, None)
        try:
            if isinstance(known, OSError):
                raise known
            return known or self._stat(self.path(file))
        except (FileNotFoundError, PermissionError, NotRegular):
            return ABSENT

    def _stat(self, path: str) -> ObjectStat:
        return _stat(call(self._fs, self._info, path, where=path, limit_s=clients.STAT_S))

    def look_ahead(self, files: Sequence[str]) -> None:
        """Request the status of many files at once. Failures are kept for `stat` to raise."""
        found = call(self._fs, self._look, files, where=self.location, limit_s=LISTING_S)
        self._known = dict(zip(files, found, strict=True))

    async def _look(self, files: Sequence[str]) -> list[ObjectStat | OSError]:
        limit = asyncio.Semaphore(TOGETHER)
        failed: Counter[str] = Counter()

        async def one(file: str) -> ObjectStat | OSError:
            path = self.path(file)
            host = host_of(path)
            async with limit:
                if failed[host] >= HOPELESS:
                    return failure(TimeoutError(), path)[0]
                try:
                    found = _stat(await persistent(self._info, path, where=path, limit_s=clients.STAT_S))
                except OSError as error:
                    failed[host] += isinstance(error, StoreUnreachable)
                    return error
                failed[host] = 0
                return found

        return await asyncio.gather(*map(one, files))

    async def _info(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = await (web.info(self._fs, path) if self._is_web else self._fs._info(path))
        return found

    def open(self, file: str, in_order: bool = True, size: int = -1) -> BinaryIO:
        is_large = size > ranges.BLOCK or not in_order
        ahead = ranges.BLOCK if not is_large else PROBE if self._is_web else 0
        opened = self._opened(FileRanges(self._fs, self.path(file)), ahead, size=size)
        if not isinstance(opened, RemoteFile):
            return opened
        opened.is_in_order = in_order
        return cast(BinaryIO, io.BufferedReader(opened, remote_files.BUFFER) if in_order else opened)

    def blocks(self, file: str, size: int = -1) -> Generator[memoryview, None, None]:
        with self.open(file, size=size) as opened:
            if not isinstance(opened, io.BufferedReader):
                while block := opened.read(ranges.BLOCK):
                    yield memoryview(block)
                return
            yield from cast(RemoteFile, opened.raw).blocks()

    def announce(self, files: Iterable[str], most: int) -> None:
        self._forget_until(None)
        self._coming = self._signed(iter(files))
        self._most = most
        self._begin_announced()

    def read(self, file: str, most: int) -> bytes:
        with self._announced(file) or self._beginning(FileRanges(self._fs, self.path(file)), most) as opened:
            if isinstance(opened, RemoteFile):
                opened.is_in_order = True
            return read_at_most(cast(BinaryIO, opened), most)

    def _begin_announced(self) -> None:
        for file, source in islice(self._coming, ANNOUNCED - len(self._begun)):
            self._begun.append((file, ranges.threads().submit(self._beginning, source, self._most)))

    def _signed(self, files: Iterator[str]) -> Iterator[tuple[str, FileRanges]]:
        """Yield the files with their ranges, whose addresses are signed for many at once."""
        while some := list(islice(files, TOGETHER)):
            sources = [FileRanges(self._fs, self.path(file)) for file in some]
            with contextlib.suppress(OSError):  # which the reader of a file raises
                sign([source for source in sources if source.is_signed])
            yield from zip(some, sources, strict=True)

    def _beginning(self, source: FileRanges, most: int) -> RemoteFile | BinaryIO:
        return self._opened(source, min(most + 1, ranges.BLOCK), most)

    def _announced(self, file: str) -> RemoteFile | BinaryIO | None:
        """Return the file, open, if it was announced; those announced before it are no longer awaited."""
        if all(file != announced for announced, _ in self._begun):
            return None
        self._forget_until(file)
        _, opened = self._begun.popleft()
        self._begin_announced()
        return opened.result()

    def _forget_until(self, file: str | None) -> None:
        while self._begun and self._begun[0][0] != file:
            self._begun.popleft()[1].cancel()

    def read_end(self, file: str, most: int) -> bytes:
        with self.open(file, in_order=False) as opened:
            opened.seek(max(opened.seek(0, io.SEEK_END) - most, 0))
            return opened.read(most)

    def _opened(
        self, source: FileRanges, ahead: int, most: int | None = None, size: int = -1
    ) -> RemoteFile | BinaryIO:
        """Return a RemoteFile with its first bytes, or the whole file if its server has no range requests."""
        content, path = memoryview(b""), source.path
        if self._is_web:
            started = self._started(source, size) if size > ahead else None
            begin = self._begin_web(path, ahead, most)
            if begin.whole is None and begin.size >= 0:
                source.compare(begin.size)
            if started is not None:
                if begin.whole is None and begin.size == size:
                    return started
                started.close()
            if begin.whole is not None:
                return begin.whole
            content, size, source.address = memoryview(begin.content), begin.size, begin.address
        elif ahead:
            content, size = _begin(source, ahead)
        if size < 0 and (size := self._stat(path).size) < 0:
            raise web.WrongAnswer(errno.EIO, "the server does not tell the file's size", redact(path))
        return RemoteFile(source.fetch, path, size, content)

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        path = self.path(folder)
        listed = call(self._fs, self._fs._ls, path, detail=True, where=path, limit_s=LISTING_S)
        base = self._fs._strip_protocol(path).rstrip("/") + "/"
        below = f"{folder}/" if folder else ""
        folders: set[str] = set()
        files: set[str] = set()
        self._known = {}
        for info in listed:
            name = info["name"].removeprefix(base)
            is_folder = info["type"] == "directory"
            name = unquote(name.rstrip("/")) if self._is_web else name.rstrip("/")
            if not name or "/" in name or info["name"] == name or (self._is_web and "?" in name):
                continue  # the folder itself, or a link to elsewhere
            (folders if is_folder else files).add(name)
            if not is_folder and info["size"] is not None:
                self._known[below + name] = _stat(info)
        return sorted(folders), sorted(files)

    def files(self) -> Iterator[str]:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            folders, files = self.entries(folder)
            below = f"{folder}/" if folder else ""
            yield from (below + name for name in files)
            waiting += [below + name for name in reversed(folders)]

    def _started(self, source: FileRanges, size: int) -> RemoteFile | None:
        """Return a file whose ranges are requested while its beginning is, as its host is likely to give
        them; None where that is not known."""
        if host_of(source.path) not in _plain_hosts:
            return None
        source.address = str(self._fs.encode_url(source.path))
        started = RemoteFile(source.fetch, source.path, size, memoryview(b""))
        started.go_ahead(ranges.AHEAD)
        return started

    def _begin_web(self, path: str, count: int, most: int | None) -> web.WebBeginning:
        """Return the beginning of a web server's file; by a plain request from a host that has answered one
        with a range before."""
        host, tried = host_of(path), 0
        if host in _plain_hosts:
            address = str(self._fs.encode_url(path))
            try:
                found = ranges.get_range(address, 0, count)
                return web.WebBeginning(found.content, found.size, address)
            except ranges.Refused:
                pass
            except OSError:
                tried = 1
        asked = self._fs, path, count, most
        begin: web.WebBeginning = call(self._fs, web.begin, *asked, where=path, limit_s=math.inf, tried=tried)
        if begin.whole is None and host_of(begin.address) == host:
            _plain_hosts.add(host)
        else:
            _plain_hosts.discard(host)
        return begin


def _begin(source: FileRanges, count: int) -> tuple[memoryview, int]:
    """Return the first bytes, and the file's size, or -1 if the answer does not report it: most files cost
    one request."""
    try:
        ahead, size, _ = source.range(0, count)
    except (FileNotFoundError, PermissionError, StoreUnreachable):
        raise
    except OSError:
        return memoryview(b""), -1  # an empty file has no first byte to ask for
    return ahead, len(ahead) if size < 0 and len(ahead) < count else size


def _stat(info: Mapping[str, Any]) -> ObjectStat:
    if info["type"] != "file":
        return ABSENT
    stamp = next((str(info[tag]) for tag in TAGS if info.get(tag)), "")
    return ObjectStat(-1 if info.get("size") is None else info["size"], stamp)
