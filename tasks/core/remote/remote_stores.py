"""Remote stores (`s3://`, `gs://`, `https://`, `hf://`) through fsspec.

A file read in order fetches each byte once, a block ahead of its reader. Every request has a time limit and
is tried again where that may help, so a dead server is an error within minutes and never a hang. Endpoints
and credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …), never from a config.
Messages of servers and client libraries may contain a signed address or a key's id, so every error message is
written here.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from tasks.core.errors import UsageError
from tasks.core.files import FULL
from tasks.core.remote import web
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

BLOCK = 4 << 20
"""Bytes per request."""
PROBE = 1 << 16
"""Bytes of the request that finds out whether a web server supports range requests."""
CONNECT_S = 10
STALL_S = 30
"""A request fails if it receives no byte for this long."""
REQUEST_S = 300
LISTING_S = 3600
"""Time limit for listing a whole folder; each of its pages may take as long as a request."""
TRIES = 3
PAUSE_S = 0.5
"""The pause before the second try; it doubles before each further one."""
TOGETHER = 32
"""Concurrent requests for sizes and tags."""
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


class RemoteStore:
    """A folder of a bucket or web server. A file name that is an address of the same kind, on any host, is
    used as it is."""

    def __init__(self, location: str, config_key: str = "dataset.source.path") -> None:
        self.location = location.rstrip("/")
        self._config_key = config_key
        self._is_web = is_web(location)
        self._known: dict[str, ObjectStat | OSError] = {}

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
        path = self.path(file)
        try:
            if isinstance(known, OSError):
                raise known
            return known or _stat(call(self._fs, self._info, path, where=path))
        except (FileNotFoundError, PermissionError, NotRegular):
            return ABSENT

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
                    found = _stat(await _persistent(self._info, path, where=path))
                except OSError as error:
                    failed[host] += isinstance(error, StoreUnreachable)
                    return error
                failed[host] = 0
                return found

        return await asyncio.gather(*map(one, files))

    async def _info(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = await (web.info(self._fs, path) if self._is_web else self._fs._info(path))
        return found

    def open(self, file: str, in_order: bool = True) -> BinaryIO:
        """Open a file; with `in_order=False` nothing is read ahead, for a reader that seeks."""
        opened = self._opened(self.path(file), BLOCK if in_order else PROBE if self._is_web else 0)
        is_raw = isinstance(opened, RemoteFile)
        return cast(BinaryIO, io.BufferedReader(opened, BLOCK) if is_raw and in_order else opened)

    def read(self, file: str, most: int) -> bytes:
        with self._opened(self.path(file), min(most + 1, BLOCK), most) as opened:
            return read_at_most(cast(BinaryIO, opened), most)

    def read_end(self, file: str, most: int) -> bytes:
        with self.open(file, in_order=False) as opened:
            opened.seek(max(opened.seek(0, io.SEEK_END) - most, 0))
            return opened.read(most)

    def _opened(self, path: str, ahead: int, most: int | None = None) -> Any:
        """Return a RemoteFile with its first bytes, or the whole file if its server has no range requests."""
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
        """Return the first bytes, and the size if that was the whole file: most files cost one request."""
        try:
            ahead = self.fetch(path, 0, count)
        except (FileNotFoundError, PermissionError, StoreUnreachable):
            raise
        except OSError:
            return b"", -1  # an empty file has no first byte to ask for
        return ahead, len(ahead) if len(ahead) < count else -1

    def fetch(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`, fewer if the file ends before; raises OSError."""
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


class RemoteFile(io.RawIOBase):
    """A remote file that is fetched in parts: one request per block, except for the bytes of its beginning
    that were read `ahead`."""

    def __init__(self, fetch: Callable[[str, int, int], bytes], path: str, size: int, ahead: bytes) -> None:
        self._fetch, self._path, self._size, self._ahead = fetch, path, size, ahead
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._position
        end = min(start + len(view), self._size)
        while self._position < end:
            content = self._next(min(end, self._position + BLOCK))
            at = self._position - start
            view[at : at + len(content)] = content
            self._position += len(content)
        return max(self._position - start, 0)

    def readall(self) -> bytes:
        """Read in blocks, because the inherited method requests 8 KiB at a time. Memory is allocated for what
        arrives, whatever size the store has reported."""
        pieces = []
        while self._position < self._size:
            pieces.append(self._next(min(self._size, self._position + BLOCK)))
            self._position += len(pieces[-1])
        return b"".join(pieces)

    def _next(self, end: int) -> bytes:
        """Return at least one byte from the position on, and none at or after `end`."""
        if self._position < len(self._ahead):
            return self._ahead[self._position : end]
        self._ahead = b""
        content = self._fetch(self._path, self._position, end)
        if len(content) != end - self._position:
            raise OSError(errno.EIO, "the file has changed while it was read", redact(self._path))
        return content


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
        limits = {"connect_timeout": CONNECT_S, "read_timeout": STALL_S, "retries": {"total_max_attempts": 1}}
        options["config_kwargs"] = limits
    elif scheme != "gs":
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STALL_S)
        options |= {"client_kwargs": {"timeout": timeout}, "headers": {"Accept-Encoding": "identity"}}
    made = fsspec.filesystem(scheme, **options)
    made.retries = 1  # `call` tries again, and knows when that cannot help
    return made


def call(fs: Any, function: Callable[..., Any], *arguments: Any, where: str, **named: Any) -> Any:
    """Run one of fsspec's coroutines, retry it where that may help, and raise an OSError about `where`."""
    from fsspec.asyn import sync

    return sync(fs.loop, _persistent, function, *arguments, where=where, **named)


async def _persistent(
    function: Callable[..., Any], *arguments: Any, where: str, limit_s: float = 0, **named: Any
) -> Any:
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            return await asyncio.wait_for(function(*arguments, **named), limit_s or REQUEST_S)
        except Exception as error:  # noqa: BLE001 - clients raise what they like; all of it becomes an OSError
            failed, may_pass = failure(error, where)
        if not may_pass:
            break
    raise failed


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
