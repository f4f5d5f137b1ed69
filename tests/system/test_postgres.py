"""The PostgreSQL of deploy/postgres, and a Prefect server on it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.services import ROOT, Api, Postgres, until

pytestmark = pytest.mark.system


def test_a_server_keeps_what_it_knows_over_a_restart_of_its_database(
    api_on_postgres: Api, postgres: Postgres
) -> None:
    flow = api_on_postgres.ask("POST", "/flows/", {"name": "kept"}).raise_for_status().json()
    assert postgres.call("restart") == ""
    found = until("the server after the restart", lambda: _flow(api_on_postgres, flow["id"]), 60)
    assert found["name"] == "kept"


def _flow(api: Api, identity: str) -> dict[str, str] | None:
    answer = api.ask("GET", f"/flows/{identity}")
    return dict(answer.json()) if answer.status_code == 200 else None


def test_it_asks_for_its_password(postgres: Postgres) -> None:
    assert postgres.call("url") == postgres.call("start") == postgres.url
    password = (postgres.folder / "password").read_text()
    assert password in postgres.url
    assert (postgres.folder / "password").stat().st_mode & 0o077 == 0
    asked = postgres.url.replace("+asyncpg", "")
    for url, code in ((asked, 0), (asked.replace(password, "guessed"), 2)):
        done = subprocess.run(["psql", url, "--command", "select 1"], capture_output=True, text=True)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["start"], "say what to do and where"),
        (["stop", "nowhere"], "nowhere holds no cluster; make one: deploy/postgres start"),
        (["begin", "nowhere"], "begin is none of start, stop, restart, url"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "deploy/postgres", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
