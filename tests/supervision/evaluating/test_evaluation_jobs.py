"""A run's evaluations in the hands of its agent: what is asked, what counts as an answer, what is kept.

The jobs run in this process, because only what they leave matters here.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.commands import evaluation
from tasks.core import config as configs
from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import read_json
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.runs import gpus, jobs, ledger
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import Job
from tasks.supervision.evaluating import evaluation_process, evaluations
from tasks.supervision.evaluating.evaluation_jobs import Evaluations, failure_of, has_requests, request
from tasks.supervision.evaluating.evaluations import JobFailure
from tasks.supervision.status import look_at_run
from tests.supervision import fakes
from tests.supervision.fakes import make_run

STEP, TASK = 40, "zero_shot"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with its last checkpoint, none of whose evaluations is done."""
    run = make_run(tmp_path, {"evaluation_s": 0.0})
    fakes.save(run, STEP, b"weights")
    return run


@pytest.fixture(autouse=True)
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is over, with its log, when it has been submitted."""
    monkeypatch.setattr(evaluation_process, "run_evaluation", fakes.evaluate)
    monkeypatch.setattr(jobs, "submit", submit)
    monkeypatch.setattr(evaluations, "RETRY_S", 0.0)


def submit(target: str, arguments: list[str], folder: Path, *, name: str, **options: Any) -> Job:
    place = folder / name
    place.mkdir(parents=True)
    printed = "INFO:submitit:Job completed successfully"
    try:
        evaluation_process.run_job(*arguments)
    except ValueError as error:
        printed = f"ValueError: {error}\nERROR:submitit:Submitted job triggered an exception"
    gone = replace(Identity.mine(), boot_id="before the reboot")
    job = Job("7", gone, place)
    job.log.write_text(f"submitit INFO (now) - Starting\n{printed}\nsubmitit INFO (now) - Exiting\n")
    (place / "7_0_result.pkl").touch()
    return job


def drive(run: RunFolder, **behaviour: Any) -> ledger.LedgerEntry:
    """An agent's evaluations until all are final; returns the last word on the one of the last step."""
    (run.path / "fake.json").write_text(json.dumps({"evaluation_s": 0.0, **behaviour}))
    number = len(list(run.attempts.glob("*"))) + 1
    driven = Evaluations(run, configs.reload(run.config), number)
    while driven.advance("complete"):
        pass
    return ledger.fold(ledger.read_ledger(run.ledger))[STEP, TASK]


def evaluated(run: RunFolder) -> int:
    return len((run.path / "evaluated").read_text().split())


def test_what_was_asked_for_again_in_vain_keeps_its_result(run: RunFolder) -> None:
    assert drive(run).state == "done"
    result, summary = run.evaluation(STEP, TASK).read_bytes(), run.eval_result(STEP).read_bytes()
    request(run, STEP, TASK)
    failed = drive(run, evaluation_fails_at=STEP)
    assert (failed.state, failed.attempt) == ("failed", 3)
    assert "3 of 3 tries used; ValueError: the weights do not fit (log: " in failed.reason
    assert "before" not in failed.reason, "each try ended for the same reason"
    assert run.evaluation(STEP, TASK).read_bytes() == result
    assert run.eval_result(STEP).read_bytes() == summary
    assert not has_requests(run)
    assert drive(run).state == "done" and evaluated(run) == 5


def test_a_benchmark_of_lmms_eval_is_known_by_its_own_name_and_has_no_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def limited(*arguments: Any, **options: Any) -> Job:
        limits.append(options["time_limit_s"])
        return submit(*arguments, **options)

    monkeypatch.setattr(jobs, "submit", limited)
    tasks = [
        {"kind": "lmms_eval", "names": ["mmstar"]},
        {"kind": "lmms_eval", "name": "quick", "names": ["mmstar"]},
    ]
    run = make_run(
        tmp_path, {"evaluation_s": 0.0, "metric": "mmstar_average"}, evaluate={"every": STEP, "tasks": tasks}
    )
    fakes.save(run, STEP, b"weights")
    driven = Evaluations(run, configs.reload(run.config), 1)
    while driven.advance("complete"):
        pass
    results = read_json(run.eval_result(STEP))["results"]
    assert results == {"mmstar_average": STEP / 100, "quick_mmstar_average": STEP / 100}
    assert limits == [None, None]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """One GPU, which is the training's, and those that jobs of evaluations were given."""
    monkeypatch.setattr(gpus, "LOCKS", tmp_path)
    monkeypatch.setenv(gpus.VISIBLE_GPUS, "GPU-0")
    monkeypatch.delenv(gpus.SPARE_GPUS, raising=False)
    found: list[tuple[str, ...]] = []

    def noted(*arguments: Any, **options: Any) -> Job:
        found.append(tuple(options["on"]))
        return submit(*arguments, **options)

    monkeypatch.setattr(jobs, "submit", noted)
    return found


