"""A web server over a folder, with and without what servers differ in."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class _Server(ThreadingHTTPServer):
    request_queue_size = 128


@contextmanager
def web_server(folder: Path, gives_parts: bool) -> Iterator[tuple[str, list[int]]]:
    """A web server over a folder, and the bytes of each of its answers. Python's own gives no parts."""
    sent: list[int] = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def do_GET(self) -> None:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if gives_parts else None
            path = Path(self.translate_path(self.path))
            if found is None or not path.is_file():
                return super().do_GET()
            content, size = path.read_bytes()[int(found[1]) : int(found[2]) + 1], path.stat().st_size
            self.send_response(206 if content else 416)
            self.send_header("Content-Range", f"bytes {found[1]}-{int(found[1]) + len(content) - 1}/{size}")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            sent.append(self.wfile.write(content))

        def copyfile(self, source: Any, outputfile: Any) -> None:
            while content := source.read(1 << 16):
                sent.append(len(content))
                outputfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(Handler) as address:
        yield address, sent


@contextmanager
def counting_server(folder: Path) -> Iterator[tuple[str, Counter[str]]]:
    """A web server over a folder, and how often each `METHOD /path` was asked for."""
    asked: Counter[str] = Counter()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def do_HEAD(self) -> None:
            asked[f"HEAD {self.path}"] += 1
            super().do_HEAD()

        def do_GET(self) -> None:
            asked[f"GET {self.path}"] += 1
            super().do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(Handler) as address:
        yield address, asked


@contextmanager
def endless_server(
    status: int, headers: dict[str, str], most: int = 1 << 30
) -> Iterator[tuple[str, list[int]]]:
    """A web server that answers everything with zeros until nobody takes them, and how many bytes it sent."""
    sent = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                while sent[0] < most:
                    sent[0] += self.wfile.write(bytes(min(1 << 16, most - sent[0])))

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(Handler) as address:
        yield address, sent


@contextmanager
def failing_server(status: int) -> Iterator[tuple[str, list[str]]]:
    """A web server that answers everything with one status, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(Handler) as address:
        yield address, asked


@contextmanager
def answering_server(answer: Callable[[str, bytes], tuple[int, bytes]]) -> Iterator[str]:
    """A web server that answers a request as `answer` does, given its path and body: with a status and content."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, content = answer(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(Handler) as address:
        yield address


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
