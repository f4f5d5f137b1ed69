"""Fetches files by their web addresses, hundreds at a time, as the rows of a table name them.

One thread runs an event loop, because only there a request can be given up at any moment: a thread that waits
for a name server or for the next byte cannot be ended. (A request costs as much time of the processor as in a
pool of threads: 0.19 ms against 0.18.) What will be read is announced first and fetched in that order, ahead
of its reader, so a reader that takes one file after another never waits for the network's latency. Bodies
that wait for it stay in memory up to IN_MEMORY, and then in temporary files.

No address holds up the others. Each try has a limit in total (TRY_S), whatever trickles in. A host has a
number of requests at once, which halves when it answers that it is busy; it then rests for as long as it asks
for. A host that fails for many addresses, because it answers nothing or is busy all the time, is left alone
for a while.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import os
import random
import resource
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from tasks.core.errors import UsageError
from tasks.core.remote.answers import (
    BUSY_TRIES,
    LONGEST_TRY_S,
    REDIRECTS,
    SLOWEST,
    TRY_S,
    TryAgain,
    Unfetched,
    judged,
    require_content,
    require_size,
)
from tasks.core.remote.hosts import WebHost, begins_public, connector
from tasks.core.stores import host_of, redact

IN_FLIGHT = 256
"""Requests at once in a process."""
PER_HOST = 128
"""Requests at once to a host, over all workers of a build."""
CONNECT_S = 5.0
STALL_S = 10.0
"""A request fails if it receives no byte for this long."""
PAUSE_S = 0.5
"""The pause before the second try, or the least rest of a busy host; it doubles before each further one."""
STARTED = 4096
"""Addresses that are fetched, or wait for their host, at once."""
IN_MEMORY = 64 << 20
"""Bytes that wait for their reader in memory; further ones wait in temporary files."""
HELD = 1 << 30
"""Bytes that may wait for their reader in all; nothing is begun beyond that."""
LARGE = 2 << 20
"""A larger file is written to the disk while it is received."""
SEGMENT = 64 << 20
"""Bytes of a temporary file of many bodies, which disappears when the last of them has been read."""


@dataclass
class _Body:
    """A received file: its bytes, or where they lie in a temporary file."""

    size: int
    content: bytes | None = None
    file: BinaryIO | None = None
    offset: int = 0

    def read(self) -> bytes:
        if self.content is not None:
            return self.content
        assert self.file is not None
        return os.pread(self.file.fileno(), self.size, self.offset)


@dataclass
class _Fetch:
    """An address that is being fetched for `uses` readers."""

    address: str
    most: int
    uses: int = 0
    is_begun: bool = False
    task: asyncio.Task[None] | None = None
    result: Future[_Body] = field(default_factory=Future)


class AddressFetcher:
    """Fetches announced addresses ahead of their reader. `folder` has room for temporary files; `workers` is
    how many processes fetch for the same build, which share a host's requests. An address is tried `tries`
    times at most."""

    def __init__(self, folder: Path | None = None, workers: int = 1, tries: int = BUSY_TRIES) -> None:
        _require_aiohttp()
        self._folder = None if folder is None else str(folder)
        self._tries = tries
        self._per_host = max(2, PER_HOST // workers)
        self._hosts: dict[str, WebHost] = {}
        self._fetches: dict[str, _Fetch] = {}
        self._queue: deque[_Fetch] = deque()
        self._lock = threading.Lock()
        self._running = self._held = self._in_memory = 0
        self._segment: BinaryIO | None = None
        self._segment_bytes = 0
        self._has_answer = False
        self._loop = asyncio.new_event_loop()
        self._session: Any = None
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._slots = asyncio.Semaphore(min(IN_FLIGHT, files // 2))
        threading.Thread(target=self._loop.run_forever, name="addresses", daemon=True).start()
        atexit.register(self.close)

    def announce(self, addresses: Iterable[str], most: int) -> None:
        """Announce one `fetch` of each of these addresses, in this order, for files of `most` bytes."""
        with self._lock:
            for address in addresses:
                fetch = self._fetches.get(address)
                if fetch is None:
                    fetch = self._fetches[address] = _Fetch(address, most)
                    self._queue.append(fetch)
                fetch.uses += 1
        self._loop.call_soon_threadsafe(self._begin_some)

    def fetch(self, address: str, most: int) -> bytes:
        """Return the file at an address, announced or not; Unfetched, or OSError for this machine's disk."""
        with self._lock:
            fetch = self._fetches.get(address)
            if fetch is None:
                fetch = self._fetches[address] = _Fetch(address, most, uses=1)
        self._loop.call_soon_threadsafe(self._begin, fetch)  # also where too much is held
        try:
            return fetch.result.result().read()
        finally:
            self._used(fetch)

    def forget(self) -> None:
        """Give up what was announced and not read."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._forget, done)
        done.wait()

    def close(self) -> None:
        """End the thread; nothing can be fetched afterwards."""
        atexit.unregister(self.close)
        if self._loop.is_running():
            closed = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            with contextlib.suppress(TimeoutError):
                closed.result(1)
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _used(self, fetch: _Fetch) -> None:
        with self._lock:
            fetch.uses -= 1
            if fetch.uses > 0 or self._fetches.pop(fetch.address, None) is None:
                return
            if fetch.result.done() and fetch.result.exception() is None:
                self._drop(fetch.result.result())
        self._loop.call_soon_threadsafe(self._begin_some)

    def _drop(self, body: _Body) -> None:
        self._held -= body.size
        self._in_memory -= body.size if body.content is not None else 0

    # in the thread of the loop

    def _forget(self, done: threading.Event) -> None:
        with self._lock:
            for fetch in self._fetches.values():
                if fetch.task is not None:
                    fetch.task.cancel()
            self._fetches.clear()
            self._queue.clear()
            self._held = self._in_memory = 0
            self._segment = None
        done.set()

    async def _close(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if self._session is not None:
            await self._session.close()

    def _begin_some(self) -> None:
        while self._queue and self._running < STARTED and self._held < HELD:
            self._begin(self._queue.popleft())

    def _begin(self, fetch: _Fetch) -> None:
        if not fetch.is_begun:
            fetch.is_begun = True
            self._running += 1
            fetch.task = self._loop.create_task(self._run(fetch))

    async def _run(self, fetch: _Fetch) -> None:
        try:
            file = await self._persistently(fetch)
            with self._lock:
                is_wanted = self._fetches.get(fetch.address) is fetch
                body = self._stored(file) if is_wanted else _Body(0, b"")
            fetch.result.set_result(body)
        except BaseException as error:  # noqa: BLE001 - the reader raises it
            fetch.result.set_exception(error)
        finally:
            self._running -= 1
            self._begin_some()

    def _stored(self, file: tempfile.SpooledTemporaryFile[bytes]) -> _Body:
        """Keep a received file for its readers. OSError where the disk is full."""
        size = file.tell()
        self._held += size
        if size > LARGE:
            file.flush()
            return _Body(size, file=file)  # type: ignore[arg-type]
        file.seek(0)
        content = file.read()
        if self._in_memory + size <= IN_MEMORY:
            self._in_memory += size
            return _Body(size, content)
        if self._segment is None or self._segment_bytes > SEGMENT:
            self._segment, self._segment_bytes = tempfile.TemporaryFile(dir=self._folder, buffering=0), 0  # noqa: SIM115
        start = self._segment_bytes
        self._segment.write(content)
        self._segment_bytes += size
        return _Body(size, file=self._segment, offset=start)

    async def _persistently(self, fetch: _Fetch) -> Any:
        name = host_of(fetch.address)
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = WebHost(self._per_host, redact(name).partition("://")[2])
        tried = 0
        while True:
            host.require_hope()
            try:
                return await self._try(fetch, host)
            except TryAgain as failed:
                tried += 1
                if failed.rest_s is not None:
                    host.require_hope()
                if tried >= min(failed.tries, self._tries):
                    host.failed(failed.is_silent)
                    times = f", tried {tried} times" if tried > 1 else ""
                    raise Unfetched("unreachable", f"{host.name} {failed}{times}") from None
                pause_s = PAUSE_S * 2 ** (tried - 1) if failed.rest_s is None else 0.0
            await asyncio.sleep(pause_s)

    async def _try(self, fetch: _Fetch, host: WebHost) -> Any:
        """Request the address once, when its host and this process have a request to spare."""
        await host.semaphore.acquire()
        try:
            while (rest_s := host.rests_until - time.monotonic()) > 0:
                host.require_hope()
                await asyncio.sleep(rest_s + random.random() * PAUSE_S)
            host.require_hope()
            async with self._slots:
                began = time.monotonic()
                return await self._request(fetch, host)
        except TryAgain as failed:
            if failed.rest_s is not None:
                host.is_busy(failed.rest_s, PAUSE_S, began)
            raise
        finally:
            host.leave()

    async def _request(self, fetch: _Fetch, host: WebHost) -> Any:
        received = tempfile.SpooledTemporaryFile(LARGE, dir=self._folder)  # noqa: SIM115 - the reader's
        try:
            began = self._loop.time()
            begins_public.set(None)
            async with asyncio.timeout(TRY_S) as limit:
                async with self._opened().get(fetch.address, max_redirects=REDIRECTS) as answer:
                    self._has_answer = True
                    host.answered()
                    require_content(answer, host.name, fetch.most)
                    async for chunk in answer.content.iter_any():
                        require_size(received.tell() + len(chunk), fetch.most)
                        received.write(chunk)
                        limit_s = min(TRY_S + received.tell() / SLOWEST, LONGEST_TRY_S)
                        limit.reschedule(began + limit_s)
            host.served()
            return received
        except Unfetched:
            host.copes()
            raise
        except TryAgain:
            raise
        except Exception as error:  # noqa: BLE001 - a client raises what it likes; all of it is judged
            raise judged(error, host.name, self._has_answer) from None

    def _opened(self) -> Any:
        if self._session is None:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STALL_S)
            headers = {"User-Agent": f"tarmac/{metadata.version('tarmac')}", "Accept-Encoding": "identity"}
            cookies = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(
                connector=connector(), timeout=timeout, headers=headers, cookie_jar=cookies
            )
        return self._session


def _require_aiohttp() -> None:
    """UsageError where the package that fetches is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        fix = "pip install 'tarmac[remote]'"
        raise UsageError(f"dataset.source: addresses in a table need the package aiohttp: {fix}")
