"""What the answer of a web server, or the lack of one, means for an address in a table.

A file is gone if its server says so, or if nobody knows the server's name. Whatever may pass (no answer in
time, a broken connection, a busy server) is tried again. A fault of this machine is neither.
"""

from __future__ import annotations

import email.utils
import errno
import os
import socket
import time
from http import HTTPStatus
from typing import Any, Literal

from tasks.core.files import FULL

TRY_S = 20.0
"""A try fails if it has not received the whole file by then; at SLOWEST, what has come gives more time."""
SLOWEST = 100_000
"""Bytes per second below which a large file is given up."""
LONGEST_TRY_S = 120.0
TRIES = 3
LATE_TRIES = 2
"""Tries of an address whose server does not answer in time."""
BUSY_TRIES = 8
"""Tries of an address whose server answers that it is busy."""
REDIRECTS = 5
UNWANTED = frozenset({"noai", "noimageai", "noindex", "noimageindex"})
"""Directives in X-Robots-Tag by which a server forbids this use: those that img2dataset respects."""
OUR_FAULTS = (errno.EMFILE, errno.ENFILE, *FULL)
"""Faults of this machine, which say nothing about an address."""

Problem = Literal["gone", "unreachable", "too_large"]


class Unfetched(Exception):
    """An address gave no file: it is `gone`, its server is `unreachable` for now, or the file is too large.
    The text names the host, never the whole address."""

    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(text)
        self.problem: Problem = problem


class TryAgain(Exception):
    """A try has failed, and the next one may succeed: up to `tries` of them. `rest_s` is how long the host
    asks to be left alone; `is_silent` where it has not answered at all."""

    def __init__(
        self, text: str, tries: int = TRIES, rest_s: float | None = None, is_silent: bool = False
    ) -> None:
        super().__init__(text)
        self.tries, self.rest_s, self.is_silent = tries, rest_s, is_silent


class InwardRedirect(Exception):
    """An address of a public host redirects into a private network."""


def require_size(size: int, most: int) -> None:
    """Raise Unfetched for a file of more than `most` bytes."""
    if size > most:
        raise Unfetched("too_large", f"more than {most:,} bytes, as no image within the limits has")


def require_content(answer: Any, host: str, most: int) -> None:
    """Raise Unfetched or TryAgain for an answer without the file, or with one that is too large."""
    status = answer.status
    if 200 <= status < 300:
        directives = ",".join(answer.headers.getall("X-Robots-Tag", [])).lower().replace(" ", "").split(",")
        if forbidden := sorted(UNWANTED.intersection(directives)):
            raise Unfetched("gone", f"{host} forbids its use, by X-Robots-Tag: {', '.join(forbidden)}")
        return require_size(answer.content_length or 0, most)
    text = f"answers {_status(status)}"
    rest_s = _retry_after(answer.headers.get("Retry-After", ""))
    if status == 429 or (status == 503 and rest_s is not None):
        raise TryAgain(text, BUSY_TRIES, 1.0 if rest_s is None else rest_s)
    if status >= 500 or status in (408, 425):
        raise TryAgain(text)
    raise Unfetched("gone", f"{host} {text}")


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(value: str) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None where it holds neither."""
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def judged(error: Exception, host: str, has_answer: bool) -> Exception:
    """Return what an error of a request means for its address. An unknown host is gone only if another one
    has answered: without a network no name is known."""
    import aiohttp

    number = getattr(error, "errno", None)
    if number in OUR_FAULTS:
        return OSError(number, os.strerror(number))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        if error.os_error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) and has_answer:
            return Unfetched("gone", f"{host} is a name that DNS does not know")
        return TryAgain("is a name that DNS does not resolve", is_silent=True)
    gone = {
        aiohttp.TooManyRedirects: f"redirects more than {REDIRECTS} times",
        aiohttp.NonHttpUrlClientError: "redirects to no address of a web server",
        InwardRedirect: "redirects to an address within a private network",
        aiohttp.InvalidURL: "has or redirects to no valid address",
        ValueError: "has or redirects to no valid address",
    }
    for kind, text in gone.items():
        if isinstance(error, kind):
            return Unfetched("gone", f"{host} {text}")
    passing = {
        aiohttp.ClientSSLError: TryAgain("has no valid certificate", 1),
        aiohttp.ServerTimeoutError: TryAgain("does not answer in time", LATE_TRIES, is_silent=True),
        TimeoutError: TryAgain("sends the file too slowly", 1),
        aiohttp.ClientConnectorError: TryAgain("does not accept a connection", is_silent=True),
        aiohttp.ClientResponseError: TryAgain("sends no valid answer", LATE_TRIES),
        aiohttp.ClientError: TryAgain("broke the connection"),
        OSError: TryAgain("broke the connection"),
    }
    found = next((again for kind, again in passing.items() if isinstance(error, kind)), None)
    return found or TryAgain(f"cannot be asked ({type(error).__name__})", 1)
