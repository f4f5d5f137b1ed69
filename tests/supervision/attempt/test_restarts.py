"""What ends a training from outside is followed by a restart from its newest checkpoint; what would come again
is not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError, Withdrawn
from tasks.core.files import read_json
from tasks.core.findings import Finding
from tasks.runs import record
from tasks.runs.goodput import goodput_of
from tasks.runs.lives import read_lives
from tasks.runs.run_findings import read_findings
from tasks.supervision import launch, stopping
from tasks.supervision.attempt import restarts
from tasks.supervision.attempt.restarts import Restart, Restarts
from tasks.supervision.ranks.success import TrainingEnd, judge_end
from tasks.supervision.status import look_at_run
from tests.supervision.fakes import make_config, make_run
from tests.supervision.test_agent import assert_undisturbed, rank_of, rows, wait_for

RESTART: dict[str, Any] = {"train": {"on_crash": "restart"}}


def test_a_killed_training_goes_on_by_itself_within_its_attempt(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.05}, **RESTART)
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 25)
    os.kill(rank_of(run).pid, signal.SIGKILL)
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)
    assert len(record.load_record(run).attempts) == 1 and read_json(run.exit(1))["restarts"] == 1
    (finding,) = read_findings(run)
    assert (finding["code"], finding["severity"]) == ("process.gone", "warning")
    assert "by itself (1 of 3)" in finding["remedy"]
    assert run.rank_log(1).with_suffix(".1.log").exists(), "the log of the killed one is kept"

    first, second = read_lives(run, 1)
    assert first.step in (25, 26, 27) and (second.first_step, second.step, second.reason) == (20, 40, "")
    assert "SIGKILL" in first.reason
    found = goodput_of(run, record.load_record(run))
    assert found is not None
    lost_s = first.spent["step"] * (first.step - 20) / first.step
    assert found.spent["restarting"] >= lost_s > 0.2
    assert found.spent["training"] == pytest.approx(
        first.spent["step"] + second.spent["step"] - lost_s, abs=0.5
    )


def test_one_that_gains_nothing_between_its_ends_is_given_up(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"die_at": 5}, **RESTART)
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match=r"killed by SIGKILL at step .; it was started again 3 times before"):
        launch.wait_for_training(run)
    assert [one["severity"] for one in read_findings(run)] == ["warning"] * 3 + ["error"]
    assert len(read_lives(run, 1)) == 4


@pytest.mark.parametrize("behaviour", [{"nan_at": 7}, {"no_batches": True}])
def test_what_the_data_or_the_model_did_is_not_repeated(tmp_path: Path, behaviour: dict[str, Any]) -> None:
    run = make_run(tmp_path, behaviour, **RESTART)
    launch.start_or_adopt(run)
    with pytest.raises(DataError):
        launch.wait_for_training(run)
    assert read_json(run.exit(1))["restarts"] == 0


def test_a_stop_ends_the_pause_before_a_restart(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"die_at": 25, "pauses_s": [60.0, 60.0, 60.0]}, **RESTART)
    launch.start_or_adopt(run)
    wait_for(lambda: "starts again in 60 s (1 of 3)" in look_at_run(run).reason)
    began = time.monotonic()
    stopping.end(run, "enough")
    assert time.monotonic() - began < 20
    with pytest.raises(Withdrawn, match=r"enough, at step 25 of 40, before it was started again: .*SIGKILL"):
        launch.wait_for_training(run)


def test_a_rank_that_is_stopped_is_examined_before_it_is_ended(tmp_path: Path) -> None:
    """The evidence of a standstill of several ranks is kept, and the training goes on."""
    blocks = {**RESTART, "engine": {"train": {"ranks": 2}}}
    run = make_run(tmp_path, {"odd_rank": 1, "does": "SIGSTOP", "step_s": 0.2, "STOPPED_S": 2.0}, **blocks)
    launch.start_or_adopt(run)
    wait_for(lambda: run.observation(1).exists(), 90)
    states = [one["first"]["state"] for one in read_json(run.observation(1))["processes"]]
    assert "T" in states
    wait_for(lambda: "1 of 3" in look_at_run(run).reason, 60)
    assert "it was stopped, as by SIGSTOP" in look_at_run(run).reason
    stopping.end(run, "enough")


def ended(**changes: Any) -> TrainingEnd:
    facts: dict[str, Any] = {"exit_code": -9, "step": 7, "last_step": 40, "loss": 1.0, "checkpoint": None}
    return TrainingEnd(**{**facts, **changes})


def after(policy: Restarts, **changes: Any) -> Restart | None:
    return policy.after(ended(**changes), judge_end(ended(**changes)))


def test_restarts_begin_anew_with_every_checkpoint(tmp_path: Path) -> None:
    train = make_config(tmp_path, **RESTART).train
    assert train is not None
    policy = Restarts(train, began_at=0)
    assert [after(policy) for _ in range(4)] == [
        *(Restart(pause_s, number) for number, pause_s in enumerate(restarts.PAUSES_S, 1)),
        None,
    ]
    assert after(policy, checkpoint=10) == Restart(0.0, 1) and policy.count == 4


@pytest.mark.parametrize(
    ("last", "exit_code", "may_pass"),
    [
        ("", -9, True),
        ("", -11, True),
        ("", -2, False),
        ("OSError: [Errno 5] Input/output error: '/data/train/000001.tar'", 1, True),
        ("OSError: [Errno 116] Stale file handle", 1, True),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", 1, True),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp", 1, True),
        ("error: a loader worker (pid 41) of /data/train was killed by SIGKILL", 1, True),
        ("torch.OutOfMemoryError: CUDA out of memory.", 1, False),
        ("OSError: [Errno 28] No space left on device", 1, False),
        ("error: train/000007.tar row 2, key 'a': is bad", 1, False),
        ("ValueError: the shapes do not fit", 1, False),
    ],
)
def test_a_failure_of_the_user_is_final_and_one_of_the_machine_is_not(
    last: str, exit_code: int, may_pass: bool
) -> None:
    verdict = judge_end(ended(exit_code=exit_code, log_tail=[last] if last else []))
    assert verdict.state == "failed" and verdict.may_pass is may_pass
    assert all(isinstance(finding, Finding) for finding in verdict.findings)
