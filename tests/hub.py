"""A stand-in for Hugging Face's hub on the loopback interface: as much of it as huggingface_hub asks for.

It serves the files of folders as repositories, each at commits that follow from what it holds, and can be shut,
fall silent or break off in the middle of a file.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

CUT = 2_000_000
LARGE = 1000
"""A file of more bytes is one of LFS, whose ETag is its SHA-256."""


@dataclass
class Repository:
    """Files by the commit that holds them; the last is `main`."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False

    def add(self, files: dict[str, bytes]) -> str:
        text = json.dumps({name: hashlib.sha256(content).hexdigest() for name, content in files.items()})
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[commit] = files
        return commit

    def at(self, revision: str) -> str:
        return list(self.commits)[-1] if revision == "main" else revision


class StandInHub(ThreadingHTTPServer):
    """`asked` is the path of every request; a request waits while `hushed`, and gets 2 MB of a larger file at most while `breaks`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []
        self.sent = 0
        self.breaks = False
        self.hushed = threading.Event()
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def serve(self, name: str, folder: Path, **facts: Any) -> str:
        """Add the folder's files as the newest commit of that repository."""
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        self.repositories.setdefault(name, Repository(**facts)).add(files)
        return self.repositories[name].at("main")


class Handler(BaseHTTPRequestHandler):
    server: StandInHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET(is_head=True)

    def do_GET(self, *, is_head: bool = False) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if self.server.hushed.is_set():
            self.server.is_over.wait(60)
            return
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._information(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3], is_head)
        else:
            self._refuse(404, "EntryNotFound")

    def _information(self, name: str, revision: str) -> None:
        repository = self.server.repositories.get(name)
        if repository is None:
            return self._refuse(401, "RepoNotFound")
        commit = repository.at(revision)
        if commit not in repository.commits:
            return self._refuse(404, "RevisionNotFound")
        siblings = [_listed(file, content) for file, content in repository.commits[commit].items()]
        answer = {
            "id": name,
            "sha": commit,
            "siblings": siblings,
            "private": False,
            "tags": [],
            "downloads": 0,
        }
        self._send(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, file: str, is_head: bool) -> None:
        repository = self.server.repositories.get(name)
        if repository is None:
            return self._refuse(401, "RepoNotFound")
        if repository.gated:
            return self._refuse(403, "GatedRepo")
        commit = repository.at(revision)
        content = repository.commits.get(commit, {}).get(file)
        if content is None:
            return self._refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        etag = _listed(file, content).get("lfs", {}).get("sha256") or _blob(content)
        headers = {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"', "X-Repo-Commit": commit}
        headers |= {"X-Linked-Size": str(len(content)), "Accept-Ranges": "bytes"}
        self._send(content, headers, is_head=is_head)

    def _send(self, content: bytes, headers: dict[str, str], *, is_head: bool = False) -> None:
        start = int(found[1]) if (found := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        self.send_response(206 if start else 200)
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        for key, value in headers.items():
            self.send_header(key, value)
        rest = content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if is_head:
            return
        if self.server.breaks and len(rest) > CUT:
            rest = rest[:CUT]
            self.close_connection = True
        self.wfile.write(rest)
        self.server.sent += len(rest)
        if self.close_connection and self.server.breaks:
            self.wfile.flush()
            self.server.is_over.wait(60)

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The tests read `asked`."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """The hub, and a cache of the test's own."""
    server = StandInHub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "60")
    yield server
    server.is_over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def _listed(file: str, content: bytes) -> dict[str, Any]:
    listed: dict[str, Any] = {"rfilename": file, "size": len(content), "blobId": _blob(content)}
    if len(content) > LARGE:
        sealed = hashlib.sha256(content).hexdigest()
        listed["lfs"] = {"sha256": sealed, "size": len(content), "pointerSize": 130}
    return listed


def _blob(content: bytes) -> str:
    """git's digest of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
