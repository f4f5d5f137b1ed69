"""`tarmac up` on SQLite in one command; and as the two services of systemd, as a team has them: on PostgreSQL,
with a password, the worker reaching the server through TLS."""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.services import (
    BIN,
    ROOT,
    Api,
    Postgres,
    end_all_in,
    environment,
    free_port,
    service,
    tls_proxy,
    until,
)
from tests.system.browser import Page, browsing
from tests.system.conftest import LOGS

pytestmark = pytest.mark.system

SECRET = "lab:s3cret"
BUILD = "build/digits-clip"
PIPELINE = "pipeline/digits-clip"
HAS_PASSWORD = pytest.mark.parametrize("up", ["postgresql"], indirect=True, scope="module")


@dataclass
class Up:
    """What runs, as `tarmac up --json` prints it: `pids` has a process id per part."""

    api: Api
    pages: str
    pids: dict[str, int]
    starters: list[subprocess.Popen[bytes]]
    project: Path
    env: dict[str, str]
    secret: str | None

    def refreshed(self, part: str) -> int | None:
        """The process id of the part that was started again after the first; None while there is none."""
        words = {"server": "flows.operate.serve", "worker": "worker"}[part]
        for starter in self.starters:
            for child in psutil.Process(starter.pid).children():
                with suppress(psutil.NoSuchProcess):  # or a zombie
                    if words in child.cmdline() and child.pid != self.pids[part]:
                        return child.pid
        return None


@pytest.fixture(scope="module")
def project(folder: Path) -> Iterator[Path]:
    """A folder as a user has it, with one config."""
    path = folder / "up"
    (path / "configs").mkdir(parents=True)
    shutil.copy(ROOT / "configs/digits-clip.yaml", path / "configs")
    subprocess.run([BIN / "tarmac", "example", "digits"], cwd=path, check=True, timeout=120)
    yield path
    end_all_in(path)


