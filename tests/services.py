"""A real Prefect server and worker in sessions of their own, and the server's API as tests ask it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

BIN = Path(sys.executable).parent
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path, port: int) -> dict[str, str]:
    """This process's environment without any Prefect settings of its own, for a server on `port`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    url = f"http://127.0.0.1:{port}/api"
    return {
        **kept,
        **TELEMETRY_OFF,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_UI_API_URL": url,
    }


def until(what: str, found: Callable[[], Any], seconds: float, pause_s: float = 0.3) -> Any:
    """The first true value that `found` returns; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(pause_s)
    return value


@contextmanager
def service(command: Sequence[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, ended with its whole group."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def prefect_server(env: dict[str, str], log: Path) -> Iterator[Api]:
    """A running Prefect server on the port of `env`, with a database in its PREFECT_HOME."""
    api = Api(env["PREFECT_API_URL"])
    port = api.ui.rpartition(":")[2]
    command = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", port]
    with service(command, log, env) as process:
        until("the server's health", lambda: process.poll() is not None or api.is_up(), 120)
        assert process.poll() is None, log.read_text()
        yield api


def end_all_in(folder: Path) -> None:
    """Kill what still works in `folder`: trainings have sessions of their own and outlive their starters."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


class Api:
    """What the tests ask of the server, over HTTP, as its pages do."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ui = url.removesuffix("/api")
        self.http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def is_up(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, method: str, path: str, json: Any = None) -> httpx.Response:
        """The server's answer; asks again while its database is busy, as Prefect's own client does."""
        deadline = time.monotonic() + 30
        while (answer := self.http.request(method, path, json=json)).status_code == 503:
            assert time.monotonic() < deadline, f"{path}: still busy"
            time.sleep(0.5)
        return answer

    def get(self, path: str) -> Any:
        return self.ask("GET", path).raise_for_status().json()

    def filter(self, kind: str, **filters: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("POST", f"/{kind}/filter", filters).raise_for_status().json()
        return found

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/deployments/name/{name}")
        return found

    def start(self, name: str, **parameters: Any) -> httpx.Response:
        """Ask for a run of a deployment with these parameters over its defaults."""
        found = self.deployment(name)
        body = {"parameters": {**found["parameters"], **parameters}}
        return self.ask("POST", f"/deployments/{found['id']}/create_flow_run", body)

    def runs_of(self, name: str) -> list[dict[str, Any]]:
        """The runs of a deployment that somebody started, oldest first; not those that its schedule plans."""
        return [run for run in self._all_runs_of(name) if not run["auto_scheduled"]]

    def planned_runs(self, name: str) -> list[dict[str, Any]]:
        """The runs that a deployment's schedule plans, once the server has done so: it looks every minute."""

        def look() -> list[dict[str, Any]]:
            return [run for run in self._all_runs_of(name) if run["auto_scheduled"]]

        found: list[dict[str, Any]] = until(f"runs that {name} plans", look, 120)
        return found

    def _all_runs_of(self, name: str) -> list[dict[str, Any]]:
        chosen = {"id": {"any_": [self.deployment(name)["id"]]}}
        return self.filter("flow_runs", deployments=chosen, sort="EXPECTED_START_TIME_ASC")

    def task_runs(self, run_id: str) -> list[dict[str, Any]]:
        return self.filter("task_runs", task_runs={"flow_run_id": {"any_": [run_id]}})

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        return self.filter("artifacts", artifacts={"flow_run_id": {"any_": [run_id]}})

    def logs(self, run_id: str) -> str:
        rows = self.filter("logs", logs={"flow_run_id": {"any_": [run_id]}}, sort="TIMESTAMP_ASC")
        return "\n".join(row["message"] for row in rows)

    def finished(self, run_id: str, seconds: float) -> dict[str, Any]:
        """The run once it has ended, well or not."""
        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

        def look() -> dict[str, Any] | None:
            run: dict[str, Any] = self.get(f"/flow_runs/{run_id}")
            return run if run["state_type"] in ends else None

        found: dict[str, Any] = until(f"flow run {run_id}", look, seconds)
        return found

    def completed(self, run_id: str, seconds: float) -> dict[str, Any]:
        """The run once it has ended; AssertionError with its log when it did not end well."""
        run = self.finished(run_id, seconds)
        assert run["state_type"] == "COMPLETED", f"{run['state']['message']}\n{self.logs(run_id)}"
        return run
