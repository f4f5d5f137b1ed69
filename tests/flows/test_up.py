"""`tarmac up` refuses wrong settings in one line before it starts anything, and restarts a process that ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.operate import service, up
from tasks.core.errors import UsageError
from tests.web import answering_server


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a config, which nothing here comes to read."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/birds.yaml").write_text("name: birds\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path


@pytest.fixture
def wiki() -> Iterator[int]:
    """The port of a program that answers HTTP and is no Prefect server."""
    with answering_server(lambda path, body: (200, b"<title>a wiki</title>")) as address:
        yield int(address.rpartition(":")[2])


def _refused(host: str | None = None, port: int | None = None, only: up.Part | None = None) -> str:
    before = psutil.Process().children()
    with pytest.raises(UsageError) as caught, up.running(host, port, only):
        pytest.fail("it runs")
    assert psutil.Process().children() == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_port_of_another_program_is_named(project: Path, wiki: int) -> None:
    assert f"another program listens on 127.0.0.1:{wiki}; choose another port" in _refused(port=wiki)


@pytest.mark.parametrize("port", [0, -1, 65535, 70000])
def test_a_port_that_is_none_is_named(project: Path, port: int) -> None:
    assert f"--port: {port} is no port with one after it" in _refused(port=port)


def test_a_host_of_another_machine_is_named(project: Path) -> None:
    assert "--host: 203.0.113.7 is no address of this machine" in _refused(host="203.0.113.7", port=4200)


def test_a_folder_without_configs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path} has no configs/*.yaml" in _refused()


@pytest.mark.parametrize(
    "url", ["http://203.0.113.7:4200/api", "https://127.0.0.1:9/api", "http://127.0.0.1:9/x"]
)
def test_a_server_that_is_named_and_cannot_be_started_here(project: Path, url: str) -> None:
    with temporary_settings({PREFECT_API_URL: url}):
        said = _refused()
    assert said.startswith(f"PREFECT_API_URL={url}: no Prefect server answers there")
    assert "prefect config unset PREFECT_API_URL" in said


def test_a_process_that_ends_is_started_again_after_growing_pauses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start() -> subprocess.Popen[bytes]:
        return service.start_service([sys.executable, "-c", "print('gone')"], {}, subprocess.PIPE)

    clerk, seen, deadline = service.Service("clerk", start), set[int](), time.monotonic() + 30
    while len(seen) < 3 and time.monotonic() < deadline:
        seen.add(clerk.process.pid)
        clerk.look()
        time.sleep(0.05)
    said = capsys.readouterr().err
    assert "! the clerk ended with exit code 0; it starts again in 1 s" in said
    assert "it starts again in 2 s" in said
    assert said.count("gone\n") >= 2
    service.end(clerk.process)


def _place(monkeypatch: pytest.MonkeyPatch, url: str | None, *options: object) -> tuple[str, str, int]:
    monkeypatch.setattr("flows.operate.server.address", lambda: url)
    place = up._ServerLocation.of(*options)  # type: ignore[arg-type]
    return place.api, place.pages_host, place.pages_port


def test_where_server_and_pages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options win over PREFECT_API_URL; beside a server elsewhere the pages keep their usual port here."""
    here, lab = "http://127.0.0.1:4300/api", "https://tarmac.invalid/api"
    for url, options, place in (
        (None, (None, None, None), ("http://127.0.0.1:4200/api", "127.0.0.1", 4201)),
        (None, ("0.0.0.0", 4300, None), (here, "0.0.0.0", 4301)),
        (None, ("::1", None, "server"), ("http://[::1]:4200/api", "::1", 4201)),
        (here, (None, None, None), (here, "127.0.0.1", 4301)),
        (here, (None, 4400, None), ("http://127.0.0.1:4400/api", "127.0.0.1", 4401)),
        (lab, (None, None, "worker"), (lab, "127.0.0.1", 4201)),
        (lab, ("0.0.0.0", None, "worker"), (lab, "0.0.0.0", 4201)),
        (lab, ("0.0.0.0", None, "server"), ("http://127.0.0.1:4200/api", "0.0.0.0", 4201)),
    ):
        assert _place(monkeypatch, url, *options) == place, (url, options)
