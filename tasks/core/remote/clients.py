"""fsspec's clients of remote stores: made with time limits, asked again where that may help, and their errors
put into plain words.

Endpoints and credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …), never from a
config. Messages of servers and client libraries may contain a signed address or a key's id, so every error
message is written here.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
from collections.abc import Callable
from typing import Any

from tasks.core.errors import UsageError
from tasks.core.files import FULL
from tasks.core.remote import ranges, web
from tasks.core.remote.hub_store import HubFiles
from tasks.core.stores import NotRegular, StoreUnreachable, redact

REQUEST_S = 300
STAT_S = 60
"""Time limit for a question about a file."""
TRIES = 4
PAUSE_S = 0.5
"""The pause before the third try; it doubles before each further one. The second follows at once, as any
server breaks a connection now and then."""
PACKAGES = {
    "s3": ("s3fs", "tarmac[remote]"),
    "gs": ("gcsfs", "tarmac[gs]"),
    "http": ("aiohttp", "tarmac[remote]"),
    "https": ("aiohttp", "tarmac[remote]"),
    "hf": ("huggingface_hub", "tarmac[remote]"),
}
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
        known = {"timeout": timeout, "trust_env": True}  # also for the proxies that it names
        options |= {"client_kwargs": known, "headers": {"Accept-Encoding": "identity"}}
    made = fsspec.filesystem(scheme, **options)
    made.retries = 1  # `call` tries again, and knows when that cannot help
    return made


def call(fs: Any, function: Callable[..., Any], *arguments: Any, where: str, **named: Any) -> Any:
    """Run one of fsspec's coroutines, retry it where that may help, and raise an OSError about `where`."""
    from fsspec.asyn import sync

    return sync(fs.loop, persistent, function, *arguments, where=where, **named)


async def persistent(
    function: Callable[..., Any],
    *arguments: Any,
    where: str,
    limit_s: float = 0,
    tried: int = 0,
    **named: Any,
) -> Any:
    """Do what `call` does, within the clients' event loop."""
    for attempt in range(tried, TRIES):
        await asyncio.sleep(pause_s(attempt))
        try:
            return await asyncio.wait_for(function(*arguments, **named), limit_s or REQUEST_S)
        except Exception as error:  # noqa: BLE001 - clients raise what they like; all of it becomes an OSError
            failed, may_pass = failure(error, where)
        if not may_pass:
            break
    raise failed


def pause_s(tried: int) -> float:
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
