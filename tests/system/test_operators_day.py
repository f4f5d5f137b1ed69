"""One operator's day on Prefect's pages, in the order in which it happens, with one training.

The pages, the messages and `tarmac status` are asked at each station, and have to report the same. Each station
leaves a picture in the test's folder, so that a failure can be looked at.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.runs.folder import RunFolder
from tasks.runs.lives import read_lives
from tests.services import until
from tests.system.browser import Page, browsing
from tests.system.lab import Lab, checkpoints_of, record_of, step_of
from tests.system.webhook import hearing

pytestmark = pytest.mark.system
PIPELINE, BUILD = "pipeline/digits-clip", "build/digits-clip"
STEPS = 2400
"""Enough that a quick machine does not end the training before it is cancelled, as the test holds it meanwhile."""
TINY = {
    "workers: auto, prefetch: auto": "workers: 1, prefetch: 2",
    "batch_size: 64": "batch_size: 8",
    "checkpoint_every: 200": f"checkpoint_every: {STEPS}",
    "every: 200": f"every: {STEPS}",
    "mode: offline": "mode: disabled",
}
"""Changes of the example's config, so that the training is tiny."""
STALLED = re.compile(r"stalled for \d+ (s|min): ")


@dataclass(frozen=True)
class Day:
    """What an operator has before them: the project's services, a tab, and the team's messages."""

    lab: Lab
    page: Page
    heard: list[str]

    def shot(self, name: str) -> None:
        self.page.picture(self.lab.folder / "pictures" / f"{name}.png")

    def row_of(self, run: Path) -> dict[str, Any]:
        """What `tarmac status --json` reports about the run."""
        rows = json.loads(self.lab.tarmac("status", "--json").stdout)["runs"]
        return next(row for row in rows if row["run"] == run.name)

    def progress_of(self, flow_run: str) -> str:
        """The text of the training's progress on the page of the flow run."""
        texts = {one["key"]: str(one["description"]) for one in self.lab.api.artifacts(flow_run)}
        return texts.get(f"train-{flow_run[:8]}", "")

    def open_artifact(self, flow_run: str, key: str, expecting: str) -> None:
        """Open the newest artifact of this key from the flow run's page."""
        self.page.open(self.lab.address_of(flow_run), expecting="Artifacts")
        found = [one for one in self.lab.api.artifacts(flow_run) if one["key"] == key]
        newest = max(found, key=lambda one: str(one["created"]))
        self.page.open(f"{self.lab.api.ui}/artifacts/artifact/{newest['id']}", expecting=expecting)

    def message(self, *texts: str) -> str:
        """The first message with these texts, once it has come."""

        def look() -> str | None:
            return next((one for one in self.heard if all(text in one for text in texts)), None)

        return str(until(f"a message with {texts}", look, 240))


@pytest.fixture
def day(tmp_path: Path, chromium: str) -> Iterator[Day]:
    """A fresh project with the digits, started by `tarmac up`."""
    lab = Lab(tmp_path)
    config = lab.project / "configs/digits-clip.yaml"
    text = config.read_text()
    for old, new in TINY.items():
        assert old in text, old
        text = text.replace(old, new)
    config.write_text(text)
    (lab.project / "configs/rival.yaml").unlink()
    try:
        assert lab.tarmac("example", "digits").returncode == 0
        lab.start_all()
        with hearing(lab.api) as heard, browsing(chromium, tmp_path, dict(os.environ)) as page:
            assert lab.tarmac("deploy", "--notify", "custom-webhook/team").returncode == 0
            yield Day(lab, page, heard)
    finally:
        lab.close()


@pytest.mark.proof
def test_an_operators_day(day: Day) -> None:
    flow_run = _starts_by_the_form(day)
    run = _watches(day, flow_run)
    _is_told_of_a_stall(day, flow_run, run)
    _loses_worker_and_flow(day, flow_run, run)
    step = _cancels(day, flow_run, run)
    _retries(day, flow_run, run, step)
    _rebuilds_by_schedule(day)


