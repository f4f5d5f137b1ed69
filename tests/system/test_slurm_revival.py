"""A killed agent whose job was one of a real Slurm: a job that waits for its failure starts it again, once."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.supervision import launch, stopping
from tasks.supervision.status import look_at_run
from tests.services import until
from tests.slurm_lab import queue
from tests.supervision.test_agent import assert_undisturbed
from tests.system.test_slurm_training import finish, impatient, lab, make_run

pytestmark = pytest.mark.system
__all__ = ["impatient", "lab"]


def revivable(tmp_path: Path, behaviour: dict[str, Any], **blocks: Any) -> RunFolder:
    return make_run(tmp_path, behaviour, train={"on_crash": "restart"}, **blocks)


def waits_for_failure() -> list[str]:
    """The jobs that wait for another's end."""
    listed = subprocess.run(["squeue", "-h", "-o", "%i|%r"], capture_output=True, text=True, check=True)
    return [line.partition("|")[0] for line in listed.stdout.splitlines() if line.endswith("|Dependency")]


def kill_all_of(run: RunFolder) -> None:
    """The agent, the ranks and everything else of the run, at one moment."""
    named = str(run.path)
    for process in psutil.process_iter(["cmdline"]):
        if named in " ".join(process.info["cmdline"] or []):
            process.kill()


def begun(run: RunFolder) -> int:
    return len(record.load_record(run).attempts)


def test_a_killed_agent_is_started_again_once_by_slurm(tmp_path: Path) -> None:
    run = revivable(tmp_path, {"step_s": 0.2})
    job = launch.start_or_adopt(run).job
    assert job is not None
    assert len(waits_for_failure()) == 1
    until("a checkpoint", lambda: look_at_run(run).checkpoints, 60)
    kill_all_of(run)
    until("the second agent", lambda: begun(run) == 2, 60)
    finish(run)
    assert_undisturbed(run)
    outcomes = [one.outcome for one in record.load_record(run).attempts]
    assert outcomes == ["lost", "succeeded", "evaluated"]
    until("an empty queue", lambda: queue() == [], 60)
    log = (run.logs(1) / "reviver").glob("*_log.out")
    assert "started again (1 of 3)" in next(log).read_text()


@pytest.mark.proof
def test_neither_a_good_end_nor_a_cancel_leaves_a_reviver(tmp_path: Path) -> None:
    run = revivable(tmp_path, {"step_s": 0.2}, evaluate=None)
    launch.start_or_adopt(run)
    until("steps", lambda: look_at_run(run).step >= 3, 60)
    stopping.end(run, "enough")
    assert queue() == [] and begun(run) == 1 and look_at_run(run).state == "cancelled"
    (run.path / "fake.json").write_text('{"step_s": 0.01}')
    launch.start_or_adopt(run)
    assert len(waits_for_failure()) == 1
    launch.wait_for_training(run)
    until("an empty queue", lambda: queue() == [], 60)
    assert begun(run) == 2 and not any(run.logs(2).glob("reviver/*_log.out")), "it was never started"


@pytest.mark.proof
@pytest.mark.parametrize("way", ["scancel", "kill", "requeue"])
def test_a_reviver_starts_nothing_that_a_person_or_slurm_looks_after(tmp_path: Path, way: str) -> None:
    """`kill` is a run whose agent died without a word and that a person cancelled before anybody saw that."""
    run = revivable(tmp_path, {"step_s": 0.2}, evaluate=None)
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("steps", lambda: look_at_run(run).step >= 3, 60)
    if way == "requeue":
        subprocess.run(["scontrol", "requeue", job.id], check=True)
        until("the queue", lambda: look_at_run(run).queue, 60)
        assert len(waits_for_failure()) == 1 and len(queue()) == 2
        subprocess.run(["scontrol", "update", f"JobId={job.id}", "StartTime=now+3"], check=True)
        launch.wait_for_training(run)
    elif way == "scancel":
        subprocess.run(["scancel", job.id], check=True)
    else:
        subprocess.run(["scancel", *waits_for_failure()], check=True)
        kill_all_of(run)
        until("its end", lambda: not look_at_run(run).agent_is_alive, 60)
        stopping.end(run, "enough")
        assert launch.revive(run) == "", "a person has cancelled it"
    until("an empty queue", lambda: queue() == [], 60)
    assert begun(run) == (2 if way == "requeue" else 1)
    assert look_at_run(run).state == ("succeeded" if way == "requeue" else "cancelled")


@pytest.mark.proof
def test_a_waiting_job_that_a_person_cancels_stays_cancelled(tmp_path: Path) -> None:
    """Slurm forgets it after a while, and without its ledger nobody could say why it is gone."""
    command = ["sbatch", "--parsable", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600"]
    blocking = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    running = ["squeue", "-h", "-t", "R", "-j", blocking]
    until("its start", lambda: subprocess.check_output(running), 60)
    run = revivable(tmp_path, {"step_s": 0.2}, evaluate=None)
    job = launch.start_or_adopt(run).job
    assert job is not None
    subprocess.run(["scancel", job.id], check=True)
    subprocess.run(["scancel", blocking], check=True)
    until("an empty queue", lambda: queue() == [], 120)
    assert launch.revive(run) == "" and begun(run) == 0
    state = record.load_record(run)
    assert (state.state, state.job) == ("cancelled", None) and job.id in state.reason


@pytest.mark.proof
def test_a_killed_keeper_of_evaluations_is_started_again(tmp_path: Path) -> None:
    run = revivable(tmp_path, {"evaluation_s": 4.0})
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    until("the successor", lambda: begun(run) == 2, 60)
    os.kill(record.load_record(run).attempts[-1].pid, signal.SIGKILL)
    until("the next one", lambda: begun(run) == 3, 60)
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)
    until("an empty queue", lambda: queue() == [], 60)
