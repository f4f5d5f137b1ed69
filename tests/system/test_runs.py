"""What runs of a real worker leave on Prefect's server and show on its pages, in a real browser: names, states,
pages, logs, progress, forms; and whom a page asks."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tasks.core.child import LAST_LINES
from tests.services import Api, crowding, until
from tests.system.browser import Page
from tests.system.conftest import NIGHTLY, ONE_CLICK, QUICK, STAGES, STEPS, Run, Watched, config_of

pytestmark = pytest.mark.system

LOSING = """\
name: losing
dataset:
  output: data/losing
  modality: image_text
  source: {kind: table, path: data/raw/digits/losing.csv, image: file, caption: caption}
  shard: {samples: 1}
"""
DEFECT = """\
import os, sys, traceback
if "tasks.core.child" in sys.orig_argv:
    for number in range(30):
        print("line", number)
    try:
        raise LookupError("a defect")
    except LookupError:
        traceback.print_exc()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(1)
"""


@pytest.fixture(scope="module")
def losing(api: Api, worker: int, project: Path, run: Run) -> Iterator[Path]:
    """The raw table of a deployed config with 300 samples in as many shards, built once."""
    table = project / "data/raw/digits/losing.csv"
    _cut(table, 300)
    with config_of(project, run, "losing", LOSING):
        built = api.completed(api.start("build/losing").json()["id"], 240)
        assert built["state_name"] == "Completed"
        yield table


def _cut(table: Path, samples: int) -> None:
    """Leave the first samples of the digits in the table."""
    lines = (table.parent / "captions.csv").read_text().splitlines()
    table.write_text("\n".join(lines[: samples + 1]) + "\n")


def test_a_flow_run_is_named_and_tagged(one_click: Watched, api: Api) -> None:
    run = api.get(f"/flow_runs/{one_click.id}")
    identity = _record(one_click)["id"]
    assert run["name"] == f"digits-clip · {identity[:6]} · pipeline"
    assert {"tarmac", "digits-clip", identity} <= set(run["tags"])
    assert run["state_name"] == "Completed"
    assert re.match(r"Zero-shot accuracy 0\.\d+ \(0\.\d+ to ", run["state"]["message"])


def _record(one_click: Watched) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((one_click.run / "run.json").read_text())
    return found


def test_a_run_has_a_page_with_picture_tables_and_links(page: Page, one_click: Watched, api: Api) -> None:
    entry = api.page_of(one_click.id)
    page.open(f"{api.ui}/artifacts/artifact/{entry['id']}", expecting="Zero-shot accuracy")
    for text in ("1,797 samples gained", "Loader", "samples/s", "Mean accuracy per class"):
        page.shows(text)
    sizes = page.evaluate("[...document.querySelectorAll('main img, img')].map(one => one.naturalWidth)")
    assert max(sizes) == 520, "the loss curve is not drawn"
    links = page.evaluate("[...document.querySelectorAll('a')].map(one => one.href)")
    for end in ("/report.html", "/look.html"):
        [target] = [link for link in links if link.endswith(end)]
        page.open(target, expecting="digits")


def test_the_runs_page_names_the_run_and_its_tasks(page: Page, api: Api, one_click: Watched) -> None:
    name = api.get(f"/flow_runs/{one_click.id}")["name"]
    page.open(f"{api.ui}/runs/flow-run/{one_click.id}", expecting=name)
    page.shows("Completed")
    page.click("Task Runs", expecting=f"{len(STAGES)} Task runs")
    for stage in STAGES:
        page.shows(f"{stage}-")


def test_the_runs_page_leads_to_its_artifacts(page: Page, api: Api, one_click: Watched) -> None:
    page.open(f"{api.ui}/runs/flow-run/{one_click.id}", expecting="Artifacts")
    page.click("Artifacts")
    for stage in one_click.progress:
        page.shows(f"{stage}-{one_click.id[:8]}")
    page.click(f"train-{one_click.id[:8]}")
    page.shows("Progress: 100%")
    report = api.page_of(one_click.id)
    page.open(f"{api.ui}/artifacts/artifact/{report['id']}", expecting="accuracy")


def test_the_deployments_page_says_what_they_do(page: Page, api: Api, deployed: object) -> None:
    api.planned_runs(NIGHTLY)
    page.open(f"{api.ui}/deployments", expecting="pipeline")
    page.shows("digits-clip")
    identity = api.deployment(NIGHTLY)["id"]
    page.open(f"{api.ui}/deployments/deployment/{identity}", expecting="Upcoming")
    page.click("Upcoming", expecting="02:00:00 AM")  # which is not shown first once there are runs
    page.click("Description", expecting="only what changed is redone")


@pytest.mark.proof
def test_a_run_is_started_from_the_form(
    page: Page, api: Api, one_click: Watched, project: Path, run: Run
) -> None:
    """A config whose one evaluation fits the few steps that are typed into the form, and that measures no
    loader."""
    text = (project / "configs/digits-clip.yaml").read_text()
    for old, new in {
        "name: digits-clip": "name: form",
        "every: 200": f"every: {STEPS}",
        "workers: auto, prefetch: auto": "workers: 0, prefetch: 2",
        "mode: offline": "mode: disabled",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    with config_of(project, run, "form", text):
        _started_from_the_form(page, api)


def _started_from_the_form(page: Page, api: Api) -> None:
    identity = api.deployment("pipeline/form")["id"]
    page.open(f"{api.ui}/deployments/deployment/{identity}/run", expecting="Learning rate")
    page.type("Steps", str(STEPS))

    def submitted() -> list[dict[str, Any]]:
        found = api.runs_of("pipeline/form")
        if not found:
            page.click("Submit")  # which a page that is still drawn forgets
        return found

    [started] = until("the run of the form", submitted, 60, pause_s=5)
    assert started["parameters"]["config"] == "configs/form.yaml"
    assert started["parameters"]["overrides"]["steps"] == STEPS
    api.completed(started["id"], 240)
    page.open(f"{api.ui}/runs/flow-run/{started['id']}", expecting="Completed")


def test_the_doctor_examines_a_run_at_a_click(one_click: Watched, api: Api) -> None:
    identity = _record(one_click)["id"]
    done = api.completed(api.start("doctor/project", run=identity[:6]).json()["id"], 120)
    assert done["name"] == f"digits-clip · {identity[:6]} · doctor"
    assert done["state"]["message"] == "doctor: succeeded; nothing is wrong"
    entry = api.page_of(done["id"])
    assert entry["key"] == f"doctor-{identity}" and "VERDICT" in entry["data"]
    assert "tarmac.run" not in done["labels"], "to cancel it would end the run"


def test_nothing_to_do_is_called_unchanged(losing: Path, api: Api) -> None:
    assert api.completed(api.start("build/losing").json()["id"], 120)["state_name"] == "Unchanged"


@pytest.mark.proof
def test_of_the_starts_that_were_missed_only_the_newest_does_anything(
    losing: Path, api: Api, worker: int
) -> None:
    found = api.deployment("build/losing")
    schedules = f"/deployments/{found['id']}/schedules"
    os.kill(worker, signal.SIGSTOP)
    often = {"schedule": {"interval": 10}, "active": True, "parameters": {"rehash": True}}
    [made] = api.ask("POST", schedules, [often]).raise_for_status().json()

    def waiting() -> list[str]:
        runs = api.planned_runs("build/losing")
        return [one["id"] for one in runs if one["state_name"] == "Late"]

    try:
        late = until("missed starts", lambda: found if len(found := waiting()) > 3 else None, 180)
    finally:
        os.kill(worker, signal.SIGCONT)
    until("the worker", lambda: not set(late) & set(waiting()), 60)
    api.ask("DELETE", f"{schedules}/{made['id']}").raise_for_status()
    *_, newest = runs = [api.completed(one["id"], 240) for one in api.planned_runs("build/losing")]
    older = [one for one in runs if one["id"] in late[:-1]]
    assert len(older) >= 3 and {one["state_name"] for one in older} == {"Superseded"}
    assert newest["state_name"] == "Unchanged"
    assert re.search("its schedule was due again at .* UTC", older[0]["state"]["message"])


def test_a_name_that_a_person_types_stays(losing: Path, api: Api) -> None:
    found = api.deployment("build/losing")
    body = {"parameters": found["parameters"], "name": "before the move"}
    answer = api.ask("POST", f"/deployments/{found['id']}/create_flow_run", body)
    done = api.completed(answer.raise_for_status().json()["id"], 120)
    assert done["name"] == "before the move"
    assert {"tarmac", "losing"} <= set(done["tags"])


def test_shards_cost_no_tasks(losing: Path, api: Api, project: Path) -> None:
    [run, *_] = api.runs_of("build/losing")
    manifest = json.loads((project / "data/losing/current/manifest.json").read_text())
    assert sum(split["shards"] for split in manifest["splits"].values()) == 300
    assert len(api.ended_tasks(run["id"], 4)) == 4


def test_orchestration_takes_five_seconds_at_most(
    one_click: Watched, api: Api, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a flow run lasts beyond its own stages, on a server that runs."""
    run = api.get(f"/flow_runs/{one_click.id}")

    def durations() -> dict[str, float] | None:
        said = re.findall(r"^(\w+): .* \((\d+\.\d) s\)$", api.logs(one_click.id), re.MULTILINE)
        found = {stage: float(seconds) for stage, seconds in said}
        return found if set(found) == set(STAGES) else None

    took = until("a line of each stage in the log", durations, 60)
    overhead = run["total_run_time"] - sum(took.values())
    record_property("orchestration_s", round(overhead, 2))
    with capsys.disabled():
        print(f"\noverhead {overhead:.1f} s of {run['total_run_time']:.1f} s, {len(took)} stages")
    assert overhead < 5 * crowding()


