"""Fetches ranges of remote files, several at once, by plain HTTP requests in threads.

A client library receives in an event loop, in pieces that it copies several times. A thread that receives
into the range's own memory takes half the processor time of aiohttp and a third of that of s3fs. So only the
request for a range is made here. Any other answer than the range is `Refused`: the caller then asks through
the library, which follows redirects, knows proxies and names the cause of a failure.

A thread cannot be interrupted while it waits, so every wait has a limit, except for the look-up of a host's
name. A request ends CONNECT_S after it began without a connection, or when fewer than LEAST bytes arrive
within STALL_S, however the server divides what it sends. `http.client` limits only each receive, so that a
byte now and then would keep a request alive.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
import threading
import time
import urllib.request
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from tasks.core.threads import Threads

CONNECT_S = 10
STALL_S = 30
"""A request fails that receives fewer than LEAST bytes in so many seconds."""
LEAST = 1 << 16
BLOCK = 4 << 20
"""Bytes per request of a file that is read in order."""
IN_FLIGHT = 32
"""Requests at once in a process, over all its files."""
IDLE_S = 15
"""How long a connection is kept that is not used, as some routers forget those without a word."""
AHEAD, AHEAD_OF_ALL = 8, 16
"""Ranges fetched at once ahead of the reader of a file, and of all readers in a process together, but one at
least."""
HEAD_BYTES = 1 << 14
LONGEST_HEAD = 1 << 17
_VISIBLE = re.compile(r"[!-~]+")
_NUMBER = rb"(\d{1,18})"
_RANGE = re.compile(rb"bytes " + _NUMBER + rb"-" + _NUMBER + rb"/" + _NUMBER)


class Refused(Exception):
    """The server does not answer a plain request with the range: it redirects, denies access, or fails."""


class Range(NamedTuple):
    """Some bytes of a file, and the whole file's size and ETag, as far as these are known."""

    content: memoryview
    size: int = -1
    tag: bytes = b""


class _Endpoint(NamedTuple):
    scheme: str
    host: str
    port: int


def get_range(url: str, start: int, end: int) -> Range:
    """Return a file's bytes from `start` up to `end`, fewer where it ends before. Refused, or OSError where
    the next try may succeed."""
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if parts.hostname is None or parts.username or not _VISIBLE.fullmatch(target + parts.netloc):
        raise Refused("no plain address")
    if _has_proxy(parts.scheme, parts.hostname):
        raise Refused("the environment names a proxy")
    endpoint = _Endpoint(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc}", f"Range: bytes={start}-{end - 1}"]
    request = "\r\n".join([*lines, "User-Agent: tarmac", "Accept-Encoding: identity", "", ""]).encode()
    while True:
        connection = _kept(endpoint)
        is_new = connection is None
        if connection is None:
            connection = _connected(endpoint)
        try:
            return _Answer(endpoint, connection, request).range(start, end)
        except _Idle:
            if is_new:
                raise ConnectionResetError(errno.ECONNRESET, "the connection broke") from None


@lru_cache
def _has_proxy(scheme: str, host: str) -> bool:
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


class _Idle(Exception):
    """The server closed a kept connection before it read the request."""


class _Answer:
    """The answer to a request on a connection, which is kept for the next one or closed."""

    def __init__(self, endpoint: _Endpoint, connection: socket.socket, request: bytes) -> None:
        self._endpoint, self._connection = endpoint, connection
        self._until, self._missing = time.monotonic() + STALL_S, LEAST
        self._request = request

    def range(self, start: int, end: int) -> Range:
        is_kept = False
        try:
            head, rest = self._head()
            length, size, tag = _described(head, start, end)
            content = memoryview(bytearray(length))
            received = min(len(rest), length)
            content[:received] = rest[:received]
            while received < length:
                received += self._receive(content[received:])
            is_kept = len(rest) <= length and head.startswith(b"HTTP/1.1") and not _closes(head)
            return Range(content, size, tag)
        finally:
            if is_kept:
                _keep(self._endpoint, self._connection)
            else:
                self._connection.close()

    def _head(self) -> tuple[bytes, bytes]:
        """Send the request; return status line and headers, and what was received of the body with them."""
        piece = memoryview(bytearray(HEAD_BYTES))
        received = b""
        try:
            self._connection.settimeout(STALL_S)
            self._connection.sendall(self._request)
            received = bytes(piece[: self._receive(piece)])
        except (ConnectionResetError, BrokenPipeError):
            raise _Idle from None
        while b"\r\n\r\n" not in received:
            if len(received) > LONGEST_HEAD:
                raise Refused("too long a head")
            received += piece[: self._receive(piece)]
        head, _, rest = received.partition(b"\r\n\r\n")
        return head, rest

    def _receive(self, buffer: memoryview) -> int:
        """Receive at least one byte; TimeoutError where too few have come in STALL_S."""
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(buffer)
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "the connection broke")
        self._missing -= count
        if self._missing <= 0:
            self._until, self._missing = time.monotonic() + STALL_S, LEAST
        return count


