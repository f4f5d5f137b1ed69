"""Trainings and evaluations as jobs of a real Slurm: they wait, are adopted, cancelled, resumed, and refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.commands.status import status as status_command
from tasks.core.engines import slurm_queue
from tasks.core.errors import TarmacError
from tasks.runs import ledger, record
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import Job
from tasks.supervision import allocation, launch, stopping
from tasks.supervision.status import look_at_run
from tests.services import until
from tests.slurm_lab import queue, slurm_or_skip
from tests.supervision import fakes
from tests.supervision.test_agent import assert_undisturbed
from tests.supervision.test_launch import WAITER
from tests.training import helpers

pytestmark = pytest.mark.system
AGENT = launch.AGENT


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_or_skip(tmp_path_factory) as folder:
        yield folder


@pytest.fixture(autouse=True)
def impatient(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This Slurm's clients, with the fakes in the place of training and evaluation."""
    monkeypatch.setenv("SLURM_CONF", str(lab / "slurm.conf"))
    monkeypatch.setenv("PYTHONPATH", str(fakes.ROOT))
    monkeypatch.setattr(launch, "AGENT", "tests.supervision.fakes:agent_main")
    monkeypatch.setattr(allocation, "REVIVER", "tests.supervision.fakes:reviver_main")
    monkeypatch.setattr(slurm_queue, "LOOK_S", 0.5)
    yield
    if jobs := queue():
        subprocess.run(["scancel", *jobs], check=True)


def make_run(folder: Path, behaviour: dict[str, Any] | None = None, **blocks: Any) -> RunFolder:
    train = {"kind": "slurm", **blocks.pop("slurm", {})}
    evaluate = {"kind": "slurm", "jobs": 2, **blocks.pop("jobs", {})}
    engine = {"slurm": {"cpus": blocks.pop("cpus", 1)}, "train": train, "evaluate": evaluate}
    return fakes.make_run(folder, behaviour, engine=engine, **blocks)


def job_of(run: RunFolder) -> Job:
    job = record.load_record(run).job
    assert job is not None
    return Job.from_json(job, run.path)


def finish(run: RunFolder) -> None:
    launch.wait_for_training(run)
    assert launch.wait_for_evaluations(run).is_complete