@pytest.mark.proof
def test_a_loss_waits_for_a_persons_approval(losing: Path, page: Page, api: Api, project: Path) -> None:
    before = os.readlink(project / "data/losing/current")
    _cut(losing, 200)
    run_id = api.start("build/losing").json()["id"]
    until("the question", lambda: api.get(f"/flow_runs/{run_id}")["state_name"] == "NeedsApproval", 120)
    waiting = api.get(f"/flow_runs/{run_id}")
    assert waiting["state_type"] == "PAUSED"
    question = waiting["state"]["message"].splitlines()[0]
    assert question.startswith("100 of the 300 samples of version ")
    assert question.endswith("or accept the loss: accept_loss in the form behind Resume")
    [task] = api.ended_tasks(run_id, 1)
    assert (task["state_type"], task["state_name"]) == ("COMPLETED", "NeedsApproval")
    assert os.readlink(project / "data/losing/current") == before
    [table] = [entry for entry in api.artifacts(run_id) if entry["type"] == "table"]
    rows = json.loads(table["data"])
    assert len(rows) == 20 and all(row["what"] == "gone" and row["sample"].endswith(".png") for row in rows)
    assert "  100 gone, such as digit_" in waiting["state"]["message"]
    page.open(f"{api.ui}/runs/flow-run/{run_id}", expecting="NeedsApproval")
    page.click("Resume", expecting="Accept the loss")
    page.shows("100 of the 300 samples")
    page.evaluate("document.querySelector('.p-modal .p-toggle__control').click()")
    page.click("Submit")
    assert api.completed(run_id, 120)["state_name"] == "Completed"
    assert os.readlink(project / "data/losing/current") != before


