"""The Prefect server of a command: the named one, or a temporary one; any fault of it is reported in one line."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from flows.operate import environment, server, service, start
from tasks.core.errors import TarmacError, UsageError
from tasks.core.lock import Lease
from tests.conftest import ROOT
from tests.services import PATIENT
from tests.supervision.fakes import make_run
from tests.web import answering_server


@pytest.fixture
def guarded() -> Iterator[str]:
    """A server that reports its health to anybody and admits nobody."""

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        return (200, b"true") if path.endswith("/health") else (401, b"Unauthorized")

    with answering_server(answer) as address:
        yield f"{address}/api"


def test_a_server_that_admits_nobody_is_reported_with_the_setting(guarded: str) -> None:
    with (
        temporary_settings({PREFECT_API_URL: guarded}),
        pytest.raises(UsageError, match=r"refuses \(401\): .*; set PREFECT_API_AUTH_STRING") as caught,
        server.connected("none"),
    ):
        pytest.fail("it is let in")
    assert "\n" not in str(caught.value)


def test_a_server_that_goes_away_is_one_line(tmp_path: Path) -> None:
    def work() -> None:
        raise httpx.ConnectError("All connection attempts failed")

    said = r"9/api: the server no longer answers \(All.*same command"
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
        server.started_temporarily(service.TemporaryServer()),
    ):
        pass


@pytest.mark.proof
def test_a_temporary_server_that_does_not_come_up_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = "postgresql+asyncpg://nobody:secret@127.0.0.1:9/none"
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", nobody)
    with (
        temporary_settings({PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 90}),  # a loaded machine
        pytest.raises(
            TarmacError, match=r"ended while it started \(exit code 3\): \w+Error: .*; try again"
        ) as caught,
        server.started_temporarily(service.TemporaryServer()),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.system
def test_the_first_servers_of_a_folder_start_one_after_another(tmp_path: Path) -> None:
    """Each makes the database where there is none; two at once broke off over each other's tables."""
    code = (
        "from flows.operate import server, service\n"
        "with server.started_temporarily(service.TemporaryServer()): pass"
    )
    environment = {**os.environ, **PATIENT, "PREFECT_HOME": str(tmp_path)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [one.communicate(timeout=600)[1] for one in started]
    assert [one.returncode for one in started] == [0, 0, 0], said


def test_a_port_that_is_taken_is_named() -> None:
    with (
        server.listening("127.0.0.1", 0) as taken,
        pytest.raises(
            UsageError, match=r"--port: another program listens on 127.0.0.1:\d+; choose another port"
        ),
    ):
        server.listening("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("203.0.113.7", 4200, "--host: 203.0.113.7 is no address of this machine"),
        ("nowhere.invalid", 4200, "--host: nowhere.invalid is no address of this machine"),
    ],
)
def test_an_address_that_cannot_be_used_is_named(host: str, port: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        server.listening(host, port)


def test_a_service_gets_no_ctrl_c_and_ends_with_its_starter(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from flows.operate.service import start_service\n"
        "print(start_service(['sleep', '300'], {}, 2).pid, flush=True)\n"
        "time.sleep(300)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert starter.stdout is not None
    child = psutil.Process(int(starter.stdout.readline()))
    assert os.getsid(child.pid) == child.pid
    starter.kill()
    starter.wait()
    gone, _ = psutil.wait_procs([child], timeout=60)
    if not gone:
        child.kill()
    assert gone, "it outlives its starter"


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


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"DO_NOT_TRACK": "0"}
    monkeypatch.setattr(os, "environ", given)
    environment.prepare(quiet=False)
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


def test_a_backup_of_a_database_in_use_is_whole_and_private(tmp_path: Path) -> None:
    """A copy of the file alone would lack what is still in its log of writes."""
    database, copy = tmp_path / "prefect.db", tmp_path / "copy.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE flow_run (id INTEGER)")
        writer.executemany("INSERT INTO flow_run VALUES (?)", [(number,) for number in range(1000)])
        assert (tmp_path / "prefect.db-wal").stat().st_size
        with temporary_settings({PREFECT_SERVER_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{database}"}):
            assert server.back_up(copy) == copy.stat().st_size
    with closing(sqlite3.connect(copy)) as reader:
        assert reader.execute("SELECT count(*) FROM flow_run").fetchone() == (1000,)
        assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert copy.stat().st_mode & 0o077 == 0
    assert not copy.with_name("copy.db.part").exists()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("postgresql+asyncpg://a:b@c/d", "for PostgreSQL: pg_dump"),
        ("sqlite+aiosqlite:////nowhere/prefect.db", "there is no database /nowhere/prefect.db"),
    ],
)
def test_a_backup_that_cannot_be_made_is_one_line(address: str, says: str, tmp_path: Path) -> None:
    with (
        temporary_settings({PREFECT_SERVER_DATABASE_CONNECTION_URL: address}),
        pytest.raises(UsageError, match=says) as refused,
    ):
        server.back_up(tmp_path / "copy.db")
    assert "\n" not in str(refused.value) and list(tmp_path.iterdir()) == []
