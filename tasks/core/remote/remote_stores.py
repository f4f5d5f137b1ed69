"""Remote stores (`s3://`, `gs://`, `https://`, `hf://`) through fsspec.

A file read in order fetches each byte once, several ranges ahead of its reader. Ranges of web servers and of
S3 are fetched by `ranges`, at addresses that fsspec's clients sign or were redirected to; what a plain
request does not get, and all else, these clients ask for. Every request has a time limit and is tried again
where that may help, so a dead server is an error within minutes and never a hang. Endpoints and credentials
come from the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …), never from a config. Messages of
servers and client libraries may contain a signed address or a key's id, so every error message is written
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import io
import math
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from tasks.core.errors import UsageError
from tasks.core.files import FULL
from tasks.core.remote import ranges, web
from tasks.core.remote.hub_store import HubFiles
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

BUFFER = 1 << 18
"""Bytes that small reads are served from."""
PROBE = 1 << 16
"""Bytes of the request that finds out whether a web server supports range requests."""
REQUEST_S = 300
STAT_S = 60
"""Time limit for a question about a file."""
SLOWEST = 50_000
"""Bytes per second below which a client library's request for a range is given up."""
LISTING_S = 3600
"""Time limit for listing a whole folder; each of its pages may take as long as a request."""
TRIES = 4
PAUSE_S = 0.5
"""The pause before the third try; it doubles before each further one. The second follows at once, as any
server breaks a connection now and then."""
SIGNED_S = 3600
"""How long an address is valid that is signed for the requests of a file, and used for half as long."""
TOGETHER = 32
"""Concurrent requests for sizes and tags."""
ANNOUNCED = 48
"""Announced files that are opened at once, or open and waiting for their reader."""
HOPELESS = 8
"""Failures in a row after which a host is not asked for the other files."""

PACKAGES = {
    "s3": ("s3fs", "tarmac[remote]"),
    "gs": ("gcsfs", "tarmac[gs]"),
    "http": ("aiohttp", "tarmac[remote]"),
    "https": ("aiohttp", "tarmac[remote]"),
    "hf": ("huggingface_hub", "tarmac[remote]"),
}
TAGS = ("ETag", "etag", "md5Hash", "Content-MD5", "LastModified", "Last-Modified", "mtime")

REFUSED = {
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the credentials are not known to the store",
    "InvalidToken": "the credentials are not known to the store",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
}
TEMPORARY = {
    *("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout"),
    *("429", "500", "502", "503", "504"),
}
"""Codes of answers that may change when a request is tried again."""
CREDENTIALS_FIX = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
}

# Classes of client libraries, which are imported only where they are used.
_INVALID_URL = {"aiohttp.client_exceptions.InvalidURL"}
_BROKEN_ANSWER = {"aiohttp.http_exceptions.HttpProcessingError"}
_CREDENTIALS = {
    "botocore.exceptions.NoCredentialsError",
    "botocore.exceptions.PartialCredentialsError",
    "botocore.exceptions.CredentialRetrievalError",
    "google.auth.exceptions.DefaultCredentialsError",
    "google.auth.exceptions.RefreshError",
}
_TIMEOUT = {"botocore.exceptions.ConnectTimeoutError", "botocore.exceptions.ReadTimeoutError"}


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
        return _stat(call(self._fs, self._info, path, where=path, limit_s=STAT_S))

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
                    found = _stat(await _persistent(self._info, path, where=path, limit_s=STAT_S))
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
        return cast(BinaryIO, io.BufferedReader(opened, BUFFER) if in_order else opened)

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
            if started is not None:
                if begin.whole is None and begin.size == size:
                    return started
                started.close()
            if begin.whole is not None:
                return begin.whole
            content, size, source.address = memoryview(begin.content), begin.size, begin.address
        elif ahead:
            content, size = _begin(source, ahead)
        if size < 0:
            size = self._stat(path).size
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
                return web.WebBeginning(*ranges.get_range(address, 0, count), address)
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
    """Return the first bytes, and the size where they tell it: most files cost one request."""
    try:
        ahead, size = source.range(0, count)
    except (FileNotFoundError, PermissionError, StoreUnreachable):
        raise
    except OSError:
        return memoryview(b""), -1  # an empty file has no first byte to ask for
    return ahead, len(ahead) if size < 0 and len(ahead) < count else size


