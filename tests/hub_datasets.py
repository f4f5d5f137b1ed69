"""Datasets on the stand-in for Hugging Face's hub: listings, facts about paths, and files in parts.

The answers are those of https://huggingface.co/docs/hub/api, as far as huggingface_hub asks for them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub.constants
import pytest

from tests.hub import Handler, Repository, StandInHub, _blob, _listed, is_large

NAME = "([^/]+/[^/]+)"


class DatasetHandler(Handler):
    def do_GET(self, *, is_head: bool = False) -> None:
        path = urlsplit(self.path).path
        if found := re.fullmatch(rf"/api/datasets/{NAME}/tree/([^/]+)(?:/(.*))?", path):
            self._tree(found[1], unquote(found[2]), unquote(found[3] or ""))
        elif found := re.fullmatch(rf"/api/datasets/{NAME}(?:/revision/([^/]+))?", path):
            if (files := self._files(found[1], unquote(found[2] or "main"))) is not None:
                self._answer(
                    {"id": found[1], "sha": "0" * 40, "siblings": [], "tags": [], "private": not files}
                )
        elif found := re.fullmatch(rf"/datasets/{NAME}/resolve/([^/]+)/(.+)", path):
            self._part(found[1], unquote(found[2]), unquote(found[3]))
        else:
            super().do_GET(is_head=is_head)

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        if found := re.fullmatch(rf"/api/datasets/{NAME}/paths-info/([^/]+)", path):
            asked = self._received().decode()
            is_json = "json" in self.headers.get("Content-Type", "")
            wanted = json.loads(asked)["paths"] if is_json else parse_qs(asked)["paths"]
            files = self._files(found[1], unquote(found[2]))
            if files is not None:
                entries = _entries(files)
                self._answer([entries[one] for one in wanted if one in entries])  # type: ignore[arg-type]
        else:
            super().do_POST()

    def _files(self, name: str, revision: str) -> dict[str, bytes] | None:
        """The files of a revision; None where the request was refused."""
        self.server.asked.append(f"{self.command} {unquote(self.path)}")
        if self.server.hushed.is_set():
            self.server.is_over.wait(60)
            return None
        if self._is_hidden(name):
            self._refuse(401, "RepoNotFound")
            return None
        repository = self.server.repositories[name]
        if repository.gated and self._user is None:
            self._refuse(403, "GatedRepo")
            return None
        found = repository.commits.get(repository.at(revision))
        if found is None:
            self._refuse(404, "RevisionNotFound")
        return found

    def _tree(self, name: str, revision: str, folder: str) -> None:
        if (files := self._files(name, revision)) is None:
            return
        entries = _entries(files)
        if folder and entries.get(folder, {}).get("type") != "directory":
            return self._refuse(404, "EntryNotFound")
        inside = [one for path, one in entries.items() if path.rpartition("/")[0] == folder]
        self._answer(inside)  # type: ignore[arg-type]

    def _part(self, name: str, revision: str, file: str) -> None:
        if (files := self._files(name, revision)) is None:
            return
        if file not in files:
            return self._refuse(404, "EntryNotFound")
        content = files[file]
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = content[int(found[1]) : int(found[2]) + 1] if found else content
        self.send_response(206 if found else 200)
        if found:
            end = int(found[1]) + len(part) - 1
            self.send_header("Content-Range", f"bytes {found[1]}-{end}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


def _entries(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """All files and folders by their paths."""
    found: dict[str, dict[str, Any]] = {}
    for path, content in files.items():
        for end in (n for n, char in enumerate(path) if char == "/"):
            found[path[:end]] = {"type": "directory", "oid": "1" * 40, "size": 0, "path": path[:end]}
        found[path] = {"type": "file", "oid": _blob(content), "size": len(content), "path": path}
        if is_large(path, len(content)):
            facts = _listed(path, content)["lfs"]
            found[path]["lfs"] = {"oid": facts["sha256"], "size": facts["size"], "pointerSize": 130}
    return found


@contextmanager
def datasets_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """The hub, for this process and its children."""
    server = StandInHub()
    server.RequestHandlerClass = DatasetHandler  # type: ignore[assignment]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def publish(server: StandInHub, name: str, folder: Path, **facts: Any) -> str:
    """Add all files below a folder as the newest commit of a dataset; return its revision."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return server.repositories.setdefault(name, Repository(**facts)).add(files)
