"""One server, one worker and one project folder for all tests here; their logs are shown when a test fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services import BIN, Api, end_all_in, environment, free_port, prefect_server, service, until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LOGS = pytest.StashKey[list[Path]]()

NIGHTLY = "build/nightly-rebuild"
ONE_CLICK = "pipeline/train-and-eval"
STEPS = 40
QUICK = {"steps": STEPS, "set": ["train.checkpoint_every=20", "evaluate.every=20"]}
STAGES = ("build", "verify", "publish", "tune", "train", "evaluate", "gather", "report")

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
    """A folder as a user has it: configs and deploy/prefect.yaml of this repository, and the digits."""
    path = folder / "project"
    shutil.copytree(ROOT / "configs", path / "configs")
    (path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/prefect.yaml", path / "deploy")
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


@pytest.fixture(scope="session")
def worker(folder: Path, env: dict[str, str], deployed: object, pytestconfig: pytest.Config) -> Iterator[int]:
    """A running worker of the pool that `tarmac deploy` made; its process id."""
    log = folder / "worker.log"
    pytestconfig.stash.setdefault(LOGS, []).append(log)
    command = [str(BIN / "prefect"), "worker", "start", "--pool", "tarmac", "--type", "process"]
    with service(command, log, {**env, "PYTHONUNBUFFERED": "1"}) as process:
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


@dataclass(frozen=True)
class Watched:
    """A pipeline run that has ended well, and the values that each progress artifact was seen to have."""

    id: str
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
                seen: list[float] = progress.setdefault(
                    artifact["description"].removeprefix("Progress of "), []
                )
                if not seen or seen[-1] != artifact["data"]:
                    seen.append(artifact["data"])
        time.sleep(0.2)
    api.completed(run_id, 1)
    return Watched(run_id, progress)
