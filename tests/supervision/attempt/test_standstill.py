"""A training that stands still is examined while it lives, and is reported as stalled until it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.core.files import read_json, read_lines, write_json
from tasks.core.process import Identity
from tasks.diagnosis.run_doctor import examine_run
from tasks.runs import lives
from tasks.runs.phases import Phase
from tasks.supervision import launch
from tasks.supervision.attempt import standstill
from tasks.supervision.attempt.standstill import GoesOn, Stalled, Standstill
from tasks.supervision.status import look_at_run
from tests.supervision.conftest import processes_of
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, finish, wait_for


@pytest.mark.proof
def test_a_checkpoint_that_nobody_takes_is_named_and_the_run_goes_on_when_it_is_taken(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"stands_still_at": 7, "silence_s": 3.0})
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).state == "stalled", 120)

    status = look_at_run(run)
    assert "checkpoint.stalled" in status.reason and "at step" in status.reason
    findings, _ = read_lines(run.findings)
    assert [one["code"] for one in findings] == ["checkpoint.stalled"]
    assert findings[0]["where"]["file"] == "held.pt"
    assert read_json(run.observation(1))["processes"], "the evidence is kept"

    examined = examine_run(run, seconds=2.0)
    assert examined.verdict.report.findings[0].code == "checkpoint.stalled"

    drain = os.open(run.checkpoints / "held.pt", os.O_RDONLY)
    left = 1 << 20
    while left:
        left -= len(os.read(drain, left))
    os.close(drain)
    wait_for(lambda: look_at_run(run).state != "stalled", 60)
    finish(run)
    assert_undisturbed(run)
    assert look_at_run(run).reason == ""


def test_the_wait_for_data_within_a_stall_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped worker of the loader makes its rank wait: that time is stalled, not also waiting for data."""
    run, pid = make_run(tmp_path), os.getpid()
    monkeypatch.setattr(standstill, "LOOK_S", 0.0)
    watch = Standstill(run, 1)

    def reported(at: float, data_wait_s: float) -> GoesOn | Stalled | None:
        spent = {"step": at - 1000.0}
        write_json(run.phase(), vars(Phase("step", 5, 1000.0, at, pid, [], spent, data_wait_s)))
        return watch.look([pid])

    assert reported(1010.0, 2.0) is None
    watch._is_stalled = True
    assert reported(1100.0, 2.1) == GoesOn("step", 90.0)
    assert reported(1101.0, 82.1) is None, "the rank adds its waiting up some steps later"
    assert reported(1103.0, 83.0) is None
    assert watch.stalled_wait_s() == pytest.approx(79.1)

    write_json(run.rank_identity(1), Identity.mine().to_json() | {"started": 1000.0})
    lives.end_life(run, 1, 1103.0, "", {"step": 90.0}, 9, watch.stalled_wait_s())
    (life,) = lives.read_lives(run, 1)
    assert (life.data_wait_s, life.steps_s) == (3.9, 13.0)


def test_a_training_that_stands_still_is_restarted_from_its_newest_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"stands_still_at": 13, "silence_s": 3.0}, train={"on_stall": "restart"})
    finish(run)
    assert_undisturbed(run)
    assert read_json(run.exit(1))["restarts"] == 1
    findings, _ = read_lines(run.findings)
    assert [one["code"] for one in findings] == ["checkpoint.stalled"], "the evidence came first"
    assert read_json(run.observation(1))["processes"]


@pytest.mark.system
@pytest.mark.proof
def test_a_training_that_always_stands_still_ends_with_the_cause(tmp_path: Path) -> None:
    behaviour = {"stands_still_at": 3, "again": True, "silence_s": 3.0, "restarts": 1}
    run = make_run(tmp_path, behaviour, train={"on_stall": "restart"})
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).training_is_over, 180)
    status = look_at_run(run)
    assert status.state == "failed"
    assert ": checkpoint.stalled: rank 0 writes" in status.reason
    assert status.reason.endswith("ended after 1 restart, as train.on_stall requires")
    wait_for(lambda: not look_at_run(run).agent_is_alive, 60)
    wait_for(lambda: processes_of(tmp_path) == [], 60)


def test_what_the_agent_wrote_explains_a_run_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, {"die_at": 7})
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).training_is_over)
    monkeypatch.delattr("tasks.diagnosis.run_doctor.observe")
    verdict = examine_run(run).verdict
    assert verdict.state == "gone" and "SIGKILL" in verdict.sentence
    assert [one.code for one in verdict.report.findings] == ["process.gone"]
