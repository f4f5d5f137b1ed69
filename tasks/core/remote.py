"""Remote stores (`s3://`, `gs://`, `https://`) through fsspec.

A file read in order fetches each byte once, a block ahead of its reader. Every request has a time limit and
is tried again when that may help, so a dead server is an error within minutes and never a hang. Endpoints and
credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …), never from a config.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from tasks.core import web
from tasks.core.addresses import host_of, is_remote, is_web
from tasks.core.errors import UsageError
from tasks.core.remote_errors import failure
from tasks.core.remote_file import BLOCK, RemoteFile
from tasks.core.stores import ABSENT, NotRegular, Stat, Unreachable, read_at_most

PROBE = 1 << 16
"""Bytes of the request that finds out whether a web server gives parts of files."""
CONNECT_S = 10
STALL_S = 30
"""Without a single byte; the request is given up."""
REQUEST_S = 300
LISTING_S = 3600
"""Of a whole folder; each of its pages may take as long as a request."""
TRIES = 3
PAUSE_S = 0.5
"""Before the second try; twice as long before each further one."""
TOGETHER = 32
"""Requests for sizes and tags at the same time."""
HOPELESS = 8
"""Failures of a host in a row."""

NEEDS = {
    "s3": ("s3fs", "tarmac[remote]"),
    "gs": ("gcsfs", "tarmac[gs]"),
    "http": ("aiohttp", "tarmac[remote]"),
    "https": ("aiohttp", "tarmac[remote]"),
}
TAGS = ("ETag", "etag", "md5Hash", "Content-MD5", "LastModified", "Last-Modified", "mtime")


def filesystem(location: str, config_key: str) -> Any:
    """fsspec's file system of an address, without caches; UsageError when its package is not installed."""
    scheme = location.partition("://")[0]
    package, extra = NEEDS[scheme]
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{config_key}: {scheme}:// needs the package {package}: pip install '{extra}'")
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        limits = {"connect_timeout": CONNECT_S, "read_timeout": STALL_S, "retries": {"total_max_attempts": 1}}
        options["config_kwargs"] = limits
    elif scheme != "gs":
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STALL_S)
        options |= {"client_kwargs": {"timeout": timeout}, "headers": {"Accept-Encoding": "identity"}}
    made = fsspec.filesystem(scheme, **options)
    made.retries = 1  # `call` tries again, and knows when that cannot help
    return made


def call(
    fs: Any, function: Callable[..., Any], *arguments: Any, where: str, limit_s: float = 0, **named: Any
) -> Any:
    """The result of one of fsspec's coroutines, tried again where that may help; OSError about `where`."""
    from fsspec.asyn import sync

    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            return sync(fs.loop, function, *arguments, timeout=limit_s or REQUEST_S, **named)
        except Exception as error:  # noqa: BLE001 - clients raise what they like; all of it becomes an OSError
            failed, may_pass = failure(error, where)
        if not may_pass:
            break
    raise failed


class RemoteStore:
    """A folder of a bucket or web server. A name that is an address of the same kind, of whatever host,
    stands for itself."""

    def __init__(self, location: str, config_key: str = "dataset.source.path") -> None:
        self.location = location.rstrip("/")
        self._config_key = config_key
        self._is_web = is_web(location)
        self._known: dict[str, Stat | OSError] = {}

    @cached_property
    def _fs(self) -> Any:
        return filesystem(self.location, self._config_key)

    def path(self, file: str) -> str:
        if is_remote(file):
            return file
        return f"{self.location}/{file.replace('#', '%23') if self._is_web else file}".rstrip("/")

    def stat(self, file: str) -> Stat:
        """What `entries` or `look_ahead` has just learnt is told once, then the store is asked."""
        known = self._known.pop(file, None)
        path = self.path(file)
        try:
            if isinstance(known, OSError):
                raise known
            return known or _stat(call(self._fs, self._info, path, where=path))
        except (FileNotFoundError, PermissionError, NotRegular):
            return ABSENT

    def look_ahead(self, files: Sequence[str]) -> None:
        """Ask about many files at once, for the calls of `stat` that follow, failures too: what may pass is
        tried again here, all of it together."""
        self._known = {}
        waiting = list(files)
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            found = call(self._fs, self._infos, waiting, where=self.location, limit_s=LISTING_S)
            again = []
            for file, info in zip(waiting, found, strict=True):
                if isinstance(info, BaseException):
                    failed, may_pass = failure(info, self.path(file))
                    self._known[file] = failed
                    again += [file] if may_pass else []
                else:
                    self._known[file] = _stat(info)
            waiting = again
            if not waiting:
                return

    async def _infos(self, files: Sequence[str]) -> list[dict[str, Any] | BaseException]:
        """Of each file; a host that fails HOPELESS times in a row is not asked for the others."""
        limit = asyncio.Semaphore(TOGETHER)
        failed: Counter[str] = Counter()

        async def one(file: str) -> dict[str, Any]:
            path = self.path(file)
            async with limit:
                if failed[host_of(path)] >= HOPELESS:
                    raise TimeoutError
                try:
                    found = await asyncio.wait_for(self._info(path), REQUEST_S)
                except BaseException as error:
                    failed[host_of(path)] += failure(error, path)[1]
                    raise
                failed[host_of(path)] = 0
                return found

        return await asyncio.gather(*map(one, files), return_exceptions=True)

    def open(self, file: str, in_order: bool = True) -> BinaryIO:
        """Not `in_order`: nothing is read ahead, for a reader that seeks."""
        opened = self._opened(self.path(file), BLOCK if in_order else PROBE if self._is_web else 0)
        is_raw = isinstance(opened, RemoteFile)
        return cast(BinaryIO, io.BufferedReader(opened, BLOCK) if is_raw and in_order else opened)

    def read(self, file: str, most: int) -> bytes:
        with self._opened(self.path(file), min(most + 1, BLOCK), most) as opened:
            return read_at_most(cast(BinaryIO, opened), most)

    def _opened(self, path: str, ahead: int, most: int | None = None) -> Any:
        """A RemoteFile with its first bytes, or all of a file whose server gives no parts."""
        content, size = b"", -1
        if self._is_web:
            content, size, whole = call(self._fs, web.begin, self._fs, path, ahead, most, where=path)
            if whole is not None:
                return whole
        elif ahead:
            content, size = self._begin(path, ahead)
        if size < 0:
            size = _stat(call(self._fs, self._info, path, where=path)).size
        return RemoteFile(self.fetch, path, size, content)

    def _begin(self, path: str, count: int) -> tuple[bytes, int]:
        """The first bytes, and the size where that was all: most files cost one request."""
        try:
            ahead = self.fetch(path, 0, count)
        except (FileNotFoundError, PermissionError, Unreachable):
            raise
        except OSError:
            return b"", -1  # an empty file has no first byte to ask for
        return ahead, len(ahead) if len(ahead) < count else -1

    def fetch(self, path: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`, fewer where the file ends; OSError."""
        if self._is_web:
            content = call(self._fs, web.part, self._fs, path, start, end, where=path)
        else:
            content = call(self._fs, self._fs._cat_file, path, start=start, end=end, where=path)
        return cast(bytes, content)

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

    async def _info(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = await (web.info(self._fs, path) if self._is_web else self._fs._info(path))
        return found


def _stat(info: Mapping[str, Any]) -> Stat:
    if info["type"] != "file":
        return ABSENT
    stamp = next((str(info[tag]) for tag in TAGS if info.get(tag)), "")
    return Stat(-1 if info.get("size") is None else info["size"], stamp)
