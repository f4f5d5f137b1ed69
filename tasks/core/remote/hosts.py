"""Web hosts as a table's addresses name them: how each is found, and how many requests at once it gets.

Nobody knows beforehand what a host can take, so it gets many requests at once until it answers that it is
busy. A host that is down, or stays busy, would cost a wait for each of its addresses, so it is left alone
after some of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from tasks.core.remote.answers import InwardRedirect, Unfetched

LONGEST_REST_S = 60.0
"""A host that wants to be left alone for longer is not waited for."""
ROUNDS = 8
"""Files for each request at once before a host that was busy gets one more of these."""
HOPELESS = 8
"""Failed addresses in a row, none of them answered, or rests in a row of a busy host that serves
nothing in between, after which a host is left alone for REST_S."""
REST_S = 300.0
"""Rests in a row take no longer than this in all, either."""
ANSWERED_S = 60.0
"""A host that has answered this recently is not left alone."""
begins_public: ContextVar[bool | None] = ContextVar("begins_public", default=None)
"""Whether the address that a task requests is one of a public host; None before its first connection."""


@dataclass
class WebHost:
    """What is known of a host, which gets at `most` so many requests at once. `permits` is how many its
    semaphore allows at the moment, which follows `limit`."""

    most: int
    name: str
    limit: int = 0
    permits: int = 0
    files: int = 0
    failures: int = 0
    rests: int = 0
    rested_s: float = 0.0
    answered_at: float = float("-inf")
    rests_until: float = float("-inf")
    silent_until: float = float("-inf")
    why_silent: str = ""

    def __post_init__(self) -> None:
        self.limit = self.permits = self.most
        self.semaphore = asyncio.Semaphore(self.most)

    def leave(self) -> None:
        if self.permits > self.limit:
            self.permits -= 1
        else:
            self.semaphore.release()

    def answered(self) -> None:
        self.failures, self.answered_at = 0, time.monotonic()

    def served(self) -> None:
        """Note a file; after ROUNDS rounds of them one more request at once is tried."""
        self.files += 1
        self.copes()
        if self.limit < self.most and self.files % (ROUNDS * self.limit) == 0:
            self.limit += 1
            if self.permits < self.limit:
                self.permits += 1
                self.semaphore.release()

    def copes(self) -> None:
        """Note an answer that is a file, or that there is none."""
        self.rests, self.rested_s = 0, 0.0

    def is_busy(self, asked_s: float, pause_s: float, began: float) -> None:
        """Rest for as long as the host asks for, but for at least `pause_s`, doubled at each further rest in
        a row. A request that `began` before the last rest counts with that one, so the requests at once are
        halved once for all that were under way. The host stays hopeless until it copes: when it has been left
        alone, one more such answer is enough."""
        now = time.monotonic()
        if asked_s > LONGEST_REST_S:
            return self.leave_alone(now + asked_s, f"{self.name} asks to come back in {asked_s:,.0f} s")
        if began >= self.rests_until:
            self.limit = max(1, self.limit // 2)
            self.rests = min(self.rests + 1, HOPELESS)
            asked_s = max(asked_s, min(pause_s * 2 ** (self.rests - 1), LONGEST_REST_S))
        further_s = max(0.0, now + asked_s - max(now, self.rests_until))
        if self.rests == HOPELESS or self.rested_s + further_s > REST_S:
            return self.leave_alone(now + REST_S, f"{self.name} is busy: it refuses all requests for now")
        self.rests_until = max(self.rests_until, now + asked_s)
        self.rested_s += further_s

    def failed(self, is_silent: bool) -> None:
        """Note an address that was given up."""
        self.failures += is_silent
        now = time.monotonic()
        if self.failures >= HOPELESS and now - self.answered_at > ANSWERED_S:
            self.failures = 0
            self.leave_alone(now + REST_S, f"{self.name} does not answer")

    def leave_alone(self, until: float, why: str) -> None:
        self.silent_until, self.why_silent = until, why

    def require_hope(self) -> None:
        if time.monotonic() < self.silent_until:
            raise Unfetched("unreachable", self.why_silent)


def is_public(peer: str) -> bool:
    """Whether an IP address is one of the public internet: not private, of this machine or of this link."""
    address = ip_address(peer.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_global


def connector() -> Any:
    """Return a connector that connects each task to hosts of the public internet alone once it was connected
    to one of them: a public server that redirects must not reach what only this machine can ask. A task calls
    `begins_public.set(None)` before it requests an address of the table itself."""
    import aiohttp

    class OutwardConnector(aiohttp.TCPConnector):
        async def connect(self, *arguments: Any, **named: Any) -> aiohttp.connector.Connection:
            connection = await super().connect(*arguments, **named)
            peer = connection.transport and connection.transport.get_extra_info("peername")
            leads_out = is_public(peer[0]) if peer else True
            if begins_public.get() is None:
                begins_public.set(leads_out)
            elif begins_public.get() and not leads_out:
                connection.close()
                raise InwardRedirect
            return connection

    return OutwardConnector(limit=0, ttl_dns_cache=600, resolver=resolver())


def resolver() -> Any:
    """Return a resolver whose threads nobody waits for: a name server may be silent for half a minute, also
    when the process wants to end."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class DaemonResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: Any = socket.AF_INET
        ) -> list[ResolveResult]:
            def look_up() -> Any:
                flags = socket.AI_ADDRCONFIG
                return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=flags)

            numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            return [
                ResolveResult(
                    hostname=host,
                    host=str(place[0]),
                    port=int(place[1]),
                    family=kind,
                    proto=proto,
                    flags=numeric,
                )
                for kind, _, proto, _, place in await in_daemon(look_up)
            ]

        async def close(self) -> None:
            pass

    return DaemonResolver()


async def in_daemon(function: Callable[[], Any]) -> Any:
    """Return the function's value, from a thread that nobody waits for, also when the process ends."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def finish(value: Any, error: BaseException | None) -> None:
        if result.done():  # given up
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = function()
        except Exception as raised:  # noqa: BLE001 - the waiting coroutine raises it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, value, error)

    threading.Thread(target=work, daemon=True).start()
    return await result
