"""What a real server does by itself: dead runs are noticed and start again, and nobody else's are touched; what
was rebuilt is verified and trained on; failures reach a person."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.services import BIN, Api, until
from tests.system.conftest import Run
from tests.system.sleeper import sleeper
from tests.system.webhook import hearing

pytestmark = pytest.mark.system

LONG_S = 300


def states(api: Api, run_id: str) -> list[str]:
    """The names of the states that a flow run has had, oldest first."""
    found = api.get(f"/flow_run_states/?flow_run_id={run_id}")
    return [state["name"] for state in sorted(found, key=lambda state: state["timestamp"])]


def flow_runs(api: Api, flow: str) -> list[dict[str, Any]]:
    return api.filter("flow_runs", flows={"name": {"any_": [flow]}}, sort="START_TIME_DESC")


def register(api: Api, name: str, folder: Path, parameters: dict[str, Any]) -> None:
    flow_id = api.ask("POST", "/flows/", {"name": "sleeper"}).raise_for_status().json()["id"]
    body = {
        "name": name.partition("/")[2],
        "flow_id": flow_id,
        "entrypoint": f"{sleeper.fn.__module__}.sleeper",
        "work_pool_name": "tarmac",
        "tags": ["tarmac", "take-up"],
        "parameters": parameters,
        "job_variables": {"stream_output": False, "env": {"PYTHONPATH": str(ROOT)}},
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}],
    }
    api.ask("POST", "/deployments/", body).raise_for_status()


@pytest.fixture(scope="module")
def dying(
    deployed: object, api: Api, project: Path, worker: int, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Runs of two deployments, as Tarmac registers its own, that take their time while other tests work: one
    that dies in each start, one that cannot begin again after the first. Their ids."""
    place = tmp_path_factory.mktemp("place")
    register(api, "sleeper/dies", project, {"dies": True})
    register(api, "sleeper/lost", place, {"dies": True, "removes": str(place)})
    return {name: api.start(f"sleeper/{name}").raise_for_status().json()["id"] for name in ("dies", "lost")}


@pytest.fixture(scope="module")
def terminal(deployed: object, env: dict[str, str], project: Path) -> Iterator[Any]:
    """Starts a Python script beside the server, as a person would in a terminal; kills what is left."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(script: str) -> subprocess.Popen[bytes]:
        code = [sys.executable, "-c", script]
        process = subprocess.Popen(
            code, cwd=project, env={**env, "PYTHONPATH": str(ROOT)}, start_new_session=True
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()


OURS = (
    "from pathlib import Path; from flows.operate import start; "
    "start.flow('tests.system.sleeper:sleeper', Path('runs'), seconds={seconds}.0)"
)
FOREIGN = "from tests.system.sleeper import foreign; foreign({seconds}.0)"


@pytest.fixture(scope="module")
def bystanders(terminal: Any) -> list[subprocess.Popen[bytes]]:
    """A run of a terminal and a flow of somebody else, which last longer than any patience of an automation."""
    return [terminal(text.format(seconds=LONG_S)) for text in (OURS, FOREIGN)]


@pytest.fixture(scope="module")
def unnoticed(terminal: Any, api: Api) -> str:
    """The id of a terminal's run whose process was killed after its first pulse. Only the server can notice."""
    process = terminal(OURS.format(seconds=LONG_S + 1))

    def running() -> list[str]:
        found = flow_runs(api, "sleeper")
        return [
            run["id"]
            for run in found
            if run["parameters"].get("seconds") == LONG_S + 1 and run["state_type"] == "RUNNING"
        ]

    [run_id] = until("the run of the terminal", running, 180)
    pulse = {"resource": {"id": [f"prefect.flow-run.{run_id}"]}, "event": {"name": ["tarmac.flow-run.pulse"]}}
    until("its pulse", lambda: api.ask("POST", "/events/filter", {"filter": pulse}).json()["events"], 120)
    process.kill()
    return str(run_id)


@pytest.fixture(scope="module", autouse=True)
def begun_early(request: pytest.FixtureRequest) -> None:
    """Start first what takes minutes without work, for the tests of this file that will run; their tests look
    at it last."""
    wanted = {
        name for item in request.session.items if item.path == request.path for name in item.fixturenames
    }
    for name in ("dying", "bystanders", "unnoticed"):
        if name in wanted:
            request.getfixturevalue(name)


