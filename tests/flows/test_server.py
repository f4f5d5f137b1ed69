"""The Prefect server of a command: the one it is told of, or a temporary one; what is wrong with it is one line."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows import environment, server, start, temporary_server
from tasks.core.errors import TarmacError, UsageError
from tasks.core.lock import Lease
from tests.supervision.fakes import make_run


class Guarded(BaseHTTPRequestHandler):
    """Tells anybody of its health and lets nobody in."""

    def do_GET(self) -> None:
        self._answer(200 if self.path.endswith("/health") else 401)

    def do_POST(self) -> None:
        self._answer(401)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"true" if status == 200 else b"Unauthorized")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def guarded() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}/api"
        web.shutdown()


def test_a_server_that_lets_nobody_in_names_the_setting(guarded: str) -> None:
    with (
        temporary_settings({PREFECT_API_URL: guarded}),
        pytest.raises(UsageError, match=r"refuses \(401\): .*; set PREFECT_API_AUTH_STRING") as caught,
        server.asked("none"),
    ):
        pytest.fail("it is let in")
    assert "\n" not in str(caught.value)


def test_a_server_that_goes_away_is_one_line(tmp_path: Path) -> None:
    def work() -> None:
        raise httpx.ConnectError("All connection attempts failed")

    said = r"9/api: the server answers no more \(All.*same command"
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(TarmacError, match=said) as caught,
    ):
        start._watched(work, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_address_is_forgotten_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert server.how_to_forget() == "unset PREFECT_API_URL"
    monkeypatch.delenv("PREFECT_API_URL")
    assert server.how_to_forget() == "prefect config unset PREFECT_API_URL"


def test_a_home_that_cannot_be_written_is_named_at_once() -> None:
    with (
        temporary_settings({PREFECT_HOME: "/proc/nope"}),
        pytest.raises(UsageError, match="PREFECT_HOME: /proc/nope cannot be written"),
    ):
        temporary_server.start()


def test_a_temporary_server_that_does_not_come_up_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def start(self) -> None:
            raise RuntimeError("Timed out.\nIt is dead.")

    module = SimpleNamespace(SubprocessASGIServer=Silent)
    monkeypatch.setitem(sys.modules, "prefect.server.api.server", module)
    with (
        temporary_settings({PREFECT_HOME: str(tmp_path)}),
        pytest.raises(TarmacError, match=r"does not come up \(Timed out. It is dead.\); try again"),
    ):
        temporary_server.start()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "lab.org"}, "lab.org,127.0.0.1,localhost"),
        ({"no_proxy": "a, localhost", "NO_PROXY": "b"}, "a,localhost,b,127.0.0.1"),
        ({"no_proxy": "*"}, None),
    ],
)
def test_no_proxy_is_asked_for_this_host(
    before: dict[str, str], after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"http_proxy": "http://127.0.0.1:9", **before}
    monkeypatch.setattr(os, "environ", given)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    environment.prepare(quiet=True)
    assert given.get("NO_PROXY") == after
    assert given["no_proxy"] == (after or "*")


def test_the_temporary_server_is_always_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false", "DO_NOT_TRACK": "0"}
    monkeypatch.setattr(os, "environ", given)
    environment.prepare(quiet=False)
    assert given["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "true"
    assert given["DO_NOT_TRACK"] == "0"


def test_a_damaged_run_beside_it_does_not_hide_what_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    broken = run.path.with_name("broken")
    broken.mkdir()
    (broken / "run.json").write_text("{")
    with Lease(run.lease):
        start._report_what_goes_on(run.path.parent)
    assert f"Training goes on as job ? ({run.name})" in capsys.readouterr().err
