"""A web server of small JPEGs in a process of its own, with the faults of real ones, asked for by the path.

`/7.jpg` is picture 7. `/hang/7.jpg` never answers; which others there are is the table ANSWERS. A path below
`/until/N/` fails by its fault only for the first N requests: `/until/2/503/7.jpg` answers 503 twice. One below `/together/N/`
waits until the host has had N requests at once. `/to/127.0.0.2/7.jpg` redirects to the same server under that
name.
"""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from PIL import Image

KINDS = 64
"""Different pictures; others repeat them."""
LATENCY_S = 0.02
asked: Counter[str] = Counter()
at_once: Counter[str] = Counter()
busy: Counter[str] = Counter()
most: Counter[str] = Counter()
latency_s = LATENCY_S
Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


def picture(number: int, side: int = 96) -> bytes:
    noise = np.random.default_rng(number % KINDS).integers(0, 256, (side // 4, side // 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((side, side)).save(file, "JPEG", quality=90)
    return file.getvalue()


def plain(status: str, headers: Mapping[str, str] = {}, content: bytes | None = None) -> Answer:
    async def answer(writer: asyncio.StreamWriter, image: bytes) -> None:
        body = image if content is None else content
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Length: {len(body)}",
            *(f"{k}: {v}" for k, v in headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return answer


async def hang(writer: asyncio.StreamWriter, _: bytes) -> None:
    await asyncio.sleep(3600)


async def reset(writer: asyncio.StreamWriter, _: bytes) -> None:
    writer.transport.abort()


async def stall(writer: asyncio.StreamWriter, image: bytes) -> None:
    writer.write(
        f"HTTP/1.1 200 OK\r\nContent-Length: {len(image)}\r\n\r\n".encode() + image[: len(image) // 2]
    )
    await asyncio.sleep(3600)


async def limited(writer: asyncio.StreamWriter, image: bytes) -> None:
    """Answer four requests at once, and refuse the others."""
    busy["limited"] += 1
    await asyncio.sleep(0.05)
    await ANSWERS["429" if busy["limited"] > 4 else "ok"](writer, image)
    busy["limited"] -= 1


async def short(writer: asyncio.StreamWriter, image: bytes) -> None:
    writer.write(
        f"HTTP/1.1 200 OK\r\nContent-Length: {len(image)}\r\n\r\n".encode() + image[: len(image) // 2]
    )
    await writer.drain()
    writer.close()


async def drip(writer: asyncio.StreamWriter, image: bytes) -> None:
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(image)}\r\n\r\n".encode())
    for byte in image:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(1)


async def slow_head(writer: asyncio.StreamWriter, image: bytes) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.5)


async def endless(writer: asyncio.StreamWriter, _: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


NOTHING = b"no"
ANSWERS: dict[str, Answer] = {
    **{str(code): plain(f"{code} No", content=NOTHING) for code in (400, 401, 403, 404, 410, 451, 500, 503)},
    "429": plain("429 Slow Down", {"Retry-After": "1"}, NOTHING),
    "429z": plain("429 Slow Down", {"Retry-After": "0"}, NOTHING),
    "429h": plain("429 Slow Down", {"Retry-After": "3600"}, NOTHING),
    "html": plain("200 OK", {"Content-Type": "text/html"}, b"<!doctype html><html>parked</html>"),
    "noai": plain("200 OK", {"X-Robots-Tag": "noimageindex, noai"}),
    "empty": plain("200 OK", content=b""),
    "loop": plain("302 Found", {"Location": "/loop/again.jpg"}, b""),
    "moved": plain("301 Moved", {"Location": "/1.jpg"}, b""),
    "file": plain("302 Found", {"Location": "file:///etc/passwd"}, b""),
    "ftp": plain("302 Found", {"Location": "ftp://example.org/1.jpg"}, b""),
    "huge": plain("200 OK", {"X": "x"}, bytes(40_000_000)),
    **{one.__name__: one for one in (hang, reset, stall, short, drip, slow_head, endless, limited)},
}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        while (line := (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n"))[0]:
            host = next((one[6:] for one in line if one.lower().startswith("host: ")), "")
            method, path, _ = line[0].split(" ")
            if method == "HEAD":
                asked[f"HEAD {path}"] += 1
                await asyncio.sleep(latency_s)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
            else:
                await answer(path, host, writer)
            await writer.drain()
    writer.close()


async def answer(path: str, host: str, writer: asyncio.StreamWriter) -> None:
    if path == "/asked":
        told = json.dumps({"asked": asked, "most": most}).encode()
        return await plain("200 OK", content=told)(writer, b"")
    asked[path] += 1
    *kinds, name = path[1:].partition("?")[0].split("/")
    if kinds and kinds[0] == "to":
        target = f"http://{kinds[1]}:{host.rpartition(':')[2]}/{name}"
        return await plain("302 Found", {"Location": target}, b"")(writer, b"")
    if kinds and kinds[0] == "until":
        kinds = kinds[2:] if asked[path] <= int(kinds[1]) else []
    at_once[host] += 1
    most[host] = max(most[host], at_once[host])
    try:
        if kinds and kinds[0] == "together":
            while most[host] < int(kinds[1]):
                await asyncio.sleep(0.01)
            kinds = kinds[2:]
        await asyncio.sleep(latency_s)
        number = name.partition(".")[0]
        image = PICTURES[int(number) % KINDS] if number.isdecimal() else b""
        await ANSWERS[kinds[0] if kinds else "ok"](writer, image)
    finally:
        at_once[host] -= 1


ANSWERS["ok"] = plain("200 OK", {"Content-Type": "image/jpeg"})
PICTURES: list[bytes] = []


async def main() -> None:
    PICTURES.extend(map(picture, range(KINDS)))
    server = await asyncio.start_server(serve, "0.0.0.0", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # ends with its starter
    sys.stdout.flush()
    raise SystemExit


class PictureServer:
    """The running server: its address, and what it was asked for."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def on(self, host: str) -> str:
        """The address of the same server under another name, such as 127.0.0.2."""
        return f"http://{host}:{self.port}"

    def told(self) -> tuple[Counter[str], dict[str, int]]:
        """How often each path was asked for, and the most requests at once by host."""
        with urlopen(f"{self.address}/asked") as answer:
            found = json.loads(answer.read())
        return Counter(found["asked"]), found["most"]

    @property
    def asked(self) -> Counter[str]:
        return self.told()[0]


@contextmanager
def picture_server(latency: float = 0.0) -> Iterator[PictureServer]:
    command = [sys.executable, "-m", "tests.picture_server", str(latency)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        try:
            assert process.stdout is not None
            yield PictureServer(int(process.stdout.readline()))
        finally:
            process.kill()


if __name__ == "__main__":
    latency_s = float(sys.argv[1])
    with suppress(SystemExit, KeyboardInterrupt):
        asyncio.run(main())