@pytest.mark.proof
def test_a_run_whose_folder_is_gone_fails_and_names_it(
    api: Api, worker: int, project: Path, env: dict[str, str], tmp_path: Path
) -> None:
    """It would begin in vain four times otherwise."""
    folder = tmp_path / "folder"
    (folder / "configs").mkdir(parents=True)
    text = (project / "configs/digits-chat.yaml").read_text().replace("name: digits-chat", "name: moved")
    (folder / "configs/moved.yaml").write_text(text)
    subprocess.run([BIN / "tarmac", "deploy"], cwd=folder, env=env, check=True, timeout=120)
    folder.rename(tmp_path / "elsewhere")
    started = api.start("build/moved").raise_for_status().json()["id"]
    ended = api.finished(started, 120)
    assert (ended["state_type"], ended["run_count"]) == ("FAILED", 0)
    says = f"start failed: the folder {folder} is not on {socket.gethostname()} (No such file or directory)"
    assert ended["state"]["message"].startswith(says)
    api.logged(started, says)
    assert "Traceback" not in api.whole_log(started)
    assert "Crashed" not in states(api, started)


@pytest.fixture
def heard(api: Api) -> Iterator[list[str]]:
    """The messages that reach the notification block custom-webhook/team."""
    with hearing(api) as heard:
        yield heard


def _automations_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return {one["name"]: one["state"] for one in json.loads(done.stdout)["automations"]}


def test_failures_reach_the_block_that_was_named(api: Api, worker: int, run: Run, heard: list[str]) -> None:
    unknown = run("tarmac", "deploy", "--notify", "custom-webhook/nobody")
    assert unknown.returncode == 2 and "no block custom-webhook/nobody" in unknown.stderr
    nowhere = run("tarmac", "deploy", "--notify-on", "failed")
    assert nowhere.returncode == 2 and "add --notify TYPE/NAME" in nowhere.stderr
    assert run("tarmac", "deploy", "--notify", "custom-webhook/team").returncode == 0
    again = _automations_of(run("tarmac", "deploy", "--json"))
    asked = {f"tarmac-{name}": again.get(f"tarmac-{name}") for name in ("failure", "stalled", "stale")}
    assert set(asked.values()) == {"unchanged"}, "it forgot the block"
    assert "tarmac-succeeded" not in again
    failed = api.start("evaluate/project", run="nobody-knows-it").json()["id"]
    assert api.finished(failed, 240)["state_type"] == "FAILED"
    [text] = until("the message", lambda: [one for one in heard if "nobody-knows-it" in one], 120)
    assert "Failed" in text and f"/runs/flow-run/{failed}" in text


