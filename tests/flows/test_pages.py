"""The page server shows the pages that Tarmac made below a folder, and nothing else that lies there."""

from __future__ import annotations

import base64
import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.operate.pages import serving
from tasks.core.pages import render

REPORT = "/runs/birds-42ca6d/report.html"


@contextmanager
def _served(folder: Path, secret: str | None = None) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener, serving(folder, listener, secret):
        yield listener.getsockname()[1]


def _ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """The answer to a path sent as it is: no client tidies `..` away."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, dict(answer.headers)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the pages of a run and of a dataset, and with what nobody may see."""
    above = tmp_path_factory.mktemp("above")
    folder = above / "project"
    page = render("core/base.html", written=0.0, sections=())
    for place in (
        "runs/birds-42ca6d/report.html",
        "data/birds/look.html",
        ".cache/report.html",
        "raw/.look.html",
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(page)
    (above / "outside.html").write_text(page)
    (folder / "raw/photo.png").write_bytes(b"png")
    (folder / "raw/mail.html").write_text("<p>somebody's letter</p>")
    (folder / "raw/named.txt").write_text(page)
    (folder / "data/birds/train").mkdir()
    (folder / "data/birds/train/000000.tar").write_bytes(b"tar")
    (folder / ".env").write_text("WANDB_API_KEY=1")
    (folder / "runs/elsewhere.html").symlink_to(above / "outside.html")
    (folder / "runs/hidden.html").symlink_to(folder / ".cache/report.html")
    (folder / "runs/up").symlink_to(above)
    (folder / "runs/loop.html").symlink_to("loop.html")
    return folder


@pytest.fixture(scope="module")
def port(project: Path) -> Iterator[int]:
    with _served(project) as port:
        yield port


def test_a_page_is_shown_whole_and_can_do_nothing(project: Path, port: int) -> None:
    status, content, headers = _ask(port, REPORT)
    assert status == 200
    assert content == (project / REPORT[1:]).read_bytes()
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert _ask(port, "/data/birds/look.html?tab=2")[0] == 200
    assert _ask(port, REPORT, "HEAD")[:2] == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/raw/photo.png",
        "/raw/mail.html",
        "/raw/named.txt",
        "/raw/.look.html",
        "/data/birds/train/000000.tar",
        "/data/birds/",
        "/runs",
        "/.env",
        "/.cache/report.html",
        "/%2ecache/report.html",
        "/runs/hidden.html",
        "/runs/elsewhere.html",
        "/runs/up/outside.html",
        "/runs/loop.html",
        "/../outside.html",
        "/%2e%2e/outside.html",
        "/runs/..%2f..%2foutside.html",
        "//etc/passwd",
        "/nul%00.html",
        "/bad%ff.html",
        "/" + "long" * 100 + ".html",
    ],
)
def test_nothing_else_is_there(port: int, path: str) -> None:
    status, content, _ = _ask(port, path)
    assert status == 404
    assert b"no page here" in content


def test_an_absolute_path_stays_in_the_folder(project: Path, port: int) -> None:
    assert _ask(port, f"/{project.parent}/outside.html")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(port: int, method: str) -> None:
    assert _ask(port, REPORT, method)[0] == 501


def test_the_first_page_leads_to_the_others(project: Path, port: int) -> None:
    os.utime(project / "data/birds/look.html", (1, 1))
    listed = _ask(port, "/")[1].decode()
    assert listed.count("<li>") == 2
    assert listed.index('href="runs/birds-42ca6d/report.html"') < listed.index('href="data/birds/look.html"')


def test_the_list_of_a_folder_without_pages_is_a_sentence(tmp_path: Path) -> None:
    with _served(tmp_path) as port:
        assert b"No run has written its report yet" in _ask(port, "/")[1]


def test_with_a_secret_only_its_holders_read(project: Path) -> None:
    def basic(secret: str) -> str:
        return "Basic " + base64.b64encode(secret.encode()).decode()

    with _served(project, "lab:söcret") as port:
        for path in (REPORT, "/", "/raw/photo.png"):
            status, _, headers = _ask(port, path)
            assert status == 401
            assert headers["WWW-Authenticate"].startswith("Basic")
            assert _ask(port, path, Authorization=basic("lab:secret"))[0] == 401
        assert _ask(port, REPORT, Authorization=basic("lab:söcret"))[0] == 200
