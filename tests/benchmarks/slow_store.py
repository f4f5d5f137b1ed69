"""A web server and bucket that are far away: each request takes LATENCY_S, and one in FAILS_EVERY fails.

`slow_store.py PORT FOLDER [MOTO_PORT]` serves the files of a folder as a web server, or, with the port of moto's S3
server, as a bucket: what is no GET of a part is moto's answer. Parts come from the folder in both cases, by sendfile,
because moto copies a whole object for each part of it and gives less than a client takes. PROCESSES of these share
the port. A failure is an answer of 500 or 503, or a body that ends half-way.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from contextlib import suppress
from http import HTTPStatus
from itertools import count
from pathlib import Path
from urllib.parse import unquote

LATENCY_S = 0.02
FAILS_EVERY = 100
PROCESSES = 2
FAILURES = ("500", "cut", "503", "cut")
HEAD_END = b"\r\n\r\n"


class SlowStore:
    """One process's share of the server."""

    def __init__(self, folder: Path, moto: int | None, latency_s: float, fails_every: int) -> None:
        self.folder, self.moto = folder, moto
        self.latency_s, self.fails_every = latency_s, fails_every
        self._requests = count(1)

    async def listen(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        tasks = set()
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._serve(client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with client, suppress(OSError):
            received = b""
            while True:
                while HEAD_END not in received:
                    more = await loop.sock_recv(client, 1 << 16)
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(HEAD_END)
                await asyncio.sleep(self.latency_s)
                number = next(self._requests)
                failed, place = divmod(number, self.fails_every) if self.fails_every else (0, 1)
                failure = "" if place else FAILURES[failed % len(FAILURES)]
                if not await self._answer(client, head, failure):
                    return

    async def _answer(self, client: socket.socket, head: bytes, failure: str) -> bool:
        """Answer a request; return whether the connection goes on."""
        loop = asyncio.get_running_loop()
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        path = self.folder / unquote(target.partition("?")[0]).lstrip("/")
        part = re.search(rb"\r\nrange: bytes=(\d+)-(\d*)", head, re.IGNORECASE)
        if failure.isdigit():
            status = HTTPStatus(int(failure))
            text = f"HTTP/1.1 {failure} {status.phrase}\r\nContent-Length: 0\r\n\r\n"
            await loop.sock_sendall(client, text.encode())
            return True
        is_file = method in ("GET", "HEAD") and path.is_file()
        if self.moto is not None and not (is_file and method == "GET"):
            await loop.sock_sendall(client, await self._relayed(head))
            return True
        if not is_file:
            await loop.sock_sendall(client, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        size = path.stat().st_size
        start, stop = (int(part[1]), min(int(part[2] or size - 1) + 1, size)) if part else (0, size)
        lines = ["HTTP/1.1 206 Partial Content" if part else "HTTP/1.1 200 OK"]
        lines += [f"Content-Range: bytes {start}-{stop - 1}/{size}"] if part else []
        lines += [f"Content-Length: {stop - start}", 'ETag: "1"', "Accept-Ranges: bytes"]
        lines += ["Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT", "Content-Type: application/x-tar"]
        await loop.sock_sendall(client, "\r\n".join([*lines, "", ""]).encode())
        if method == "HEAD":
            return True
        sent = (stop - start) // 2 if failure else stop - start
        with path.open("rb") as file:
            await loop.sock_sendfile(client, file, start, sent, fallback=False)
        return not failure

    async def _relayed(self, head: bytes) -> bytes:
        """Return moto's answer to a request without a body."""
        assert self.moto is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.moto)
        writer.write(re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head) + b"\r\nConnection: close" + HEAD_END)
        answer = await reader.read(-1)
        writer.close()
        return re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", answer, count=1)


def serve(port: int, folder: Path, moto: int | None) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(256)
        asyncio.run(SlowStore(folder, moto, LATENCY_S, FAILS_EVERY).listen(listener))


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