class FileRanges:
    """The ranges of one file. `address` is where plain requests get them: for a file of a web server where
    its own address was redirected to, for one of S3 a signed address; "" where they do not."""

    def __init__(self, fs: Any, path: str) -> None:
        self.fs, self.path, self.address = fs, path, ""
        self.is_signed, self.signed_at = path.startswith("s3://"), float("-inf")
        self._signing = threading.Lock()

    def fetch(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` up to `end`; raises OSError, also where there are fewer."""
        content = self.range(start, end).content
        if len(content) != end - start:
            raise OSError(errno.EIO, "the file has changed while it was read", redact(self.path))
        return content

    def range(self, start: int, end: int) -> ranges.Range:
        """Return a range, and the file's size or -1. All tries but the last are plain requests, where these
        are answered: the client then names the cause of a failure."""
        tried = 0
        while tried < TRIES - 1 and (address := self._plain()):
            time.sleep(_pause_s(tried))
            try:
                return ranges.get_range(address, start, end)
            except ranges.Refused:
                self.address, self.is_signed, tried = "", False, 0
            except OSError:
                tried += 1
        return self._by_client(start, end, tried)

    def _by_client(self, start: int, end: int, tried: int) -> ranges.Range:
        fs, path, known = self.fs, self.path, {"start": start, "end": end, "tried": tried}
        if is_web(path):
            content, self.address = call(fs, web.part, fs, path, where=path, limit_s=math.inf, **known)
        else:
            limit_s = ranges.STALL_S + (end - start) / SLOWEST
            content = call(fs, fs._cat_file, path, where=path, limit_s=limit_s, **known)
        return ranges.Range(memoryview(content), -1)

    def _plain(self) -> str:
        if self.is_signed:
            with self._signing:
                if time.monotonic() - self.signed_at > SIGNED_S / 2:
                    sign([self])
        return self.address


def sign(sources: Sequence[FileRanges]) -> None:
    """Sign an address for each of these files of S3; none where the environment names a proxy for them."""
    if not sources:
        return
    fs, first = sources[0].fs, sources[0].path

    async def addresses() -> list[str]:
        return [await fs._url(source.path, expires=SIGNED_S, **fs.req_kw) for source in sources]

    for source, address in zip(sources, call(fs, addresses, where=first, limit_s=STAT_S), strict=True):
        parts = urlsplit(address)
        source.is_signed = not _has_proxy(parts.scheme, parts.hostname or "")
        source.address = address if source.is_signed else ""
        source.signed_at = time.monotonic()


@lru_cache
def _has_proxy(scheme: str, host: str) -> bool:
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


class RemoteFile(io.RawIOBase):
    """A remote file that is fetched in ranges, except for the bytes of its beginning that were read `ahead`:
    several at once where a read is large, and ahead of a reader that `is_in_order`."""

    def __init__(
        self, fetch: Callable[[int, int], memoryview], path: str, size: int, ahead: memoryview
    ) -> None:
        self._fetch, self._path, self._size = fetch, path, size
        self._position = 0
        self._block, self._block_start = ahead, 0
        self._coming: ranges.RangesAhead | None = None
        self.is_in_order = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def close(self) -> None:
        if self._coming is not None:
            self._coming.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._position
        end = min(start + len(view), self._size)
        while self._position < end:
            at = self._position - start
            content = self._next(end)
            view[at : at + len(content)] = content
        return max(self._position - start, 0)

    def readall(self) -> bytes:
        """Read in blocks, because the inherited method requests 8 KiB at a time. Memory is allocated for what
        arrives, whatever size the store has reported."""
        return b"".join(self.blocks())

    def blocks(self) -> Iterator[memoryview]:
        """Yield the rest of the file in the pieces in which it is fetched."""
        self.is_in_order = True
        while self._position < self._size:
            yield self._next(self._size)

    def _next(self, end: int) -> memoryview:
        """Return at least one byte from the position on, none at or after `end`, and move on."""
        at = self._position - self._block_start
        if not 0 <= at < len(self._block):
            self._block, self._block_start = self._fetched(end), self._position
            at = 0
        content = self._block[at : at + end - self._position]
        self._position += len(content)
        return content

    def _fetched(self, end: int) -> memoryview:
        coming, here = self._coming, self._position
        if coming is None or coming.position != here or coming.end == here:
            if coming is not None:
                coming.close()
            goes_on = here == self._block_start + len(self._block)
            coming = self.go_ahead(ranges.AHEAD if goes_on or not self.is_in_order else 1, end)
        return coming.next()

    def go_ahead(self, most: int, end: int = 0) -> ranges.RangesAhead:
        """Request what comes next: to the end of the file for a reader in order, else up to `end`."""
        until = end if end and not self.is_in_order else self._size
        self._coming = ranges.RangesAhead(self._fetch, self._position, until, most)
        return self._coming


def filesystem(location: str, config_key: str) -> Any:
    """Return fsspec's file system without caches; raises UsageError if its package is not installed."""
    scheme = location.partition("://")[0]
    package, extra = PACKAGES[scheme]
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{config_key}: {scheme}:// needs the package {package}: pip install '{extra}'")
    if scheme == "hf":
        return HubFiles()
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        limits = {
            "connect_timeout": ranges.CONNECT_S,
            "read_timeout": ranges.STALL_S,
            "retries": {"total_max_attempts": 1},
        }
        options["config_kwargs"] = {**limits, "signature_version": "s3v4"}  # also of addresses
    elif scheme != "gs":
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ranges.CONNECT_S, sock_read=ranges.STALL_S)
        options |= {"client_kwargs": {"timeout": timeout}, "headers": {"Accept-Encoding": "identity"}}
    made = fsspec.filesystem(scheme, **options)
    made.retries = 1  # `call` tries again, and knows when that cannot help
    return made


def call(fs: Any, function: Callable[..., Any], *arguments: Any, where: str, **named: Any) -> Any:
    """Run one of fsspec's coroutines, retry it where that may help, and raise an OSError about `where`."""
    from fsspec.asyn import sync

    return sync(fs.loop, _persistent, function, *arguments, where=where, **named)


async def _persistent(
    function: Callable[..., Any],
    *arguments: Any,
    where: str,
    limit_s: float = 0,
    tried: int = 0,
    **named: Any,
) -> Any:
    for attempt in range(tried, TRIES):
        await asyncio.sleep(_pause_s(attempt))
        try:
            return await asyncio.wait_for(function(*arguments, **named), limit_s or REQUEST_S)
        except Exception as error:  # noqa: BLE001 - clients raise what they like; all of it becomes an OSError
            failed, may_pass = failure(error, where)
        if not may_pass:
            break
    raise failed


def _pause_s(tried: int) -> float:
    """Return the pause before the next try."""
    return PAUSE_S * 2 ** (tried - 2) if tried > 1 else 0.0


def failure(error: BaseException, location: str) -> tuple[OSError, bool]:
    """Convert the error to the OSError that a local file would raise; also return whether a retry may
    help."""
    where, code = redact(location), _code(error)
    if isinstance(error, NotRegular | web.WrongAnswer | StoreUnreachable):
        return error, False
    if isinstance(error, UnicodeError) or _is_a(error, _INVALID_URL):
        return NotRegular("no valid address"), False
    if isinstance(error, OSError) and error.errno in FULL:
        return OSError(error.errno, f"{error.strerror}, where temporary files are kept", where), False
    if code in REFUSED:
        return StoreUnreachable(errno.EACCES, REFUSED[code], where), False
    if _is_a(error, _CREDENTIALS):
        fix = CREDENTIALS_FIX[location.partition("://")[0]]
        return StoreUnreachable(errno.EACCES, f"there are no credentials; {fix}", where), False
    if code == "NoSuchBucket":
        return StoreUnreachable(errno.ENOENT, "there is no such bucket", where), False
    if isinstance(error, FileNotFoundError) or code in ("404", "410"):
        return FileNotFoundError(errno.ENOENT, "no such file", where), False
    if isinstance(error, PermissionError) or code in ("401", "403"):
        return PermissionError(errno.EACCES, "access is denied", where), False
    if code and code not in TEMPORARY:
        return OSError(errno.EIO, f"the store answers {code}", where), False
    reason = f"the store answers {code}" if code else _described(error)
    return StoreUnreachable(errno.EIO, f"{reason}; check the network and run again", where), True


def _described(error: BaseException) -> str:
    if _is_broken(error):
        return "the connection broke"
    if isinstance(error, TimeoutError) or _is_a(error, _TIMEOUT):
        return "the store does not answer in time"
    return f"the store cannot be reached, or the connection broke ({type(error).__name__})"


def _code(error: BaseException | None) -> str:
    """Return the store's code of the error, such as `NoSuchBucket` or `503`; "" if it gave none."""
    while error is not None and not _is_broken(error):
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        status = getattr(error, "status", None) or getattr(error, "code", None)
        if isinstance(status, int):
            return str(status)
        error = error.__cause__
    return ""


def _is_broken(error: BaseException | None) -> bool:
    """Whether an answer arrived in part. aiohttp's errors then carry a status of its own making."""
    while error is not None:
        if _is_a(error, _BROKEN_ANSWER):
            return True
        error = error.__cause__
    return False


def _is_a(error: BaseException, names: set[str]) -> bool:
    """Whether the error is of one of these classes, without an import of their module."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(error).__mro__)


def _stat(info: Mapping[str, Any]) -> ObjectStat:
    if info["type"] != "file":
        return ABSENT
    stamp = next((str(info[tag]) for tag in TAGS if info.get(tag)), "")
    return ObjectStat(-1 if info.get("size") is None else info["size"], stamp)
