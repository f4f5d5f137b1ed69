"""The buttons of a flow run's page do what they say, whatever was killed before, and nothing trains twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.services import until
from tests.slurm_lab import missing, queue, slurm_lab
from tests.system.browser import Page
from tests.system.lab import LONG, SHORT, Lab, checkpoints_of, open_lab, record_of, step_of

pytestmark = pytest.mark.system
PIPELINE, BUILD = "pipeline/digits-clip", "build/digits-clip"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The slurm.conf of a running Slurm; where there is none, one that nobody has written."""
    folder = tmp_path_factory.mktemp("slurm")
    for parent in (folder, folder.parent):
        parent.chmod(0o755)
    if missing():
        yield folder / "slurm.conf"
        return
    with slurm_lab(folder) as conf:
        yield conf


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, slurm: Path) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("control"), SLURM_CONF=str(slurm)) as lab:
        yield lab


def status_of(lab: Lab, run: Path) -> str:
    """What `tarmac status` says of the run."""
    rows = json.loads(lab.tarmac("status", "--json").stdout)["runs"]
    return str(next(row for row in rows if row["run"] == run.name))


@pytest.mark.proof
def test_overlapping_builds_take_turns_and_a_cancelled_one_leaves_nothing(lab: Lab, page: Page) -> None:
    first = lab.start(BUILD)
    lease = lab.project / "data/digits/lease.json"
    until("a build", lease.exists, 240, 0.02)
    builder = psutil.Process(json.loads(lease.read_text())["pid"])
    builder.suspend()  # or it would be over before anybody can click
    second = lab.start(BUILD)
    until("the second build's wait", lambda: "is in use by process" in lab.api.logs(second), 240)
    assert f"is in use by process {builder.pid}" in lab.api.logs(second), "the page names who builds"
    assert lab.cancel(first, page) < 60
    assert not psutil.pid_exists(builder.pid)
    lab.api.completed(second, 240)
    assert (lab.project / "data/digits/current/manifest.json").exists()


@pytest.mark.proof
def test_cancel_takes_the_jobs_of_a_build_out_of_slurms_queue(lab: Lab, slurm: Path) -> None:
    if lacks := missing():
        assert "CI" not in os.environ, lacks
        pytest.skip(f"{', '.join(lacks)} not installed")
    held = "{kind: slurm, jobs: 2, cpus: 1, extra: {hold: true}}"
    flow_run = lab.start(BUILD, "dataset.output=data/elsewhere", f"engine.build={held}")
    until("the jobs", lambda: len(queue(slurm)) == 2, 240)
    assert lab.cancel(flow_run) < 60
    until("the end of the jobs", lambda: queue(slurm) == [], 30)
    assert not (lab.project / "data/elsewhere/current").exists()


@pytest.mark.proof
def test_cancel_of_the_second_of_two_clicks_ends_its_watching_and_of_the_first_the_training(
    lab: Lab, page: Page
) -> None:
    first = lab.start(PIPELINE, *LONG, seed=6, steps=50_000)
    run = lab.training_of(first)
    second = lab.start(PIPELINE, *LONG, seed=6, steps=50_000)
    lab.api.logged(second, f"{run.name} is adopted from flow run", lab.address_of(first))
    [link] = [
        one for one in lab.api.artifacts(second) if one["key"] == f"owner-{run.name.rpartition('-')[2]}"
    ]
    assert lab.address_of(first) in link["data"]
    step = step_of(lab.training_of(second))
    lab.cancel(second, page, is_owner=False)
    lab.training_of(first, after=step + 20)
    lab.change_raw()
    assert lab.cancel(first, page) < 60
    assert len(checkpoints_of(run)) == 1
    assert "'state': 'cancelled'" in status_of(lab, run)
    assert f"({lab.address_of(first)}) was cancelled" in record_of(run)["reason"]


@pytest.mark.proof
def test_delete_ends_the_training_as_cancel_does(lab: Lab) -> None:
    flow_run = lab.start(PIPELINE, *LONG, seed=7, steps=50_000)
    run = lab.training_of(flow_run)
    lab.api.ask("DELETE", f"/flow_runs/{flow_run}").raise_for_status()
    until("the end of the training", lambda: not lab.processes_of(run), 60)
    until("the end of the engine", lambda: not lab.engines_of(flow_run), 60)
    assert record_of(run)["state"] == "cancelled" and len(checkpoints_of(run)) == 1


@pytest.mark.proof
def test_cancel_while_it_tunes(lab: Lab, page: Page) -> None:
    flow_run = lab.start(PIPELINE, seed=1, steps=500)
    run = lab.run_of(flow_run)
    until("measuring", lambda: lab.processes_of("tasks.diagnosis.bench:tune"), 240, 0.1)
    assert lab.cancel(flow_run, page) < 60
    assert lab.processes_of("tasks.diagnosis.bench:tune") == []
    assert record_of(run)["state"] == "cancelled" and "'state': 'cancelled'" in status_of(lab, run)


@pytest.mark.proof
def test_cancel_while_it_evaluates(lab: Lab, page: Page) -> None:
    flow_run = lab.start(PIPELINE, *SHORT, seed=2, steps=4)
    run = lab.run_of(flow_run)
    jobs = until("an evaluation", lambda: lab.processes_of(f"{run}/attempts/1/logs/zero_shot_4_1"), 240)
    for job in jobs:
        job.suspend()  # or it might be over before anybody can click
    until("the end of the training", lambda: record_of(run)["state"] == "succeeded", 240)
    assert lab.cancel(flow_run, page) < 60
    assert checkpoints_of(run) == ["step_00000004"]
    assert "was cancelled" in status_of(lab, run)
    assert "evaluations cancelled" in lab.tarmac("status").stdout


def test_suspend_ends_the_training_and_resume_starts_one_engine(lab: Lab, page: Page) -> None:
    flow_run = lab.start(PIPELINE, *LONG, seed=3, steps=50_000)
    run = lab.training_of(flow_run)
    page.press(lab.address_of(flow_run), "Suspend", "Submit")
    until("the end of the training", lambda: not lab.processes_of(run), 60)
    until("the end of the engine", lambda: not lab.engines_of(flow_run), 60)
    [checkpoint] = checkpoints_of(run)
    assert lab.state(flow_run) == "PAUSED"
    lab.change_raw()
    page.press(lab.address_of(flow_run), "Resume", "Submit")
    assert lab.training_of(flow_run, after=int(checkpoint.rpartition("_")[2])) == run
    assert len(lab.engines_of(flow_run)) == 1
    assert len(lab.processes_of("tasks.training.rank")) == 1
    lab.end("worker", signal.SIGKILL)
    assert lab.cancel(flow_run, page) < 60, "without its worker"
    lab.start_worker()
    assert checkpoint in checkpoints_of(run) and len(checkpoints_of(run)) == 2
    assert "'state': 'cancelled'" in status_of(lab, run)