def run_evaluated(tmp_path: Path, when: str) -> RunFolder:
    run = make_run(tmp_path, {"evaluation_s": 0.0}, evaluate={"every": STEP, "tasks": [TASK], "when": when})
    fakes.save(run, STEP, b"weights")
    return run


def test_on_one_gpu_an_idle_evaluation_waits_for_the_training_and_says_so(
    tmp_path: Path, given: list[tuple[str, ...]]
) -> None:
    run = run_evaluated(tmp_path, "idle")
    training = gpus.take_gpus(["GPU-0"], 1, run.name)
    assert isinstance(training, gpus.HeldGpus)
    with Lease(run.lease):
        driven = Evaluations(run, configs.reload(run.config), 1)
        for _ in range(3):
            assert driven.advance("going") and not given
        (waiting,) = look_at_run(run).evaluations_waiting
        used = f"GPU-0 is used by {run.name} (process {os.getpid()})"
        assert waiting.waiting == f"waiting for a GPU: {used} (evaluate.when: idle)"
    assert len(ledger.read_ledger(run.ledger)) == 1, "noted once"
    training.release()
    while driven.advance("complete"):
        pass
    assert given == [("GPU-0",)] and look_at_run(run).evaluations_done == 1
    assert ledger.fold(ledger.read_ledger(run.ledger))[STEP, TASK].attempt == 1, "to wait is no try"
    taken = gpus.take_gpus(["GPU-0"], 1, "the next")
    assert isinstance(taken, gpus.GpusInUse), "by the job, which is this process"


