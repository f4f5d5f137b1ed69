"""A stand-in for Hugging Face's hub on the loopback interface: as much of it as huggingface_hub asks for.

It serves the files of folders as repositories, each at commits that follow from what it holds, and can be shut,
fall silent or break off in the middle of a file. Whoever sends the token of a user may make repositories of that user
and commit to them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
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
"""A file of more bytes is one of LFS, whose ETag is its SHA-256, unless it is a text for people."""


@dataclass
class Repository:
    """Files by the commit that holds them; the last is `main`."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    """The metadata of its README.md."""

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
        self.users: dict[str, str] = {}
        """Users by token."""
        self.objects: dict[str, bytes] = {}
        """Large files by SHA-256, whether a commit names them or not."""
        self.stops_after = math.inf
        """Falls silent once this many large files have arrived."""
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

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        content = self._received()
        self.server.asked.append(f"POST {path}")
        if self.server.hushed.is_set():
            self.server.is_over.wait(60)
            return
        if path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create(json.loads(content))
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path):
            if self._may_write(found[1]):
                (self._preupload if found[2] == "preupload" else self._commit)(found[1], content)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            if self._may_write(found[1]):
                self._batch(json.loads(content))
        else:
            self._refuse(404, "EntryNotFound")

    def do_PUT(self) -> None:
        oid = self.path.rpartition("/")[2]
        self.server.asked.append(f"PUT {oid}")
        content = self._received()
        if len(self.server.objects) >= self.server.stops_after:
            self.server.hushed.set()
        if self.server.hushed.is_set():
            self.server.is_over.wait(60)
            return
        if hashlib.sha256(content).hexdigest() != oid:
            return self._refuse(400, "BadDigest")
        self.server.objects[oid] = content
        self._answer({})

    def _received(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    @property
    def _user(self) -> str | None:
        return self.server.users.get(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def _may_write(self, name: str) -> bool:
        if self._user is None:
            self._refuse(401, "", message="Invalid username or password.")
        elif name.partition("/")[0] != self._user:
            self._refuse(403, "", message=f"You don't have the rights to write to {name}")
        elif name not in self.server.repositories:
            self._refuse(404, "RepoNotFound")
        else:
            return True
        return False

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if self._user is None:
            return self._refuse(401, "", message="Invalid username or password.")
        if asked["organization"] != self._user:
            message = (
                f'You don\'t have the rights to create a model under the namespace "{asked["organization"]}"'
            )
            return self._refuse(403, "", message=message)
        if "taken" in asked["name"]:
            return self._refuse(400, "", message=f"{asked['name']} is a reserved name")
        if name in self.server.repositories:
            return self._refuse(409, "", message="You already created this model repo")
        made = Repository(private=asked.get("visibility") == "private")
        made.add({".gitattributes": b"*.safetensors filter=lfs\n"})
        self.server.repositories[name] = made
        self._answer({"url": f"{self.server.url}/{name}", "id": name})

    def _preupload(self, name: str, content: bytes) -> None:
        files = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if is_large(one["path"], one["size"]) else "regular",
                "shouldIgnore": False,
            }
            for one in json.loads(content)["files"]
        ]
        self._answer({"files": files})

    def _batch(self, asked: dict[str, Any]) -> None:
        found: list[dict[str, Any]] = []
        for one in asked["objects"]:
            place = {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}}
            known = one["oid"] in self.server.objects
            found.append(one if known else {**one, "actions": place})
        self._answer({"transfer": "basic", "objects": found})

    def _commit(self, name: str, content: bytes) -> None:
        repository = self.server.repositories[name]
        files = dict(repository.commits[repository.at("main")])
        for line in content.splitlines():
            key, value = (json.loads(line)[part] for part in ("key", "value"))
            if key == "header" and value.get("parentCommit") not in (None, repository.at("main")):
                return self._refuse(412, "", message="A commit has happened since")
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        commit = repository.add(files)
        url = f"{self.server.url}/{name}/commit/{commit}"
        self._answer({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _answer(self, answer: dict[str, Any]) -> None:
        self._send(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _is_hidden(self, name: str) -> bool:
        repository = self.server.repositories.get(name)
        return repository is None or (repository.private and name.partition("/")[0] != self._user)

    def _information(self, name: str, revision: str) -> None:
        if self._is_hidden(name):
            return self._refuse(401, "RepoNotFound")
        repository = self.server.repositories[name]
        commit = repository.at(revision)
        if commit not in repository.commits:
            return self._refuse(404, "RevisionNotFound")
        siblings = [_listed(file, content) for file, content in repository.commits[commit].items()]
        answer = {
            "id": name,
            "sha": commit,
            "siblings": siblings,
            "private": repository.private,
            "cardData": repository.card,
            "tags": [],
            "downloads": 0,
        }
        self._answer(answer)

    def _file(self, name: str, revision: str, file: str, is_head: bool) -> None:
        if self._is_hidden(name):
            return self._refuse(401, "RepoNotFound")
        repository = self.server.repositories[name]
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

    def _refuse(
        self, status: int, code: str, headers: dict[str, str] | None = None, message: str = ""
    ) -> None:
        named = {"X-Error-Code": code} if code else {}
        content = json.dumps({"error": message}).encode() if message else b""
        self.send_response(status)
        for key, value in {**named, "X-Error-Message": message or code, **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

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
    if is_large(file, len(content)):
        sealed = hashlib.sha256(content).hexdigest()
        listed["lfs"] = {"sha256": sealed, "size": len(content), "pointerSize": 130}
    return listed


def is_large(file: str, size_bytes: int) -> bool:
    return size_bytes > LARGE and not file.endswith(".md")


def _blob(content: bytes) -> str:
    """git's digest of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
