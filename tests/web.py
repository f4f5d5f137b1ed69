"""A web server over a folder, with and without what servers differ in."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        server.server_close()