def test_an_evaluation_takes_another_gpu_at_once_and_beside_the_trainings_own(
    tmp_path: Path, given: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = gpus.take_gpus(["GPU-0"], 1, "this")
    assert isinstance(training, gpus.HeldGpus)
    drive(run_evaluated(tmp_path / "alone", "beside"))
    monkeypatch.setattr(evaluation_process, "hold_gpu", lambda run: None)  # the job would see GPU-1 alone
    monkeypatch.setenv(gpus.SPARE_GPUS, "GPU-1")
    drive(run_evaluated(tmp_path / "spare", "idle"))
    assert given == [("GPU-0",), ("GPU-1",)]
    training.release()


def test_a_gpu_is_kept_for_a_job_until_it_holds_it_itself(
    tmp_path: Path, given: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_evaluated(tmp_path, "after")
    monkeypatch.setattr(evaluation_process, "hold_gpu", lambda run: None)
    alive = Job("7", Identity.mine(), tmp_path)
    monkeypatch.setattr(jobs, "submit", lambda *arguments, **options: alive)
    driven = Evaluations(run, configs.reload(run.config), 1)
    assert driven.advance("going") and not (run.path / "evaluated").exists()
    driven.advance("complete")
    driven.advance("complete")
    assert isinstance(gpus.take_gpus(["GPU-0"], 1, "the next"), gpus.GpusInUse)
    lease = Lease(run.evaluation_lease(STEP, TASK))
    lease.acquire()
    driven.advance("complete")
    taken = gpus.take_gpus(["GPU-0"], 1, "the next")
    assert isinstance(taken, gpus.HeldGpus), "the job is at work, and would hold it"
    taken.release()
    lease.release()


def test_a_job_that_finds_a_training_on_its_gpu_fails_where_it_is_not_to_run_beside_it(
    tmp_path: Path, given: list[tuple[str, ...]]
) -> None:
    training = gpus.take_gpus(["GPU-0"], 1, "another")
    assert isinstance(training, gpus.HeldGpus)
    evaluation_process.hold_gpu(run_evaluated(tmp_path / "beside", "beside"))
    with pytest.raises(TarmacError, match=r"GPU-0 is used by another .* \(evaluate.when: idle\)"):
        evaluation_process.hold_gpu(run_evaluated(tmp_path / "idle", "idle"))
    training.release()


def test_submissions_that_are_refused_for_a_while_cost_no_try(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter(range(5))

    def refuse(*arguments: Any, **options: Any) -> Job:
        if next(refusals, None) is None:
            return submit(*arguments, **options)
        raise TarmacError("the job could not be submitted; submit.log ends:\n  no more processes")

    monkeypatch.setattr(evaluations, "PAUSE_S", 0.01, raising=False)
    monkeypatch.setattr(jobs, "submit", refuse)
    done = drive(run)
    assert (done.state, done.attempt, done.refusals) == ("done", 1, 0)
    assert evaluated(run) == 1
    reasons = [entry.reason for entry in ledger.read_ledger(run.ledger) if entry.refusals]
    assert len(reasons) == 10 and "no more processes" in reasons[0]


def test_what_is_done_is_not_looked_at_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 240 evaluations; a look costs the few files that can have changed, and a request is still seen."""
    steps = {"steps": 2410, "checkpoint_every": 10}
    run = make_run(tmp_path, {"evaluation_s": 0}, train=steps, evaluate={"every": 10, "tasks": [TASK]})
    for step in range(10, 2410, 10):
        fakes.save(run, step, b"")
    driven = Evaluations(run, configs.reload(run.config), 1)
    for step in range(10, 2410, 10):
        entry = ledger.LedgerEntry(driven._wanted[step // 10 - 1].uid, step, TASK, "done", None, 1, at=0.0)
        fakes.evaluate(run.path, step, TASK)
        driven._record(entry)
    for folder in (run.checkpoints, run.evaluations):
        os.utime(folder, (0, 0))
    calls: list[str] = []
    assert driven.advance("going")
    for name in ("stat", "open", "exists"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name), calls))
    look_at_run(run)
    calls.clear()
    assert driven.advance("going") and len(calls) < 10
    calls.clear()
    look_at_run(run)
    assert len(calls) < 300 and calls.count("open") < 10, "one stat per result, and none is read again"
    request(run, 20, TASK)
    driven.advance("going")
    assert not has_requests(run)


def counted(method: Any, calls: list[str]) -> Any:
    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(method.__name__)
        return method(*arguments, **options)

    return count


def test_a_question_survives_the_agent_that_took_it_up(run: RunFolder) -> None:
    drive(run)
    request(run, STEP, TASK)
    Evaluations(run, configs.reload(run.config), 2).advance("complete", submitting=False)
    assert not has_requests(run) and evaluated(run) == 1
    assert drive(run).state == "done" and evaluated(run) == 2


def test_an_answer_counts_whatever_the_clock_of_its_file(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit_behind(*arguments: Any, **options: Any) -> Job:
        job = submit(*arguments, **options)
        os.utime(run.evaluation(STEP, TASK), (0, 0))
        return job

    monkeypatch.setattr(jobs, "submit", submit_behind)
    done = drive(run)
    assert (done.state, done.attempt) == ("done", 1)
    request(run, STEP, TASK)
    assert drive(run).state == "done" and evaluated(run) == 2


def test_a_second_job_for_a_question_does_not_answer_it_again(run: RunFolder) -> None:
    drive(run)
    asked = read_json(run.evaluation(STEP, TASK))["question"]
    evaluation_process.run_job(str(run.path), str(STEP), TASK, asked)
    assert evaluated(run) == 1
    evaluation_process.run_job(str(run.path), str(STEP), TASK, "another")
    assert evaluated(run) == 2


def test_the_result_of_an_older_version_is_not_done_again(run: RunFolder) -> None:
    drive(run)
    result = read_json(run.evaluation(STEP, TASK))
    del result["question"]
    run.evaluation(STEP, TASK).write_text(json.dumps(result))
    drive(run)
    assert evaluated(run) == 1


def test_the_ledger_names_the_folder_of_a_job_from_the_run_on(run: RunFolder) -> None:
    job = drive(run).job
    assert job is not None
    moved = RunFolder(run.path.rename(run.path.with_name("moved")))
    assert Job.from_json({**job, "folder": moved.path / job["folder"]}).log.exists()


def test_a_metric_that_is_not_finite_is_null_in_the_summary(run: RunFolder) -> None:
    assert drive(run, top1=None).state == "done"
    assert read_json(run.eval_result(STEP))["results"] == {"zero_shot_top1": None}


def test_an_error_of_ours_is_reported_without_its_class(tmp_path: Path, run: RunFolder) -> None:
    log = tmp_path / "log"
    log.write_text(
        "Traceback (most recent call last):\ntasks.core.errors.DataError: val: no sample has a label\n"
    )
    job: Any = SimpleNamespace(log=log, said_goodbye=True)
    failure = failure_of(drive(run), job, was_alive=False)
    assert failure == JobFailure("failed", f"val: no sample has a label (log: {log})")


def test_a_torn_result_is_named_as_the_reason(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def tear(folder: Path, step: int, task: str, question: str = "") -> None:
        path = RunFolder(folder).evaluation(step, task)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"task": "zero_sh')

    monkeypatch.setattr(evaluation_process, "run_evaluation", tear)
    failed = drive(run)
    assert (failed.state, len(failed.tried)) == ("failed", 2)
    assert "3 of 3 tries used; evaluations/step_40/zero_shot.json: it is torn" in failed.reason
    assert run.evaluation(STEP, TASK).exists(), "it has not settled"


def test_a_result_outlives_its_checkpoint(run: RunFolder) -> None:
    """Asking for it again, which cannot be done any more, does not take it away."""
    assert drive(run).state == "done"
    shutil.rmtree(run.checkpoint(STEP))
    request(run, STEP, TASK)
    assert drive(run).state == "done" and not has_requests(run)
    with pytest.raises(UsageError, match="has no checkpoint to evaluate again"):
        evaluation.evaluate(run.name, step=STEP, runs=run.path.parent)