@pytest.mark.proof
def test_a_poor_result_reaches_people(
    api: Api, worker: int, run: Run, heard: list[str], project: Path
) -> None:
    """The run ends well and misses what the config wants."""
    assert run("tarmac", "deploy", "--notify", "custom-webhook/team").returncode == 0
    wrong = run("tarmac", "deploy", "--notify-on", "stalled,success")
    assert (
        wrong.returncode == 2
        and "--notify-on: unknown kind 'success'; did you mean succeeded?" in wrong.stderr
    )
    done = _automations_of(run("tarmac", "deploy", "--notify-on", "stalled,succeeded,fell-short", "--json"))
    assert done["tarmac-failure"] == "removed" and done["tarmac-succeeded"] == "new"
    changes = ["train.checkpoint_every=60", "evaluate.every=60", "train.seed=11", "loader.workers=0"]
    changes += ["track.mode=disabled", "evaluate.at_least={zero_shot_top1: 1.01}"]
    started = api.start("pipeline/digits-clip", overrides={"steps": 60, "set": changes})
    flow_run = started.raise_for_status().json()["id"]
    folder = Path(
        until("its run", lambda: api.get(f"/flow_runs/{flow_run}")["labels"].get("tarmac.run"), 240)
    )
    api.completed(flow_run, 420)
    [text] = until("the message of its end", lambda: [one for one in heard if "is Completed" in one], 120)
    assert "Zero-shot accuracy" in text
    [text] = until("the message about its result", lambda: [one for one in heard if "fell short" in one], 120)
    assert "zero_shot_top1" in text and "is below 1.01 (evaluate.at_least)" in text
    named = {"event": {"prefix": ["tarmac.run."]}, "resource": {"id": [f"tarmac.run.{_id_of(folder)}"]}}
    found = api.ask("POST", "/events/filter", {"filter": named}).json()["events"]
    [evaluated] = [one for one in found if one["event"] == "tarmac.run.evaluated"]
    assert 0 < evaluated["payload"]["metrics"]["zero_shot_top1"] <= 1
    assert "tarmac.run.trained" in {one["event"] for one in found}
    assert len(heard) == 2, heard
    made = {"event": {"name": ["prefect.asset.materialization.succeeded"]}}
    assets = {
        one["resource"]["prefect.resource.id"]: one
        for one in api.ask("POST", "/events/filter", {"filter": made}).json()["events"]
    }
    checkpoint, evaluation = (f"tarmac://{kind}/digits-clip" for kind in ("checkpoint", "evaluation"))
    assert assets[checkpoint]["payload"]["step"] == 60
    assert (assets[checkpoint]["related"][0]["prefect.resource.id"]) == "tarmac://dataset/digits-clip"
    assert assets[evaluation]["payload"]["metrics"] == evaluated["payload"]["metrics"]
    assert assets[evaluation]["related"][0] == {
        "prefect.resource.id": checkpoint,
        "prefect.resource.role": "asset",
    }


def _id_of(folder: Path) -> str:
    return str(json.loads((folder / "run.json").read_text())["id"])


@pytest.fixture(scope="module")
def small(project: Path, run: Run, worker: int) -> Iterator[Path]:
    """A config with a dataset of its own that trains a few steps after each rebuild; its table of captions."""
    raw = project / "data/raw/small"
    raw.mkdir(parents=True)
    source = project / "data/raw/digits"
    lines = (source / "captions.csv").read_text().splitlines()
    table = raw / "captions.csv"
    table.write_text("\n".join([lines[0], *(f"../digits/{line}" for line in lines[1:401])]) + "\n")
    config = project / "configs/small.yaml"
    text = (project / "configs/digits-clip.yaml").read_text()
    for old, new in {
        "name: digits-clip": "name: small",
        "output: data/digits": "output: data/small",
        "data/raw/digits/captions.csv": "data/raw/small/captions.csv",
        "steps: 600": "steps: 10",
        "warmup: 50": "warmup: 2",
        "checkpoint_every: 200": "checkpoint_every: 10",
        "every: 200": "every: 10",
        "mode: offline": "mode: disabled",
        "workers: auto, prefetch: auto": "workers: 0, prefetch: 2",
        '{cron: "0 2 * * *"}': '{cron: "0 2 * * *", then: train}',
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    config.write_text(text)
    assert run("tarmac", "build", "configs/small.yaml").returncode == 0
    assert run("tarmac", "deploy", "configs/small.yaml").returncode == 0
    yield table
    config.unlink()
    assert run("tarmac", "deploy").returncode == 0


def rebuild(api: Api) -> dict[str, Any]:
    """A rebuild of the small dataset, after all its events have been told."""
    started = api.start("build/small").json()["id"]
    done = api.completed(started, 240)
    ended = {
        "resource": {"id": [f"prefect.flow-run.{started}"]},
        "event": {"name": ["tarmac.flow-run.stopped"]},
    }
    until(
        "its last event", lambda: api.ask("POST", "/events/filter", {"filter": ended}).json()["events"], 120
    )
    return done


@pytest.mark.proof
def test_a_rebuild_that_changed_something_is_verified_and_trained_on(
    api: Api, small: Path, project: Path
) -> None:
    until("the verification of the first version", lambda: len(_of_small(api, "verify/project")) == 1, 240)
    small.write_text("\n".join(small.read_text().splitlines()[:-3]) + "\n")
    rebuild(api)
    until("another verification", lambda: len(_of_small(api, "verify/project")) == 2, 240)
    [trained] = until("a training", lambda: api.runs_of("pipeline/small"), 240)
    [_, verified] = _of_small(api, "verify/project")
    current = (project / "data/small/current").resolve()
    assert verified["parameters"]["dataset"] == str(current)
    assert api.completed(verified["id"], 300)["name"] == f"small · {current.name} · verify"
    api.completed(trained["id"], 300)
    [record] = [json.loads(path.read_text()) for path in project.glob("runs/small-*/run.json")]
    assert record["state"] == "succeeded" and record["data"][0]["version"] == current.name

    rebuild(api)
    assert len(api.runs_of("pipeline/small")) == 1, "nothing had changed"
    assert len(_of_small(api, "verify/project")) == 2


def _of_small(api: Api, name: str) -> list[dict[str, Any]]:
    found = api.runs_of(name)
    return [run for run in found if "small" in str(run["parameters"])]


@pytest.mark.proof
def test_a_run_is_evaluated_by_the_start_of_its_id(api: Api, small: Path, project: Path) -> None:
    api.completed(api.start("pipeline/small").json()["id"], 300)
    [first, *_] = [json.loads(path.read_text()) for path in project.glob("runs/small-*/run.json")]
    started = api.start("evaluate/project", run=first["id"][:6]).json()["id"]
    api.completed(started, 300)
    api.logged(started, "1 of 1 results")


def test_what_is_not_sound_fails_with_its_findings_in_log_and_table(
    api: Api, small: Path, project: Path
) -> None:
    version = (project / "data/small/current").resolve()
    shard = version / "train/000000.tar"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2048])
    try:
        started = api.start("verify/project", dataset="data/small", level="quick").json()["id"]
        ended = api.finished(started, 240)
    finally:
        shard.write_bytes(whole)
    assert ended["state_type"] == "FAILED"
    assert "is not sound" in ended["state"]["message"].splitlines()[0]
    api.logged(started, "shard.truncated", "train/000000.tar")
    [table] = [entry for entry in api.artifacts(started) if entry["type"] == "table"]
    assert "shard.truncated" in table["data"]
    completed = api.start("verify/project", dataset="data/small", level="full").json()["id"]
    api.completed(completed, 240)