@pytest.mark.proof
def test_a_declined_loss_fails_and_names_the_field(losing: Path, api: Api, project: Path) -> None:
    before = os.readlink(project / "data/losing/current")
    _cut(losing, 100)
    run_id = api.start("build/losing").json()["id"]
    until("the question", lambda: api.get(f"/flow_runs/{run_id}")["state_name"] == "NeedsApproval", 120)
    api.ask("POST", f"/flow_runs/{run_id}/resume", {"run_input": {"accept_loss": False}}).raise_for_status()
    done = api.finished(run_id, 120)
    first = done["state"]["message"].splitlines()[0]
    assert done["state_type"] == "FAILED"
    assert re.match(r"build failed: the loss was declined: [12]00 of the [23]00 samples .* are gone", first)
    assert first.endswith("in the form: accept_loss") and "--accept-loss" not in first
    assert os.readlink(project / "data/losing/current") == before
    entry = api.page_of(run_id)
    assert entry["key"] == "dataset-losing" and entry["description"] == first
    assert "build failed: the loss was declined" in entry["data"]
    log = api.whole_log(run_id)
    assert first in log and "Traceback" not in log
    _cut(losing, 200)


@pytest.mark.proof
def test_a_killed_child_is_a_warning_and_is_tried_again(losing: Path, api: Api) -> None:
    _cut(losing, 400)
    run_id = api.start("build/losing").json()["id"]
    child = until("the build's process", lambda: _child(losing), 120, pause_s=0.02)
    child.send_signal(signal.SIGKILL)
    api.completed(run_id, 240)
    says = "build was killed by SIGKILL (is memory short?); again in 5 s, 2 tries left"
    api.logged(run_id, says, level=logging.WARNING)


