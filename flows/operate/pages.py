"""Serves the pages that Tarmac writes below a folder, for links from Prefect's pages to a run's report.

It serves read-only, and only pages of Tarmac: HTML files that name it as their generator, with their images
inside. Raw data, shards, checkpoints, names that begin with a dot, and anything outside of the folder that a
link or a path leads to are not found. A page is a single file without scripts, so one that quotes hostile
text can do nothing to the others.
"""

from __future__ import annotations

import base64
import hmac
import io
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

GENERATOR = b'<meta name="generator" content="Tarmac">'
HEAD_BYTES = 4096
"""The name of the generator stands within so many bytes of a page."""
LISTED = ("*/*/report.html", "*/*/look*.html", "*/report.html", "*/look*.html")
"""The usual places of the reports of runs and the pages of datasets, below the project's folder."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
PATIENCE_S = 30
"""How long a connection may be silent."""


def find(folder: Path, address: str) -> Path | None:
    """Return the page at a URL's path, such as `/runs/digits-clip-42ca6d/report.html`; None if there is none
    that may be shown."""
    folder = folder.resolve()
    try:
        path = (folder / urllib.parse.unquote(address, errors="strict").lstrip("/")).resolve()
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix != ".html" or is_hidden or not path.is_file():
            return None
        with path.open("rb") as page:
            return path if GENERATOR in page.read(HEAD_BYTES) else None
    except (OSError, ValueError, RuntimeError):  # outside, a loop of links, a name that no file can have
        return None


def listing(folder: Path) -> str:
    """Return a page that links to the pages at the usual places, the newest first."""
    found = {path for pattern in LISTED for path in folder.glob(pattern)}
    places = [path.relative_to(folder).as_posix() for path in sorted(found, key=_written, reverse=True)]
    shown = [place for place in places if find(folder, urllib.parse.quote(place))]
    links = "".join(
        f'<li><a href="{escape(urllib.parse.quote(place))}">{escape(place)}</a></li>\n' for place in shown
    )
    name = escape(folder.name)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Tarmac: {name}</title>\n'
        "<style>body { font: 1rem/1.6 system-ui, sans-serif; margin: 2rem }</style>\n"
        f"<h1>{name}</h1>\n"
        + (f"<ul>\n{links}</ul>\n" if links else "<p>No run has written its report yet.</p>\n")
    )


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a broken link
        return 0.0


@contextmanager
def serving(folder: Path, listener: socket.socket, secret: str | None = None) -> Iterator[None]:
    """Serve the pages below `folder` on a listening socket while the block runs.

    With a `secret`, `USER:PASSWORD`, requests without it are refused (HTTP basic authentication).
    """
    folder = folder.resolve()
    with _PageServer(folder, listener, secret) as server:
        threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, listener: socket.socket, secret: str | None) -> None:
        super().__init__(listener.getsockname()[:2], _PageHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.folder = folder
        self.secret = secret


class _PageHandler(SimpleHTTPRequestHandler):
    server: _PageServer
    server_version = "Tarmac"
    sys_version = ""
    timeout = PATIENCE_S

    def send_head(self) -> BinaryIO:
        """Send the headers of the answer to GET or HEAD; returns the content, which GET sends then."""
        address, secret = urllib.parse.urlsplit(self.path).path, self.server.secret
        if secret is not None:
            wanted = b"Basic " + base64.b64encode(secret.encode())
            if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), wanted):
                return self._refuse(HTTPStatus.UNAUTHORIZED, "Enter the user and the password of the server.")
        if address == "/":
            return self._send(listing(self.server.folder).encode("utf-8", "replace"))
        page = find(self.server.folder, address)
        if page is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "Tarmac has no page here.")
        try:
            content = page.open("rb")
        except OSError:
            return self._refuse(HTTPStatus.NOT_FOUND, "This page is gone.")
        return self._send(content)

    def _refuse(self, status: HTTPStatus, why: str) -> BinaryIO:
        return self._send(f"<!doctype html>\n<title>{status}</title>\n<p>{why}</p>\n".encode(), status)

    def _send(self, content: bytes | BinaryIO, status: HTTPStatus = HTTPStatus.OK) -> BinaryIO:
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(file.seek(0, io.SEEK_END)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="Tarmac", charset="UTF-8"')
        self.end_headers()
        file.seek(0)
        return file

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal belongs to the command that serves the pages."""