def _starts_by_the_form(day: Day) -> str:
    """Type a wrong value, which is refused beside its field, then a right one; the flow run's id."""
    lab, page = day.lab, day.page
    identity = lab.api.deployment(PIPELINE)["id"]
    page.open(f"{lab.api.ui}/deployments/deployment/{identity}/run", expecting="Learning rate")
    page.type("Steps", "0")
    page.click("Submit", expecting="Validation failed for field 'overrides.steps'", of="button")
    page.shows("0 is less than the minimum of 1")
    day.shot("1-refused")
    assert lab.api.runs_of(PIPELINE) == [], "it was started all the same"
    page.open(f"{lab.api.ui}/deployments/deployment/{identity}/run", expecting="Learning rate")
    page.type("Steps", str(STEPS))

    def submitted() -> list[dict[str, Any]]:
        found = lab.api.runs_of(PIPELINE)
        if not found:
            page.click("Submit", of="button")  # which a page that is still drawn forgets
        return found

    [started] = until("the run of the form", submitted, 60, pause_s=5)
    assert started["parameters"]["overrides"]["steps"] == STEPS
    return str(started["id"])


def _watches(day: Day, flow_run: str) -> Path:
    """See on its page how far the training is; the run's folder."""
    run = day.lab.training_of(flow_run)
    until("its progress", lambda: f"/{STEPS:,} steps · loss" in day.progress_of(flow_run), 60)
    day.open_artifact(flow_run, f"train-{flow_run[:8]}", expecting="steps · loss")
    day.shot("2-progress")
    day.page.open(day.lab.address_of(flow_run), expecting=f"digits-clip · {_id_of(run)[:6]} · pipeline")
    day.shot("3-running")
    return run


def _is_told_of_a_stall(day: Day, flow_run: str, run: Path) -> None:
    """The loader's worker is stopped for real, and goes on again."""
    phase = json.loads((run / "phases/rank_0.json").read_text())
    [worker] = [psutil.Process(pid) for pid in phase["workers"]]
    worker.suspend()
    text = day.message(run.name, "is stalled")
    assert str(worker.pid) in text and day.lab.address_of(flow_run) in text
    until("its progress", lambda: STALLED.search(day.progress_of(flow_run)), 60)
    progress = day.progress_of(flow_run)
    assert " left" not in progress and "/s" not in progress
    day.open_artifact(flow_run, f"run-{_id_of(run)}", expecting="stalled")
    day.page.shows(str(worker.pid))
    day.shot("4-stalled")
    row = day.row_of(run)
    assert (row["state"], row["needs_you"], row["left_s"]) == ("stalled", True, None)
    assert str(worker.pid) in row["reason"] and "tarmac doctor --run " in row["next"][0]
    assert f"{row['step']:,}/{STEPS:,}" in progress
    listed = day.lab.tarmac("status").stdout
    assert "NEEDS YOU" in listed and "tarmac doctor --run " in listed
    worker.resume()
    day.message(run.name, "goes on")
    day.lab.training_of(flow_run, after=row["step"])
    assert day.row_of(run)["state"] == "running"


def _loses_worker_and_flow(day: Day, flow_run: str, run: Path) -> None:
    """Both are killed; `tarmac up` starts a worker, and that takes the flow run up. The training is held
    meanwhile, as a quick machine would end it."""
    rank = psutil.Process(json.loads((run / "phases/rank_0.json").read_text())["pid"])
    services = psutil.Process(day.lab.processes["all"].pid).children(recursive=True)
    [engine] = day.lab.engines_of(flow_run)
    rank.suspend()
    for process in services:
        if process.is_running() and "worker" in process.cmdline():
            process.kill()
    psutil.Process(engine).kill()
    day.lab.adopted(flow_run, start=2, seconds=240)
    step = step_of(run)
    rank.resume()
    day.lab.training_of(flow_run, after=step)
    assert len(record_of(run)["attempts"]) == 1, "the training was disturbed"