@pytest.mark.proof
def test_a_run_that_dies_unnoticed_is_marked(unnoticed: str, api: Api) -> None:
    until("Crashed", lambda: api.get(f"/flow_runs/{unnoticed}")["state_type"] == "CRASHED", 360)
    assert "It sent no sign of life" in api.get(f"/flow_runs/{unnoticed}")["state"]["message"]


@pytest.mark.proof
def test_a_run_that_always_dies_is_taken_up_three_times_and_given_up(api: Api, dying: dict[str, str]) -> None:
    dies = dying["dies"]
    until("its end", lambda: api.get(f"/flow_runs/{dies}")["state_type"] == "FAILED", 600)
    said = api.get(f"/flow_runs/{dies}")["state"]["message"]
    assert "crashed 4 times without getting further" in said and "SIGKILL" in said
    assert states(api, dies).count("Running") == 5, "the last start is the one that gives up"


@pytest.mark.proof
def test_a_run_that_cannot_begin_again_is_given_up(api: Api, dying: dict[str, str]) -> None:
    lost = dying["lost"]
    until("its end", lambda: api.get(f"/flow_runs/{lost}")["state_type"] == "FAILED", 600)
    assert states(api, lost).count("Running") == 1
    assert "before it could begin" in api.get(f"/flow_runs/{lost}")["state"]["message"]


@pytest.mark.proof
def test_a_terminal_run_and_a_foreign_flow_are_never_marked(
    bystanders: list[subprocess.Popen[bytes]], api: Api, dying: dict[str, str]
) -> None:
    for process in bystanders:
        assert process.wait(LONG_S + 60) == 0
    [foreign] = flow_runs(api, "foreign")
    [ours] = [run for run in flow_runs(api, "sleeper") if run["parameters"].get("seconds") == LONG_S]
    assert api.get(f"/flow_runs/{dying['dies']}")["state_type"] == "FAILED", "it was taken up once more"
    for run in (ours, foreign):
        assert run["total_run_time"] >= LONG_S
        assert states(api, run["id"]) == ["Pending", "Running", "Completed"]
