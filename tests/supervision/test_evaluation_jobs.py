"""A run's evaluations in the hands of its agent: what is asked, what counts as an answer, what is kept.

The jobs run in this process, because only what they leave matters here.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.core import config as configs
from tasks.core.files import read_json
from tasks.core.process import Identity
from tasks.runs import jobs, ledger
from tasks.runs.folder import RunFolder
from tasks.runs.job import Job
from tasks.supervision import evaluation_jobs
from tasks.supervision.evaluation_jobs import Evaluations, _last_words, has_requests, request
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
    monkeypatch.setattr(evaluation_jobs, "EVALUATE", "tests.supervision.fakes:evaluate")
    monkeypatch.setattr(jobs, "submit", submit)


def submit(target: str, arguments: list[str], folder: Path, *, name: str, **options: Any) -> Job:
    place = folder / name
    place.mkdir(parents=True)
    says = "INFO:submitit:Job completed successfully"
    try:
        evaluation_jobs.run_job(*arguments)
    except ValueError as error:
        says = f"ValueError: {error}\nERROR:submitit:Submitted job triggered an exception"
    gone = replace(Identity.mine(), boot_id="before the reboot")
    job = Job("7", gone, place)
    job.log.write_text(f"submitit INFO (now) - Starting\n{says}\nsubmitit INFO (now) - Exiting\n")
    (place / "7_0_result.pkl").touch()
    return job


def drive(run: RunFolder, **behaviour: Any) -> ledger.Entry:
    """An agent's evaluations until all are final; returns the last word on the one of the last step."""
    (run.path / "fake.json").write_text(json.dumps({"evaluation_s": 0.0, **behaviour}))
    number = len(list(run.attempts.glob("*"))) + 1
    evaluations = Evaluations(run, configs.reload(run.config), number)
    while evaluations.advance("complete"):
        pass
    return ledger.fold(ledger.read(run.ledger))[STEP, TASK]


def evaluated(run: RunFolder) -> int:
    return len((run.path / "evaluated").read_text().split())


def test_what_was_asked_for_again_in_vain_keeps_its_result(run: RunFolder) -> None:
    assert drive(run).state == "done"
    result, summary = run.evaluation(STEP, TASK).read_bytes(), run.eval_result(STEP).read_bytes()
    request(run, STEP, TASK)
    failed = drive(run, evaluation_fails_at=STEP)
    assert (failed.state, failed.attempt) == ("failed", 3)
    assert "3 of 3 tries used; ValueError: the weights do not fit (log: " in failed.reason
    assert run.evaluation(STEP, TASK).read_bytes() == result
    assert run.eval_result(STEP).read_bytes() == summary
    assert not has_requests(run)
    assert drive(run).state == "done" and evaluated(run) == 5


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
    evaluation_jobs.run_job(str(run.path), str(STEP), TASK, asked)
    assert evaluated(run) == 1
    evaluation_jobs.run_job(str(run.path), str(STEP), TASK, "another")
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


def test_an_error_of_ours_is_told_without_its_class(tmp_path: Path, run: RunFolder) -> None:
    log = tmp_path / "log"
    log.write_text(
        "Traceback (most recent call last):\ntasks.core.errors.DataError: val: no sample has a label\n"
    )
    job: Any = SimpleNamespace(log=log, said_goodbye=True)
    assert _last_words(drive(run), job) == ("failed", f"val: no sample has a label (log: {log})")
