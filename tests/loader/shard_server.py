"""A web server over a folder of shards, and what servers do wrong."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = Callable[[Any, bytes], bool]


class Server(ThreadingHTTPServer):
    """A web server with ranges over a folder. `fault` may answer a request in its place: True where it has.
    Without `has_head` it answers only GET."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.asked: Counter[str] = Counter()
        self.fault: Answer | None = None
        self.has_head = True
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        super().do_HEAD() if self.server.has_head else self.send_error(405)

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not path.is_file() or found is None:
            return super().do_GET()
        self.server.asked[path.name] += 1
        whole = path.read_bytes()
        content = whole[int(found[1]) : int(found[2]) + 1]
        if self.server.fault is not None and self.server.fault(self, content):
            return None
        self.send_response(206 if content else 416)
        self.send_header("Content-Range", f"bytes {found[1]}-{int(found[1]) + len(content) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.is_over.set()
        server.shutdown()


def refused(handler: Any, content: bytes) -> bool:
    handler.send_error(500)
    return True


def hanging(handler: Any, content: bytes) -> bool:
    handler.server.is_over.wait(60)
    return True


def dripping(handler: Any, content: bytes) -> bool:
    """A byte of the answer now and then, so that the connection is never idle for long."""
    _begin(handler, content)
    with suppress(OSError):
        while not handler.server.is_over.wait(0.2):
            handler.wfile.write(b"x")
    return True


def _begin(handler: Any, content: bytes) -> None:
    handler.send_response(206)
    handler.send_header("Content-Range", f"{handler.headers['Range'].replace('=', ' ')}/1000000")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()


def cut(handler: Any, content: bytes) -> bool:
    """A part of the answer, and the connection ends."""
    _begin(handler, content)
    handler.wfile.write(content[: len(content) // 2])
    handler.close_connection = True
    with suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)
    return True