def test_digits_train_in_one_job_and_are_evaluated_in_two(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real training on two ranks, whose waiter is killed while it goes on."""
    steps = ("train.steps=4", "train.checkpoint_every=2", "evaluate.every=2", "track.mode=disabled")
    engine = "engine={train: {kind: slurm, ranks: 2}, evaluate: {kind: slurm, jobs: 2}}"
    run = helpers.make_run(digits_dataset, tmp_path, *steps, engine)
    monkeypatch.setattr(launch, "AGENT", AGENT)
    command = [sys.executable, "-c", WAITER.replace("tests.supervision.fakes:agent_main", AGENT), run.path]
    waiter = subprocess.Popen(command, start_new_session=True)
    until("the job", lambda: record.load_record(run).job, 240)
    os.killpg(waiter.pid, signal.SIGKILL)
    waiter.wait()
    started = launch.start_or_adopt(run)
    assert started.adopted and started.job is not None and started.job.slurm is not None
    finish(run)
    attempt, successor = record.load_record(run).attempts
    assert attempt.job == started.job.id and successor.outcome == "evaluated"
    jobs = {entry.job["id"] for entry in ledger.read_ledger(run.ledger) if entry.job is not None}
    assert len(jobs) == 2 and attempt.job not in jobs
    assert len(list(run.attempts.glob("1/rank_?.json"))) == 2

    def all_completed() -> bool:  # Slurm hears of an end after those who read the run's folder
        all_jobs = (attempt.job, successor.job, *jobs)
        return {slurm_queue.ending(str(job)) for job in all_jobs} == {"COMPLETED"}

    until("the ends of all jobs", all_completed, 60)


@pytest.mark.proof
def test_a_training_on_this_machine_is_evaluated_by_jobs_of_slurm(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real training and evaluations; and once more, where only a result is missing."""
    steps = ("train.steps=4", "train.checkpoint_every=2", "evaluate.every=2", "track.mode=disabled")
    engine = "engine={train: {kind: local}, evaluate: {kind: slurm, jobs: 2}}"
    run = helpers.make_run(digits_dataset, tmp_path, *steps, engine)
    monkeypatch.setattr(launch, "AGENT", AGENT)
    started = launch.start_or_adopt(run)
    assert started.job is not None and started.job.slurm is None
    finish(run)
    first = evaluations_of(run)
    assert len(first) == 2
    run.evaluation(2, "zero_shot").unlink()
    again = launch.start_or_adopt(run, "evaluate")
    assert again.job is not None and again.job.slurm is None
    assert launch.wait_for_evaluations(run).is_complete
    (added,) = evaluations_of(run) - first
    until("its end", lambda: slurm_queue.ending(added) == "COMPLETED", 60)
    assert launch.start_or_adopt(run, "evaluate").is_up_to_date and queue() == []


def evaluations_of(run: RunFolder) -> set[str]:
    """Their jobs by Slurm's numbers."""
    jobs = [Job.from_json(one.job, run.path) for one in ledger.read_ledger(run.ledger) if one.job is not None]
    assert jobs and all(job.slurm is not None for job in jobs)
    return {job.id for job in jobs}


@pytest.mark.proof
def test_evaluations_in_the_trainings_job_go_on_in_a_smaller_one(tmp_path: Path) -> None:
    """The nodes have no GPUs, so the script claims two."""
    setup = ["export SLURM_JOB_GPUS=0,1 CUDA_VISIBLE_DEVICES=GPU-0,GPU-1"]
    slurm = {"ranks": 1, "setup": setup}
    blocks = {"evaluate": {"every": 20, "tasks": ["zero_shot"], "when": "after"}}
    run = make_run(tmp_path, {"evaluation_s": 1.0}, slurm=slurm, jobs={"kind": "local", "jobs": 1}, **blocks)
    launch.start_or_adopt(run)
    finish(run)
    training, keeper = record.load_record(run).attempts
    assert (training.outcome, keeper.outcome) == ("succeeded", "evaluated")
    assert training.job != keeper.job
    entries = ledger.read_ledger(run.ledger)
    ran = [entry for entry in entries if entry.job is not None]
    assert ran and all(Job.from_json(entry.job, run.path).slurm is None for entry in ran if entry.job)
    assert {entry.attempt for entry in ran} == {1} and min(entry.at for entry in ran) > (training.ended or 0)
    held = [entry for entry in entries if entry.reason]
    assert {entry.reason for entry in held} == {"waits for the training's end (evaluate.when: after)"}


@pytest.mark.proof
def test_an_evaluation_that_its_jobs_time_limit_cuts_short_is_a_try_in_the_next_job(tmp_path: Path) -> None:
    setup = ["export SLURM_JOB_GPUS=0,1 CUDA_VISIBLE_DEVICES=GPU-0,GPU-1"]
    slurm = {"ranks": 1, "setup": setup}
    run = make_run(tmp_path, {"evaluation_s": 60.0}, slurm=slurm, jobs={"kind": "local", "jobs": 1})
    launch.start_or_adopt(run)
    until("the evaluation", lambda: len(record.load_record(run).attempts) == 2 and at_work(run), 240)
    keeper = job_of(run)
    (run.path / "fake.json").write_text('{"evaluation_s": 0.1}')
    subprocess.run(["scancel", "--batch", "--signal=USR2", keeper.id], check=True)
    finish(run)
    attempts = record.load_record(run).attempts
    assert [one.outcome for one in attempts] == ["succeeded", "evaluated"], "the one between has left no end"
    (last,) = ledger.fold(ledger.read_ledger(run.ledger)).values()
    assert (last.state, last.attempt, len(last.tried)) == ("done", 2, 1), "so there is an end"


def at_work(run: RunFolder) -> bool:
    return any(entry.state == "running" for entry in ledger.read_ledger(run.ledger))


@pytest.mark.proof
def test_what_waits_in_the_queue_says_why_is_adopted_and_cancelled(tmp_path: Path) -> None:
    run = make_run(tmp_path, slurm={"extra": {"hold": True}})
    launch.start_or_adopt(run)
    status = look_at_run(run)
    assert (status.state, status.agent_is_alive) == ("queued", True)
    assert (
        status.reason
        == f"waiting in the queue as Slurm job {job_of(run).id} (JobHeldUser: held until scontrol release)"
    )
    again = launch.start_or_adopt(run)
    assert again.adopted and again.job is not None and len(queue()) == 1
    began = time.monotonic()
    stopped = stopping.end(run, "enough")
    assert [str(one) for one in stopped.ended] == [f"job of the agent ({again.job.slurm})"]
    assert time.monotonic() - began < 60 and queue() == []
    assert (look_at_run(run).state, look_at_run(run).reason) == ("cancelled", "enough")
    assert not run.stop.exists()


def test_cancel_ends_the_training_and_its_evaluations(tmp_path: Path) -> None:
    blocks = {"train": {"steps": 5000}, "evaluate": {"every": 10, "tasks": ["zero_shot"]}}
    run = make_run(tmp_path, {"step_s": 0.1, "evaluation_s": 60.0}, **blocks)
    launch.start_or_adopt(run)
    until("an evaluation", (run.path / "evaluated").exists, 240)
    stopped = stopping.end(run, "enough")
    assert queue() == [] and not stopped.left and stopped.elsewhere is None
    status = look_at_run(run)
    assert status.state == "cancelled" and status.reason.startswith("enough, at step")
    assert f"at step {max(status.checkpoints)} of" in status.reason, "it was asked, not killed"


@pytest.mark.proof
def test_a_job_at_its_time_limit_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.1}, evaluate={"every": 40, "tasks": ["zero_shot"]})
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("steps", lambda: look_at_run(run).step >= 5, 240)
    warn = ["scancel", "--batch", "--signal=USR2", job.id]
    subprocess.run(warn, check=True)
    until("the queue", lambda: look_at_run(run).queue, 240)
    status = look_at_run(run)
    assert status.state == "queued" and "its time limit came at step " in status.reason
    assert launch.start_or_adopt(run).adopted
    start_again(job.id)
    finish(run)
    assert_undisturbed(run)
    first, second, _ = record.load_record(run).attempts
    assert first.job == second.job == job.id and first.signal == "SIGUSR2"


