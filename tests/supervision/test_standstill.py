"""A training that stands still is examined while it lives, and is reported as stalled until it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.core.files import read_json, read_lines
from tasks.diagnosis.run_doctor import examine_run
from tasks.supervision import launch
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


def test_a_training_that_stands_still_is_restarted_from_its_newest_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"stands_still_at": 13, "silence_s": 3.0}, train={"on_stall": "restart"})
    finish(run)
    assert_undisturbed(run)
    assert read_json(run.exit(1))["restarts"] == 1
    findings, _ = read_lines(run.findings)
    assert [one["code"] for one in findings] == ["checkpoint.stalled"], "the evidence came first"
    assert read_json(run.observation(1))["processes"]


@pytest.mark.system
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