def _cancels(day: Day, flow_run: str, run: Path) -> int:
    """Press Cancel; the step of the checkpoint that is left."""
    day.lab.cancel(flow_run, day.page)
    [checkpoint] = checkpoints_of(run)
    step = int(checkpoint.rpartition("_")[2])
    day.page.open(day.lab.address_of(flow_run), expecting="Cancelled")
    day.shot("5-cancelled")
    day.open_artifact(flow_run, f"run-{_id_of(run)}", expecting=f"cancelled at step {step:,} of {STEPS:,}")
    assert "Goodput 0%" not in day.page.text(), "the stall counts as waiting for data, too"
    day.page.shows(f"its checkpoint of step {step:,} is kept, and Retry goes on from there")
    day.shot("6-cancelled-page")
    assert day.progress_of(flow_run) == f"{step:,}/{STEPS:,} steps · cancelled", "nobody works on it"
    row = day.row_of(run)
    assert (row["state"], row["step"], row["needs_you"]) == ("cancelled", step, False)
    assert re.search(rf"{run.name}  cancelled  {step:,}/{STEPS:,}", day.lab.tarmac("status").stdout)
    return step


def _retries(day: Day, flow_run: str, run: Path, step: int) -> None:
    """Press Retry; the same run goes on from its checkpoint to the end, and everything is on its page.

    Prefect's worker ends the process that it has when the event of the Cancel reaches it, and does not look
    whether the flow run was retried meanwhile. Then the run is taken up once more.
    """
    day.page.press(day.lab.address_of(flow_run), "Retry", "Retry")
    until("its start", lambda: day.lab.state(flow_run) != "CANCELLED", 60)
    until("its end", lambda: day.lab.state(flow_run) == "COMPLETED", 420)
    assert day.lab.labelled_run_of(flow_run) == run
    first, *_ = read_lives(RunFolder(run), 2, None)
    assert first.first_step == step
    assert step_of(run) in (0, STEPS) and record_of(run)["state"] == "succeeded"
    row = day.row_of(run)
    assert (row["state"], row["step"]) == ("succeeded", STEPS)
    assert (row["evaluations"], row["evaluations_done"]) == (1, 1)
    day.open_artifact(flow_run, f"evaluate-{flow_run[:8]}", expecting="1 of 1 results")
    day.open_artifact(flow_run, f"run-{_id_of(run)}", expecting="Zero-shot accuracy")
    day.shot("7-done")
    links = day.page.evaluate("[...document.querySelectorAll('a')].map(one => one.href)")
    for end in ("/report.html", "/look.html"):
        [target] = [link for link in links if link.endswith(end)]
        day.page.open(target, expecting="digits")
        day.shot(f"8-{end.strip('/')}")


def _rebuilds_by_schedule(day: Day) -> None:
    """A raw file has changed over night; the scheduled build writes only what that changes, and reports it."""
    lab = day.lab
    lab.change_raw()
    schedules = f"/deployments/{lab.api.deployment(BUILD)['id']}/schedules"
    [made] = lab.api.ask("POST", schedules, [{"schedule": {"interval": 20}, "active": True}]).json()
    planned = lab.api.planned_runs(BUILD)[0]["id"]
    done = lab.api.completed(planned, 240)
    lab.api.ask("DELETE", f"{schedules}/{made['id']}").raise_for_status()
    assert done["state_name"] == "Completed" and "1 of 10 shards written" in done["state"]["message"]
    day.open_artifact(planned, "dataset-digits-clip", expecting="0 lost, 1 replaced")
    day.page.shows("1 of 10 shards written")
    day.shot("9-rebuilt")


def _id_of(run: Path) -> str:
    return str(record_of(run)["id"])