def preempt() -> None:
    """A job of a higher partition, which takes all of both nodes for a moment."""
    command = ["sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def start_again(job: str) -> None:
    """Not at once: for a second Slurm's nodes take a job that was ended for dead."""
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], check=True)


@pytest.mark.parametrize(
    ("way", "partition", "says", "sent"),
    [
        ("requeue", "main", "Slurm queued its job again at step ", "SIGTERM"),
        ("preempt", "main", "Slurm queued its job again at step ", "SIGTERM"),
        ("preempt", "graced", "Slurm preempts its job at step ", "SIGUSR2"),
        ("term", "main", "its job was sent SIGTERM at step ", "SIGTERM"),
    ],
)
@pytest.mark.proof
def test_a_job_that_slurm_takes_its_nodes_from_goes_on_from_there(
    tmp_path: Path, way: str, partition: str, says: str, sent: str
) -> None:
    run = make_run(
        tmp_path,
        {"step_s": 0.2},
        slurm={"partition": partition},
        evaluate={"every": 40, "tasks": ["zero_shot"]},
    )
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("steps", lambda: look_at_run(run).step >= 5, 240)
    if way == "preempt":
        preempt()
    elif way == "requeue":
        subprocess.run(["scontrol", "requeue", job.id], check=True)
    else:
        subprocess.run(["scancel", "--batch", "--signal=TERM", job.id], check=True)
    until("the queue", lambda: look_at_run(run).queue, 240)
    status = look_at_run(run)
    assert status.state == "queued" and says in status.reason, status.reason
    assert f"{says}{max(status.checkpoints)} of 40" in status.reason, "a checkpoint of its last step"
    again = launch.start_or_adopt(run)
    assert again.adopted and again.job is not None and again.job.id == job.id
    start_again(job.id)
    finish(run)
    assert_undisturbed(run)
    first, second, _ = record.load_record(run).attempts
    assert first.job == second.job == job.id and (first.outcome, second.outcome) == ("cancelled", "succeeded")
    assert first.signal in (sent, "SIGUSR2")  # which a preemption without a grace time sends just before


@pytest.mark.proof
def test_a_job_that_slurm_queued_again_is_cancelled_for_good(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.2})
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("steps", lambda: look_at_run(run).step >= 3, 240)
    subprocess.run(["scontrol", "requeue", job.id], check=True)
    until("the queue", lambda: look_at_run(run).queue, 240)
    reached = look_at_run(run).step
    stopped = stopping.end(run, "enough")
    assert [str(one) for one in stopped.ended] == [f"job of the agent ({job.slurm})"] and not stopped.left
    assert queue() == [] and (look_at_run(run).state, look_at_run(run).reason) == ("cancelled", "enough")
    subprocess.run(["scontrol", "requeue", job.id], check=True)  # as an administrator may
    start_again(job.id)
    until("its end", lambda: slurm_queue.ending(job.id) == "FAILED", 120)
    said = job.log.read_text()
    assert f"is cancelled and does not wait for Slurm job {job.id}; this job leaves it alone" in said
    assert "Traceback" not in said
    assert look_at_run(run).step == reached and len(record.load_record(run).attempts) == 1


@pytest.mark.proof
def test_a_job_that_is_ended_by_scancel_is_cancelled_with_a_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.2})
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("steps", lambda: look_at_run(run).step >= 3, 240)
    subprocess.run(["scancel", job.id], check=True)
    until("the end", lambda: look_at_run(run).training_is_over and not look_at_run(run).agent_is_alive, 120)
    status = look_at_run(run)
    assert status.state == "cancelled" and status.checkpoints
    why = "Slurm ended its job, as scancel does; start the run again to go on"
    assert status.reason == f"{why}, at step {max(status.checkpoints)} of 40"
    until("Slurm's end of it", lambda: slurm_queue.ending(job.id) == "CANCELLED" and not queue(), 60)


