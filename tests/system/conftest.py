"""One server, one worker and one project folder for all tests here; their logs are shown when a test fails."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.operate.pages import serving
from tasks.reporting.links import PAGES_URL
from tests.services import (
    BIN,
    Api,
    Postgres,
    end_all_in,
    environment,
    free_port,
    postgres_cluster,
    prefect_server,
    service,
    until,
)
from tests.system.browser import Page, browsing

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LOGS = pytest.StashKey[list[Path]]()

NIGHTLY = "build/digits-clip"
ONE_CLICK = "pipeline/digits-clip"
STEPS = 40
QUICK = {"steps": STEPS, "set": ["train.warmup=10", "train.checkpoint_every=20", "evaluate.every=20"]}
STAGES = ("build", "verify", "assess", "publish", "tune", "train", "evaluate", "gather", "report")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the services' logs to the report of a failure."""
    report = yield
    if report.failed and item.path.is_relative_to(HERE):
        for log in item.config.stash.get(LOGS, []):
            lines = log.read_text(errors="replace").splitlines()[-60:]
            report.sections.append((f"{log} (its end)", "\n".join(lines)))
    return report


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server, the worker and the project have their folders."""
    return tmp_path_factory.mktemp("system")


@pytest.fixture(scope="session")
def env(folder: Path) -> dict[str, str]:
    """The environment of all that talks to the server."""
    return environment(folder / "prefect", free_port())


@pytest.fixture(scope="session")
def api(folder: Path, env: dict[str, str], pytestconfig: pytest.Config) -> Iterator[Api]:
    """A running server with an SQLite database of its own."""
    log = folder / "server.log"
    pytestconfig.stash.setdefault(LOGS, []).append(log)
    with prefect_server(env, log) as api:
        yield api


@pytest.fixture(scope="session")
def project(folder: Path) -> Iterator[Path]:
    """A folder as a user has it: configs of this repository, one of them with a schedule, and the digits."""
    path = folder / "project"
    shutil.copytree(ROOT / "configs", path / "configs")
    with (path / "configs/digits-clip.yaml").open("a") as config:
        config.write('schedule: {cron: "0 2 * * *"}\n')
    subprocess.run([BIN / "tarmac", "example", "digits"], cwd=path, check=True, timeout=120)
    yield path
    end_all_in(path)


@pytest.fixture(scope="session")
def run(project: Path, env: dict[str, str]) -> Run:
    """Runs a command of the environment in the project's folder; `unset` and `set` change its environment."""

    def run(
        command: str, *arguments: str, unset: tuple[str, ...] = (), **change: str
    ) -> subprocess.CompletedProcess[str]:
        changed = {name: value for name, value in {**env, **change}.items() if name not in unset}
        return subprocess.run(
            [BIN / command, *arguments], cwd=project, env=changed, capture_output=True, text=True, timeout=300
        )

    return run


@pytest.fixture(scope="session")
def deployed(api: Api, run: Run) -> list[dict[str, Any]]:
    """What the first `tarmac deploy` says that it registered."""
    done = run("tarmac", "deploy", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["deployments"]
    return found


@contextmanager
def config_of(project: Path, run: Run, name: str, text: str) -> Iterator[None]:
    """A config of the shared project that is deployed for a while: other tests count the deployments."""
    path = project / "configs" / f"{name}.yaml"
    path.write_text(text)
    try:
        assert run("tarmac", "deploy").returncode == 0
        yield
    finally:
        path.unlink(missing_ok=True)
        assert run("tarmac", "deploy").returncode == 0


@pytest.fixture(scope="session")
def pages_url(project: Path) -> Iterator[str]:
    """The URL under which the pages of the project are served."""
    with socket.create_server(("127.0.0.1", 0)) as listener, serving(project, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="session")
def worker(
    folder: Path, env: dict[str, str], pages_url: str, deployed: object, pytestconfig: pytest.Config
) -> Iterator[int]:
    """A running worker of the pool that `tarmac deploy` made; its process id."""
    log = folder / "worker.log"
    pytestconfig.stash.setdefault(LOGS, []).append(log)
    command = [str(BIN / "prefect"), "worker", "start", "--pool", "tarmac", "--type", "process"]
    with service(command, log, {**env, "PYTHONUNBUFFERED": "1", PAGES_URL: pages_url}) as process:
        until("the worker's start", lambda: process.poll() is not None or "started!" in log.read_text(), 60)
        assert process.poll() is None, log.read_text()
        yield process.pid


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser; without it these tests fail, for nothing else shows what a person sees."""
    found = shutil.which("chromium")
    if found is None:
        pytest.fail("chromium is not installed: apt-get install chromium (.ci/run does it)")
    return found


@pytest.fixture(scope="session")
def tab(chromium: str, folder: Path) -> Iterator[Page]:
    """A tab of the browser that all tests share which need no password."""
    with browsing(chromium, folder, dict(os.environ)) as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    """The shared tab, which is empty between two tests: Prefect's pages cost a core what they draw."""
    yield tab
    tab.call("Page.navigate", url="about:blank")


@dataclass(frozen=True)
class Watched:
    """A pipeline run that has ended well, the folder of its run, and the values that each progress artifact was seen to have."""

    id: str
    run: Path
    progress: dict[str, list[float]]


@pytest.fixture(scope="session")
def one_click(api: Api, worker: int, project: Path) -> Watched:
    """The pipeline with the form's overrides, watched as a page of the UI would."""
    started = api.start(ONE_CLICK, overrides=QUICK)
    assert started.status_code == 201, started.text
    run_id, progress = started.json()["id"], {}
    deadline = time.monotonic() + 420
    is_over = False
    while not is_over:
        assert time.monotonic() < deadline, api.logs(run_id)
        is_over = api.get(f"/flow_runs/{run_id}")["state_type"] not in ("SCHEDULED", "PENDING", "RUNNING")
        for artifact in api.artifacts(run_id):
            if artifact["type"] == "progress":
                seen: list[float] = progress.setdefault(artifact["key"].rpartition("-")[0], [])
                if not seen or seen[-1] != artifact["data"]:
                    seen.append(artifact["data"])
        time.sleep(0.2)
    run = api.completed(run_id, 1)["labels"]["tarmac.run"]
    return Watched(run_id, Path(run), progress)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A private PostgreSQL cluster; `call("restart")` restarts it."""
    with postgres_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def env_on_postgres(folder: Path, postgres: Postgres) -> dict[str, str]:
    """The environment of all that talks to the server on PostgreSQL."""
    env = environment(folder / "prefect-on-postgres", free_port())
    return {**env, "PREFECT_SERVER_DATABASE_CONNECTION_URL": postgres.url}


@pytest.fixture(scope="session")
def api_on_postgres(
    folder: Path, env_on_postgres: dict[str, str], pytestconfig: pytest.Config
) -> Iterator[Api]:
    """A running server on PostgreSQL."""
    log = folder / "server-on-postgres.log"
    pytestconfig.stash.setdefault(LOGS, []).append(log)
    with prefect_server(env_on_postgres, log) as api:
        yield api
