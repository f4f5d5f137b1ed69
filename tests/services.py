"""A real Prefect server and worker in sessions of their own, a PostgreSQL, and the server's API as tests ask it."""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import functools
import os
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import psutil

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
ROWS = 200
"""The server answers no more at once."""
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
PATIENT = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "240"}
"""The tests may be many on a small machine."""


DATABASE = "TARMAC_TEST_DATABASE"
"""With `postgresql` each server of the tests has a database of a PostgreSQL; else an SQLite file."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path, port: int) -> dict[str, str]:
    """This process's environment without any Prefect settings of its own, for a server on `port`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    url = f"http://127.0.0.1:{port}/api"
    database = {}
    if os.environ.get(DATABASE) == "postgresql":
        database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": _shared_cluster().new_database()}
    elif not (home / "prefect.db").exists():
        home.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_migrated(), home / "prefect.db")
    return {
        **kept,
        **TELEMETRY_OFF,
        **PATIENT,
        **database,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_UI_API_URL": url,
    }


def _migrated() -> Path:
    """The path of an empty database for this version of Prefect. It is made once, as it takes ten seconds."""
    cache = ROOT / ".cache"
    made = cache / f"prefect-{version('prefect')}.db"
    cache.mkdir(exist_ok=True)
    with (cache / "prefect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory() as folder:
                env = {**os.environ, **TELEMETRY_OFF, "PREFECT_HOME": folder}
                upgrade = [BIN / "prefect", "server", "database", "upgrade", "-y"]
                subprocess.run(upgrade, env=env, check=True, capture_output=True, timeout=240)
                draft = made.with_suffix(".tmp")
                draft.unlink(missing_ok=True)
                with closing(sqlite3.connect(f"{folder}/prefect.db")) as database:
                    database.execute("VACUUM INTO ?", [str(draft)])
            draft.rename(made)
    return made


def until(what: str, found: Callable[[], Any], seconds: float, pause_s: float = 0.3) -> Any:
    """The first true value that `found` returns; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(pause_s)
    return value


def crowding() -> float:
    """How many times longer work takes here than on a quiet machine: processes that want a core, per core."""
    return max(1.0, *(load / (os.cpu_count() or 1) for load in os.getloadavg()[:2]))


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
        with suppress(ProcessLookupError):  # a test has ended it
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def server_command(env: dict[str, str]) -> list[str]:
    """What starts a Prefect server on the port of `env`."""
    port = env["PREFECT_API_URL"].removesuffix("/api").rpartition(":")[2]
    return [str(BIN / "tarmac"), "up", "--only", "server", "--port", port]


@contextmanager
def prefect_server(env: dict[str, str], log: Path) -> Iterator[Api]:
    """A running Prefect server on the port of `env`, as users start one; its database is in its PREFECT_HOME."""
    api = Api(env["PREFECT_API_URL"])
    with service(server_command(env), log, env) as process:
        until("the server's health", lambda: process.poll() is not None or api.is_up(), 240)
        assert process.poll() is None, log.read_text()
        yield api


class Postgres:
    """A private PostgreSQL cluster, as deploy/postgres makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = self.call("start", str(free_port()))

    def call(self, command: str, *arguments: str) -> str:
        """A command of deploy/postgres; returns what it prints."""
        done = subprocess.run(
            [ROOT / "deploy/postgres", command, self.folder, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def new_database(self) -> str:
        """The address of a database that nobody has used."""
        name = f"tests_{uuid.uuid4().hex}"
        psql = ["psql", self.url.replace("+asyncpg", ""), "--quiet", "--command", f"create database {name}"]
        subprocess.run(psql, check=True, timeout=60)
        return f"{self.url.rpartition('/')[0]}/{name}"


@functools.cache
def _shared_cluster() -> Postgres:
    """The cluster of this process, until that ends."""
    lasting = ExitStack()
    cluster = lasting.enter_context(postgres_cluster())
    atexit.register(lasting.close)  # last, to be called before what removes temporary folders
    return cluster


@contextmanager
def postgres_cluster() -> Iterator[Postgres]:
    """A new cluster, stopped and removed afterwards. Its folder is not one of pytest's: they are closed to
    other users, and PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        cluster = Postgres(Path(folder) / "cluster")
        try:
            yield cluster
        finally:
            cluster.call("stop")


@contextmanager
def tls_proxy(port: int, folder: Path) -> Iterator[tuple[int, Path]]:
    """A proxy that speaks TLS in front of a port of this machine; its port and its certificate's file."""
    key, certificate = folder / "proxy.key", folder / "proxy.crt"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    subprocess.run(
        [*made, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, inner[1]), carry(inner[0], writer))

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield listening.sockets[0].getsockname()[1], certificate
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def end_all_in(folder: Path) -> None:
    """Kill what still works in `folder`: trainings have sessions of their own and outlive their starters."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def engines_of(flow_run: str) -> list[int]:
    """The processes that run this flow run."""
    found = []
    for process in psutil.process_iter():
        try:
            runs = process.environ().get("PREFECT__FLOW_RUN_ID", "")
            if runs == flow_run and "prefect.engine" in " ".join(process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


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
        """The server's answer; asks again while its database is busy or away, as Prefect's own client does."""
        deadline = time.monotonic() + 180  # a write to SQLite waits for 60 s before the server gives it up
        while True:
            with suppress(httpx.ReadTimeout):
                answer = self.http.request(method, path, json=json)
                if answer.status_code < 500:
                    return answer
            assert time.monotonic() < deadline, f"{path}: the server cannot answer"
            time.sleep(0.5)

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

    def ended_tasks(self, run_id: str, count: int) -> list[dict[str, Any]]:
        """The task runs of a run, once there are so many and all have ended: the server learns of
        them from events, which may reach it after the run's last state."""

        def look() -> list[dict[str, Any]] | None:
            found = self.task_runs(run_id)
            is_over = len(found) >= count and all(one["state_type"] in ENDS for one in found)
            return found if is_over else None

        found: list[dict[str, Any]] = until(f"{count} ended tasks of flow run {run_id}", look, 60)
        return found

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        return self.filter("artifacts", artifacts={"flow_run_id": {"any_": [run_id]}})

    def logs(self, run_id: str) -> str:
        return "\n".join(line for _, line in self.log_levels(run_id))

    def whole_log(self, run_id: str) -> str:
        """The run's log once its process has ended, after which no line comes."""
        until("the end of its process", lambda: not engines_of(run_id), 60)
        return self.logs(run_id)

    def log_levels(self, run_id: str) -> list[tuple[int, str]]:
        """Level and text of each line of the run's log."""
        rows: list[dict[str, Any]] = []
        asked = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC", "limit": ROWS}
        while len(rows) % ROWS == 0:
            new = self.filter("logs", **asked, offset=len(rows))
            if not new:
                break
            rows += new
        return [(row["level"], row["message"]) for row in rows]

    def page_of(self, run_id: str) -> dict[str, Any]:
        """The Markdown artifact that a run leaves at its end."""
        [found] = [entry for entry in self.artifacts(run_id) if entry["type"] == "markdown"]
        return found

    def logged(self, run_id: str, *texts: str, level: int = 0) -> None:
        """Wait until the run's log has these, at this level or above: its lines may reach the server after
        its last state."""

        def has_all() -> bool:
            lines = [line for its_level, line in self.log_levels(run_id) if its_level >= level]
            return all(any(text in line for line in lines) for text in texts)

        try:
            until("the log", has_all, 180)
        except AssertionError:
            raise AssertionError(f"{texts} are not in the log:\n{self.logs(run_id)}") from None

    def finished(self, run_id: str, seconds: float) -> dict[str, Any]:
        """The run once it has ended, well or not."""

        def look() -> dict[str, Any] | None:
            run: dict[str, Any] = self.get(f"/flow_runs/{run_id}")
            return run if run["state_type"] in ENDS else None

        found: dict[str, Any] = until(f"flow run {run_id}", look, seconds)
        return found

    def completed(self, run_id: str, seconds: float) -> dict[str, Any]:
        """The run once it has ended; AssertionError with its log when it did not end well."""
        run = self.finished(run_id, seconds)
        assert run["state_type"] == "COMPLETED", f"{run['state']['message']}\n{self.logs(run_id)}"
        return run