@pytest.fixture
def one_node() -> Iterator[None]:
    """One of the lab's two nodes takes no jobs."""
    change = ["scontrol", "update", "NodeName=n2"]
    subprocess.run([*change, "State=DRAIN", "Reason=a test has one node"], check=True)
    yield
    subprocess.run([*change, "State=RESUME"], check=True)


@pytest.mark.proof
def test_a_training_and_its_evaluations_finish_on_one_node_that_each_needs_whole(
    tmp_path: Path, one_node: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job that waits for them steps aside for the second one, whose end wakes it."""
    behaviour = {"evaluation_s": 4.0, "patience_s": 5.0, "aside_s": 300}
    evaluate = {"every": 20, "tasks": ["zero_shot"]}
    run = make_run(tmp_path, behaviour, cpus=4, jobs={"jobs": 1}, evaluate=evaluate)
    training = launch.start_or_adopt(run).job
    assert training is not None
    launch.wait_for_training(run)
    until("its job's end", lambda: slurm_queue.ending(training.id) == "COMPLETED", 60)
    assert not run.evaluation(40, "zero_shot").exists()

    def shown() -> str:
        status_command(runs=run.path.parent)
        return str(capsys.readouterr().out)

    until(
        "why an evaluation waits",
        lambda: "step 40 zero_shot: waiting in the queue as Slurm job" in shown(),
        60,
    )
    until("that it steps aside", lambda: "(BeginTime: " in look_at_run(run).queue, 120)
    woken = time.monotonic()
    assert launch.wait_for_evaluations(run).is_complete
    assert time.monotonic() - woken < 240
    assert_undisturbed(run)
    first, *later = record.load_record(run).attempts
    assert first.job == training.id and first.outcome == "succeeded"
    assert [one.outcome for one in later] == ["evaluated"], "those that stepped aside are one attempt"
    until("an empty queue", lambda: queue() == [], 60)


@pytest.mark.proof
def test_an_evaluation_that_slurm_holds_is_given_up_with_its_words(tmp_path: Path) -> None:
    behaviour = {"stuck_s": 3.0}
    run = make_run(tmp_path, behaviour, jobs={"extra": {"hold": True}})
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    until(
        "the reason",
        lambda: any("JobHeldUser" in one.waiting for one in look_at_run(run).evaluations_waiting),
        60,
    )
    status = launch.wait_for_evaluations(run)
    (missing,) = status.evaluations_missing
    assert re.fullmatch(
        r"step 40 zero_shot: Slurm does not start its job: Slurm job \d+ \(JobHeldUser: held until scontrol release\); .*",
        str(missing),
    )
    until("an empty queue", lambda: queue() == [], 60)


@pytest.mark.proof
def test_an_evaluation_that_a_person_cancels_in_slurm_does_not_come_back(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"evaluation_s": 60.0})
    launch.start_or_adopt(run)
    until("the evaluation", (run.path / "evaluated").exists, 240)
    (job,) = evaluations_of(run)
    until("the successor", lambda: len(record.load_record(run).attempts) == 2, 60)
    subprocess.run(["scancel", job], check=True)
    status = launch.wait_for_evaluations(run)
    (missing,) = status.evaluations_missing
    assert f"Slurm job {job} was cancelled in Slurm, so it is not tried again" in str(missing)
    assert evaluations_of(run) == {job}


@pytest.mark.proof
def test_cancel_of_a_run_whose_successor_waits_leaves_nothing(tmp_path: Path, one_node: None) -> None:
    behaviour = {"evaluation_s": 60.0}
    run = make_run(tmp_path, behaviour, cpus=4, evaluate={"every": 20, "tasks": ["zero_shot"]})
    launch.start_or_adopt(run)
    until("an evaluation", (run.path / "evaluated").exists, 240)
    until("the successor", lambda: look_at_run(run).queue, 60)
    stopped = stopping.end(run, "enough")
    assert queue() == [] and not stopped.left
    status = look_at_run(run)
    assert (status.state, status.stopped) == ("succeeded", "enough") and not status.agent_is_alive
    assert launch.start_or_adopt(run, "evaluate").job is not None
    stopping.end(run, "enough")


def test_a_refused_submission_quotes_slurm(tmp_path: Path) -> None:
    run = make_run(tmp_path, slurm={"partition": "gpus"})
    with pytest.raises(TarmacError, match=r"engine.train: Slurm does not take the job: .*invalid partition"):
        launch.start_or_adopt(run)
    assert look_at_run(run).state == "planned" and queue() == []