def _unit(name: str) -> list[str]:
    """The command of a systemd unit in deploy/, with this environment's programs."""
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    [command] = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    return [word.replace("%h/tarmac/.venv/bin", str(BIN)) for word in shlex.split(command)]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.proof)])
def up(
    request: pytest.FixtureRequest, folder: Path, project: Path, pytestconfig: pytest.Config
) -> Iterator[Up]:
    """Server, pages, deployments and worker, all up."""
    port, name = free_port(), request.param
    env = {**environment(folder / f"up-{name}", port), "PYTHONUNBUFFERED": "1"}
    shutil.rmtree(folder / f"up-{name}")  # the server makes it
    secret, api_url = None, env["PREFECT_API_URL"]
    del env["PREFECT_SERVER_UI_API_URL"]
    if name == "sqlite":
        del env["PREFECT_API_URL"]
        commands = {"up": [str(BIN / "tarmac"), "up", "--port", str(port), "--json"]}
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        secret = env["PREFECT_SERVER_API_AUTH_STRING"] = SECRET
        env["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = postgres.url
        units = ("tarmac-worker", "tarmac-server")  # in the wrong order: the worker waits
        commands = {unit: [*_unit(f"{unit}.service"), "--json"] for unit in units}
    with ExitStack() as stack:
        outputs, starters, changes = [], [], dict[str, dict[str, str]]()
        if secret is not None:
            proxy, certificate = stack.enter_context(tls_proxy(port, folder))
            url = f"https://127.0.0.1:{proxy}/api"
            changes["tarmac-worker"] = {"PREFECT_API_URL": url, "PREFECT_API_SSL_CERT_FILE": str(certificate)}
        for part, command in commands.items():
            errors, output = (folder / f"{name}-{part}.{kind}" for kind in ("log", "json"))
            pytestconfig.stash.setdefault(LOGS, []).append(errors)
            words = ["sh", "-c", f"cd {project} && exec {shlex.join(command)} >{output}"]
            starters.append(stack.enter_context(service(words, errors, {**env, **changes.get(part, {})})))
            outputs.append(output)
        api = Api(api_url)
        if secret is not None:
            api.http.auth = tuple(secret.split(":"))

        def printed() -> bool:
            for starter in starters:
                assert starter.poll() is None, "it has ended"
            return all(output.exists() and output.read_text() for output in outputs)

        until("tarmac up", printed, 180)
        facts = [json.loads(output.read_text()) for output in outputs]
        pids = {part: pid for fact in facts for part, pid in fact["processes"].items()}
        pages = next(fact["pages"] for fact in facts if fact["pages"])
        yield Up(api, pages, pids, starters, project, env, secret)


def test_the_server_is_well_and_has_tarmacs_settings(up: Up) -> None:
    assert up.api.is_up()
    settings = up.api.get("/admin/settings")["server"]
    assert settings["concurrency"]["lease_storage"].endswith("lease_storage.filesystem")
    assert not settings["analytics_enabled"]
    vacuum = settings["services"]["db_vacuum"]
    kept = vacuum["event_retention_overrides"]
    assert kept == {"tarmac.flow-run.pulse": "PT1H"}, "a week of pulses is 0.6 GB per running flow"
    assert "flow_runs" in vacuum["enabled"] and vacuum["retention_period"] == "P1Y"
    offered = httpx.get(f"{up.api.ui}/ui-settings", trust_env=False, auth=up.api.http.auth).json()
    assert offered["available_uis"] == ["v1"], "the other pages ask a host outside"
    database = Path(up.env["PREFECT_HOME"]) / "prefect.db"
    if is_sqlite := database.exists():
        assert database.stat().st_mode & 0o077 == 0, "others can read it"
        assert database.parent.stat().st_mode & 0o077 == 0, "the folder is ours, too"
    assert is_sqlite == ("PREFECT_SERVER_DATABASE_CONNECTION_URL" not in up.env)
    if up.secret is not None:
        assert httpx.get(f"{up.api.url}/flows/count", trust_env=False).status_code == 401


def test_a_deployment_runs_from_its_worker(up: Up) -> None:
    started = up.api.start(BUILD)
    assert started.status_code == 201, started.text
    up.api.completed(started.json()["id"], 240)
    assert (up.project / "data/digits/current/manifest.json").exists()
    assert {one["name"] for one in up.api.filter("automations")} >= {"tarmac-zombies", "tarmac-take-up"}


def test_the_backup_of_a_server_at_work_has_its_flow_runs(up: Up, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    command = [BIN / "tarmac", "up", "--backup", copy, "--json"]
    done = subprocess.run(command, cwd=up.project, env=up.env, capture_output=True, text=True, timeout=120)
    if up.secret is not None:
        assert done.returncode == 2 and "pg_dump" in json.loads(done.stdout)["error"]
        return
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = {name for (name,) in database.execute("SELECT name FROM flow_run")}
    assert "digits-clip · build" in names


def test_a_dataset_that_grows_old_is_an_event(up: Up) -> None:
    """No flow run has to be at work for that."""
    config = up.project / "configs/digits-clip.yaml"
    text = config.read_text()
    config.write_text(text + 'schedule: {cron: "0 2 * * *", fresh_within: 1s}\n')
    asked = {"filter": {"event": {"name": ["tarmac.dataset.stale"]}}}
    try:
        [event] = until(
            "the event", lambda: up.api.ask("POST", "/events/filter", asked).json()["events"], 150
        )
    finally:
        config.write_text(text)
    assert event["resource"]["prefect.resource.id"] == "tarmac.dataset.digits-clip"
    assert "schedule.fresh_within is 1.0 s" in event["payload"]["cause"]


@pytest.fixture(scope="module")
def page(chromium: str, folder: Path, up: Up) -> Iterator[Page]:
    place = folder / f"browser-{up.api.ui.rpartition(':')[2]}"
    place.mkdir()
    with browsing(chromium, place, up.env) as page:
        yield page


def _log_in(up: Up, page: Page, secret: str) -> None:
    """As a person does on Prefect's pages; and to Tarmac's, whose question is a dialog of the browser."""
    page.open(f"{up.api.ui}/", expecting="Login")
    page.evaluate("document.querySelector('input').focus()")
    page.call("Input.insertText", text=secret)
    page.click("Login")
    page.shows("Dashboard")
    token = base64.b64encode(secret.encode()).decode()
    page.call("Network.enable")
    page.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {token}"})


def test_its_pages_open_in_the_browser(up: Up, page: Page) -> None:
    if up.secret is not None:
        _log_in(up, page, up.secret)
    page.open(f"{up.api.ui}/", expecting="Dashboard")
    page.open(f"{up.api.ui}/deployments", expecting="digits-clip")
    assert page.evaluate("document.cookie + location.pathname") == "/deployments", "not the V1 pages"
    made = subprocess.run(
        [BIN / "tarmac", "look", "data/digits"], cwd=up.project, env=up.env, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    page.open(f"{up.pages}/", expecting="data/digits/look.html")
    page.click("data/digits/look.html", expecting="1,797")
    page.open(f"{up.pages}/data/digits/current/manifest.json", expecting="no page here")


@HAS_PASSWORD
def test_the_pages_ask_for_the_servers_password(up: Up) -> None:
    answer = httpx.get(f"{up.pages}/data/digits/look.html", trust_env=False)
    assert answer.status_code == 401


def test_what_is_killed_is_started_again(up: Up) -> None:
    for part in ("server", "worker"):
        psutil.Process(up.pids[part]).kill()
        up.pids[part] = until(f"another {part}", lambda part=part: up.refreshed(part), 30)
    until("the server", up.api.is_up, 90)
    started = up.api.start(BUILD)
    assert started.status_code == 201, started.text
    up.api.completed(started.json()["id"], 240)


@pytest.mark.proof
def test_two_projects_on_one_server_run_their_own(up: Up, tmp_path: Path) -> None:
    """Each on its own worker and its own data, also what has the same name; the end of one ends nothing of the
    other's."""
    config = (up.project / "configs/digits-clip.yaml").read_text()
    other = tmp_path / "other"
    (other / "configs").mkdir(parents=True)
    (other / "configs/other.yaml").write_text(config.replace("name: digits-clip", "name: other"))
    shutil.copytree(up.project / "data/raw", other / "data/raw")
    command = [str(BIN / "tarmac"), "up", "--json", "--port", up.api.ui.rpartition(":")[2]]
    with service(command, other / "up.json", up.env) as process:

        def is_up() -> bool:
            said = (other / "up.json").read_text()
            assert process.poll() is None, said
            return '"ok": true' in said

        until("the other project", is_up, 120)
        lines = (other / "up.json").read_text().splitlines()
        facts = json.loads(next(line for line in lines if line.startswith("{")))
        assert list(facts["processes"]) == ["worker"]
        assert facts["pages"] != up.pages
        assert {"build/other", "verify/other", "evaluate/other", "doctor/other"} <= set(facts["deployments"])
        builds = {"up": BUILD, "other": "build/other"}
        started = [(folder, up.api.start(build)) for folder, build in [*builds.items()] * 3]
        for folder, answer in started:
            assert f" {folder} " in _worker_of(up.api, answer)
        for folder in builds:
            checked = up.api.start(f"verify/{folder}", dataset="data/digits", level="quick")
            assert f" {folder} " in _worker_of(up.api, checked)
        assert (other / "data/digits/current/manifest.json").exists()

        changes = ["train.checkpoint_every=5000", "evaluate.every=5000", "loader.workers=0"]
        training = up.api.start(PIPELINE, overrides={"steps": 100_000, "set": changes}).json()["id"]
        until("the training", lambda: _processes(up.project, "tasks.training.rank"), 240)
        worker = psutil.Process(facts["processes"]["worker"])
        if up.secret is None:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        else:
            process.kill()  # nothing of it is left to end what it has started
        assert not psutil.wait_procs([worker], timeout=30)[1], "the worker outlives its starter"
        run = up.api.get(f"/flow_runs/{training}")
        assert (run["state_type"], run["run_count"]) == ("RUNNING", 1)
        up.api.ask("POST", f"/flow_runs/{training}/set_state", {"state": {"type": "CANCELLING"}})
        assert up.api.finished(training, 120)["state_type"] == "CANCELLED"
    assert up.api.is_up()


def _worker_of(api: Api, started: httpx.Response) -> str:
    """The name of the worker that has run what was started to a good end."""
    done = api.completed(started.raise_for_status().json()["id"], 240)
    return str(done["labels"]["prefect.worker.name"])


def test_a_second_server_at_the_same_place_is_refused(up: Up, tmp_path: Path) -> None:
    port = up.api.ui.rpartition(":")[2]
    done = subprocess.run(
        [BIN / "tarmac", "up", "--only", "server", "--port", port],
        cwd=tmp_path,
        env=up.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "a Prefect server answers there already" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@HAS_PASSWORD
def test_without_the_password_nothing_is_started(up: Up) -> None:
    env = {name: value for name, value in up.env.items() if not name.endswith("AUTH_STRING")}
    port = up.api.ui.rpartition(":")[2]
    done = subprocess.run(
        [BIN / "tarmac", "up", "--port", port],
        cwd=up.project,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "set PREFECT_API_AUTH_STRING to the server's user:password" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_what_was_started_and_nothing_else(up: Up) -> None:
    """Also the flow run that a killed worker has left. A training goes on, and so does a program that
    somebody else has started in the same folder."""
    changes = ["train.checkpoint_every=5000", "evaluate.every=5000", "loader.workers=0"]
    started = up.api.start(PIPELINE, overrides={"steps": 100_000, "set": changes})
    assert started.status_code == 201, started.text
    training = until("the training", lambda: _processes(up.project, "tasks.training.rank"), 240)
    with service(["sleep", "600"], up.project / "bystander.log", up.env) as bystander:
        began = _descendants(up)
        [engine] = [process for process in began if "prefect.engine" in process.cmdline()]
        psutil.Process(up.pids["worker"]).kill()
        until("another worker", lambda: up.refreshed("worker"), 30)
        assert engine.is_running(), "the flow run, which now is nobody's child, is gone"
        began |= _descendants(up)
        for starter in up.starters:
            starter.send_signal(signal.SIGINT if len(up.starters) == 1 else signal.SIGTERM)
        assert [starter.wait(60) for starter in up.starters] == [0] * len(up.starters)
        _, left = psutil.wait_procs(began, timeout=10)
        assert not left, [process.cmdline() for process in left]
        assert not up.api.is_up()
        assert bystander.poll() is None
        assert all(process.is_running() for process in training)
    end_all_in(up.project)


def _descendants(up: Up) -> set[psutil.Process]:
    """All that the commands have started, and they themselves."""
    starters = [psutil.Process(starter.pid) for starter in up.starters]
    return {process for starter in starters for process in (starter, *starter.children(recursive=True))}


def _processes(folder: Path, module: str) -> list[psutil.Process]:
    """The processes of a module that work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if module in process.cmdline() and any(str(folder) in word for word in process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
