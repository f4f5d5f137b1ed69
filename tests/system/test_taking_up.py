"""What is killed is taken up, what lives is not started twice, and nothing trains twice on one GPU."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.services import until
from tests.system.lab import LONG, SHORT, Lab, checkpoints_of, open_lab, record_of

pytestmark = pytest.mark.system
PIPELINE, RIVAL = "pipeline/digits-clip", "pipeline/rival"
TAKEN_UP_S = 120.0
"""The promise; it takes half a minute."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("taking-up")) as lab:
        yield lab


@pytest.mark.proof
def test_two_deployments_never_train_on_one_gpu_at_once(lab: Lab) -> None:
    first = lab.start(PIPELINE, *LONG, seed=4, steps=50_000)
    run = lab.training_of(first)
    [engine] = lab.engines_of(first)
    lab.change_raw()
    psutil.Process(engine).kill()  # its training lives on, to be adopted
    second = lab.start(RIVAL, *SHORT, seed=4, steps=4)
    waiting = f"{lab.gpu} is used by {run.name} (process "
    until("the wait for the GPU", lambda: waiting in lab.api.logs(second), 420)
    rival = lab.run_of(second)
    assert waiting in lab.tarmac("status").stdout
    assert len(lab.processes_of("tasks.training.rank")) == 1
    lab.adopted(first, start=2, seconds=TAKEN_UP_S)
    lab.api.logged(first, "goes on with version", "the data has changed since: run again for a new run")
    done = lab.tarmac("cancel", run.name)
    assert done.returncode == 0, done.stderr
    ended = lab.api.finished(first, 240)
    assert ended["state_type"] == "CANCELLED", lab.api.logs(first)
    assert "cancelled by the user" in ended["state"]["message"]
    assert "Traceback" not in lab.api.logs(first)
    lab.api.completed(second, 420)
    assert record_of(rival)["state"] == "succeeded"


@pytest.mark.proof
def test_a_run_whose_worker_was_restarted_goes_on_and_obeys(lab: Lab) -> None:
    flow_run = lab.start(PIPELINE, *LONG, seed=5, steps=50_000)
    run = lab.training_of(flow_run)
    lab.change_raw()
    lab.end("worker", signal.SIGTERM)
    assert lab.state_name(flow_run) == "Interrupted", "nobody has said that it ended"
    lab.set_state(flow_run, force=True, type="FAILED", name="Failed")
    lab.start_worker()
    unwatched = f"pipeline is Failed, its training goes on; Retry on {lab.address_of(flow_run)}"
    assert unwatched in lab.log("worker").read_text()
    lab.set_state(flow_run, type="SCHEDULED", name="AwaitingRetry")
    print(f"taken up {lab.adopted(flow_run, start=2, seconds=TAKEN_UP_S):.0f} s after Retry")
    assert len(lab.engines_of(flow_run)) == 1
    assert len(record_of(run)["attempts"]) == 1, "the training was not disturbed"
    assert len(lab.processes_of("tasks.training.rank")) == 1, "another training has begun"
    assert lab.cancel(flow_run) < 60
    assert record_of(run)["state"] == "cancelled" and checkpoints_of(run) != []


@pytest.mark.proof
def test_a_run_goes_on_after_a_restart_of_the_machine_and_after_ctrl_c(lab: Lab) -> None:
    flow_run = lab.start(PIPELINE, *LONG, seed=6, steps=50_000)
    run = lab.training_of(flow_run)
    beside = [*lab.processes_of("tasks.guard"), *map(psutil.Process, lab.engines_of(flow_run))]
    for process in beside:  # all at once, as when power fails: nobody has the time to report another
        process.suspend()
    lab.end("worker", signal.SIGKILL)
    lab.end("server", signal.SIGKILL)
    for process in beside:
        process.kill()
    lab.change_raw()
    lab.start_all()
    print(f"taken up {lab.adopted(flow_run, start=2, seconds=TAKEN_UP_S):.0f} s after the machine's start")
    assert lab.history(flow_run).count("CRASHED") == 1
    lab.change_raw()
    lab.end("all", signal.SIGINT)
    assert lab.engines_of(flow_run) == lab.processes_of("tasks.guard") == []
    lab.start_server()
    assert lab.state_name(flow_run) == "Interrupted", "nobody has said that it ended"
    lab.start_worker()
    print(f"taken up {lab.adopted(flow_run, start=3, seconds=TAKEN_UP_S):.0f} s after the worker's start")
    assert len(lab.engines_of(flow_run)) == 1
    assert len(record_of(run)["attempts"]) == 1, "the training was not disturbed"
    assert lab.cancel(flow_run) < 60


@pytest.mark.proof
def test_a_run_ends_well_though_its_worker_was_killed(lab: Lab) -> None:
    flow_run = lab.start(PIPELINE, *SHORT, seed=7, steps=8)
    run = lab.training_of(flow_run)
    lab.change_raw()
    lab.end("worker", signal.SIGKILL)
    lab.start_worker()
    ended = lab.api.completed(flow_run, 420)
    assert ended["run_count"] == 1, "its flow lived on"
    assert record_of(run)["state"] == "succeeded"
    assert {one["state_type"] for one in lab.api.task_runs(flow_run)} == {"COMPLETED"}