def _child(table: Path) -> psutil.Process | None:
    """The process that builds in the project of this table."""
    for process in psutil.process_iter():
        try:
            if "tasks.dataset.building.builder:build" in process.cmdline() and table.is_relative_to(
                process.cwd()
            ):
                return process
        except psutil.Error:
            continue
    return None


@pytest.mark.proof
def test_a_defect_of_a_child_is_in_the_log_with_its_last_lines(
    losing: Path, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    found = api.deployment("build/losing")
    body = {"parameters": found["parameters"], "job_variables": {"env": {"PYTHONPATH": str(tmp_path)}}}
    answer = api.ask("POST", f"/deployments/{found['id']}/create_flow_run", body)
    run_id = answer.raise_for_status().json()["id"]
    done = api.finished(run_id, 120)
    lines = done["state"]["message"].splitlines()
    assert lines[0] == "build failed: tasks.dataset.building.builder:build ended with exit code 1"
    assert len(lines) == 1 + LAST_LINES
    assert "LookupError: a defect" in lines[-1]
    api.logged(run_id, done["state"]["message"], level=logging.ERROR)


@pytest.mark.proof
def test_a_mistake_in_the_form_fails_at_its_start_and_names_the_field(
    losing: Path, api: Api, project: Path, run: Run
) -> None:
    """A mistake that the form itself cannot know of."""
    unknown = {"set": ["dataset.shrad.samples=2"]}
    with config_of(project, run, "gone", LOSING.replace("losing", "gone")):
        (project / "configs/gone.yaml").unlink()
        gone = api.start("build/gone")
        api.finished(gone.raise_for_status().json()["id"], 240)
    begun = {
        ("config", "gone · build"): gone,
        ("overrides.set", "losing · build"): api.start("build/losing", overrides=unknown),
        ("run", "nobody-knows-it · evaluate"): api.start("evaluate/project", run="nobody-knows-it"),
        ("dataset", "nowhere · verify"): api.start("verify/project", dataset="data/nowhere"),
    }
    for (field, name), answer in begun.items():
        ended = api.finished(answer.raise_for_status().json()["id"], 240)
        assert (ended["state_type"], ended["name"]) == ("FAILED", name)
        first = ended["state"]["message"].splitlines()[0]
        assert first.startswith(("start failed: ", "verify failed: ")) and first.endswith(f"form: {field}")
        log = api.whole_log(ended["id"])
        assert first in log and "Traceback" not in log


@pytest.mark.proof
def test_retry_redoes_only_what_is_missing(one_click: Watched, api: Api, run: Run) -> None:
    """The report cannot be written; once it can, the same flow run completes without training again."""
    report = one_click.run / "report.html"
    report.unlink()
    report.mkdir()
    started = api.start(ONE_CLICK, overrides=QUICK)
    failed = api.finished(started.json()["id"], 240)
    assert failed["state_type"] == "FAILED"
    assert failed["state"]["message"].startswith("report failed: "), failed["state"]["message"]
    entry = api.page_of(failed["id"])
    assert "What went wrong" in entry["data"] and "Zero-shot accuracy" in entry["data"]
    report.rmdir()
    before = _record(one_click)["attempts"]
    again = run("prefect", "flow-run", "retry", failed["id"])
    assert again.returncode == 0, again.stderr
    until("the second try", lambda: api.get(f"/flow_runs/{failed['id']}")["run_count"] == 2, 60)
    api.completed(failed["id"], 240)
    assert report.is_file()
    assert _record(one_click)["attempts"] == before
    api.logged(failed["id"], "build: up to date", "train: up to date", "tune: kept")


def test_no_page_asks_anybody_outside(page: Page, one_click: Watched, api: Api) -> None:
    page.requests.clear()
    deployment = api.deployment(ONE_CLICK)["id"]
    run_page = f"{api.ui}/runs/flow-run/{one_click.id}"
    for path, text in (
        ("dashboard", "Flow Runs"),
        ("runs", "digits-clip"),
        ("deployments", "digits-clip"),
        (f"deployments/deployment/{deployment}", "Upcoming"),
        (f"deployments/deployment/{deployment}/run", "Learning rate"),
        ("automations", "tarmac"),
        ("events", "Event"),
    ):
        page.open(f"{api.ui}/{path}", expecting=text)
    for entry in api.artifacts(one_click.id):
        page.open(f"{api.ui}/artifacts/artifact/{entry['id']}", expecting=entry["key"])
    page.open(run_page, expecting="Task Runs")
    for tab in ("Task Runs", "Artifacts", "Details", "Parameters", "Logs"):
        page.click(tab)
    time.sleep(2)  # what a page asks late
    asked = {urlsplit(url).hostname for url in page.requests if urlsplit(url).scheme not in ("data", "blob")}
    assert len(page.requests) > 100
    assert asked == {"127.0.0.1"}


def test_the_nightly_rebuild_completes(api: Api, worker: int, project: Path) -> None:
    started = api.start(NIGHTLY)
    assert started.status_code == 201, started.text
    api.completed(started.json()["id"], 240)
    assert (project / "data/digits/current/manifest.json").exists()
    names = {run["name"].rpartition("-")[0] for run in api.ended_tasks(started.json()["id"], 4)}
    assert names == {"build", "verify", "assess", "publish"}


def test_the_forms_values_arrive(one_click: Watched, api: Api) -> None:
    record = _record(one_click)
    assert record["identity"]["steps"] == STEPS
    assert record["state"] == "succeeded"
    results = sorted(path.name for path in one_click.run.glob("eval_results/*.json"))
    assert results == ["step_20.json", "step_40.json"]
    assert api.get(f"/flow_runs/{one_click.id}")["parameters"]["overrides"] == QUICK


def test_progress_grew_in_the_ui(one_click: Watched) -> None:
    assert {"train", "evaluate"} <= set(one_click.progress)
    for stage, seen in one_click.progress.items():
        assert seen == sorted(seen), f"{stage} went back: {seen}"
        assert seen[-1] == 100, f"{stage} ended at {seen[-1]}"
    assert any(len(seen) > 1 for seen in one_click.progress.values()), one_click.progress


def test_a_run_has_few_coarse_tasks(one_click: Watched, api: Api) -> None:
    runs = api.ended_tasks(one_click.id, len(STAGES))
    assert sorted(run["name"].rpartition("-")[0] for run in runs) == sorted(STAGES)
    assert {run["state_type"] for run in runs} == {"COMPLETED"}


def test_a_run_leaves_its_page(one_click: Watched, api: Api, project: Path) -> None:
    markdown = api.page_of(one_click.id)
    report = one_click.run / "report.html"
    assert report.is_file() and str(report.relative_to(project)) in markdown["data"]
    assert markdown["key"] == f"run-{_record(one_click)['id']}"
    assert "accuracy" in markdown["data"]
    kinds = {entry["type"] for entry in api.artifacts(one_click.id)}
    assert {"progress", "table", "markdown"} <= kinds


@pytest.mark.proof
def test_orchestration_of_a_terminals_run_costs_seconds(
    one_click: Watched, run: Run, api: Api, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another run from the terminal on the same server: all that is not a stage's own time is overhead."""
    once = f"train.steps={STEPS}", f"train.checkpoint_every={STEPS}", f"evaluate.every={STEPS}"
    changes = [f"--set={change}" for change in (*once, "train.seed=1", "loader.workers=0")]
    began = time.monotonic()
    done = run("tarmac", "run", "configs/digits-clip.yaml", "--json", *changes)
    wall = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    stages = {stage["stage"]: stage["seconds"] for stage in json.loads(done.stdout)["stages"]}
    assert set(stages) == set(STAGES)
    overhead = wall - sum(stages.values())
    record_property("orchestration_s", round(overhead, 2))
    with capsys.disabled():
        print(f"\norchestration {overhead:.1f} s of {wall:.1f} s; stages {stages}")
    assert 0 < overhead < 10 * crowding()
    completed = {"state": {"type": {"any_": ["COMPLETED"]}}}
    [last] = api.filter("flow_runs", flow_runs=completed, sort="END_TIME_DESC", limit=1)
    assert last["deployment_id"] is None, "the run of the terminal is not on the server"