def _described(head: bytes, start: int, end: int) -> tuple[int, int, bytes]:
    """Return the length of the range, and the file's size and ETag; Refused for any other answer, OSError for
    one that may pass."""
    status = head.partition(b"\r\n")[0].split(b" ")[1:2]
    if status and (status[0].startswith(b"5") or status[0] == b"429"):
        raise OSError(errno.EIO, "the server is busy or fails")
    headers = _headers(head)
    found = _RANGE.fullmatch(headers.get(b"content-range", b""))
    length = headers.get(b"content-length", b"")
    encoded = headers.keys() & {b"transfer-encoding", b"content-encoding"}
    if status != [b"206"] or found is None or not re.fullmatch(_NUMBER, length) or encoded:
        raise Refused(f"status {status}")
    first, last, size = map(int, found.groups())
    is_asked = first == start and int(length) == last + 1 - first == min(end, size) - start
    if not is_asked:
        raise Refused("another range")
    return int(length), size, headers.get(b"etag", b"")


def _headers(head: bytes) -> dict[bytes, bytes]:
    fields = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in fields}


def _closes(head: bytes) -> bool:
    return _headers(head).get(b"connection", b"").lower() == b"close"


# The connections that are kept.

_connections: defaultdict[_Endpoint, list[tuple[float, socket.socket]]] = defaultdict(list)
"""The idle connections to each endpoint, each with the time when it was last used."""
_lock = threading.Lock()


def _kept(endpoint: _Endpoint) -> socket.socket | None:
    with _lock:
        while _connections[endpoint]:
            used, connection = _connections[endpoint].pop()
            if time.monotonic() - used < IDLE_S:
                return connection
            connection.close()
    return None


def _keep(endpoint: _Endpoint, connection: socket.socket) -> None:
    with _lock:
        if len(_connections[endpoint]) < IN_FLIGHT:
            _connections[endpoint].append((time.monotonic(), connection))
            return
    connection.close()


def _connected(endpoint: _Endpoint) -> socket.socket:
    until = time.monotonic() + CONNECT_S
    connection = _reached(endpoint, until)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if endpoint.scheme != "https":
        return connection
    connection.settimeout(_left_s(until))
    try:
        return _tls().wrap_socket(connection, server_hostname=endpoint.host)
    except ssl.SSLError as error:
        raise Refused(str(error)) from None  # a library may have been given other certificates
    finally:
        connection.close()  # without effect once its descriptor is the wrapped socket's


def _reached(endpoint: _Endpoint, until: float) -> socket.socket:
    """Return a connection to the first of the host's addresses that accepts one; each has an even share of
    the time left."""
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    problem = OSError(errno.EADDRNOTAVAIL, "the host has no address")
    for left, (family, kind, protocol, _, place) in zip(range(len(found), 0, -1), found, strict=True):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left_s(until) / left)
            connection.connect(place)
            return connection
        except OSError as error:
            connection.close()
            problem = error
    raise problem


def _left_s(until: float) -> float:
    return max(until - time.monotonic(), 0.1)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


# The threads, and the order of ranges.


@cache
def threads() -> Threads:
    """Return this process's threads for requests."""
    return Threads(IN_FLIGHT)


@cache
def writers() -> Threads:
    """Return this process's threads that write copies, so that these do not wait for a request."""
    return Threads(2)


class RangesAhead:
    """The bytes of a file from `start` to `end`, in order. `fetch(start, end)` returns these bytes. At first
    `most` ranges are requested at once, and twice as many after each block that is read, up to AHEAD. Up to
    half as many finished ranges may also wait for the reader, so that one that is tried again does not hold
    up the others."""

    def __init__(self, fetch: Callable[[int, int], memoryview], start: int, end: int, most: int) -> None:
        self._fetch, self._coming, self._most = fetch, start, most
        self.position, self.end = start, end
        self._ranges: deque[Future[memoryview]] = deque()
        self._lock = threading.Lock()
        _reading.add(self)
        self._begin()

    def next(self) -> memoryview:
        """Return the next bytes, a BLOCK or the rest; raises what `fetch` raises."""
        content = self._ranges[0].result()
        with self._lock:
            self._ranges.popleft()
            self._most = min(2 * self._most, AHEAD)
        self.position += len(content)
        self._begin()
        return content

    def close(self) -> None:
        with self._lock:
            self._coming = self.end
        for waiting in self._ranges:
            waiting.cancel()
        _reading.discard(self)

    def _begin(self, _: object = None) -> None:
        fair = max(1, AHEAD_OF_ALL // max(len(_reading), 1))
        begun: list[Future[memoryview]] = []
        with self._lock:
            most = min(self._most, fair)
            held = most + max(1, most // 2)
            under_way = sum(not one.done() for one in self._ranges)
            while self._coming < self.end and under_way + len(begun) < most and len(self._ranges) < held:
                until = min(self._coming + BLOCK, self.end)
                begun.append(threads().submit(self._fetch, self._coming, until))
                self._ranges.append(begun[-1])
                self._coming = until
        for one in begun:
            one.add_done_callback(self._begin)


_reading: weakref.WeakSet[RangesAhead] = weakref.WeakSet()
"""What is being read now, as the files of a process share its requests."""


def _forget() -> None:
    """A forked process has none of the threads, one of which may have held the lock, and must not use the
    connections of its parent."""
    global _lock
    _lock = threading.Lock()
    _connections.clear()
    _reading.clear()
    threads.cache_clear()
    writers.cache_clear()


os.register_at_fork(after_in_child=_forget)
