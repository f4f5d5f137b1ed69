"""Whoever waits for a run may be killed; whoever is killed while working does not leave anyone waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flows.commands.status import status as status_command
from tasks.core.errors import DataError, UsageError
from tasks.core.files import link_atomic, read_json, write_json
from tasks.core.lock import HEARTBEAT_S, STALE_S, Lease
from tasks.core.process import Identity
from tasks.evaluation.expected import wanted_of
from tasks.runs import ledger, provenance, record
from tasks.runs.ledger import LedgerEntry
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.runs.record import Attempt
from tasks.supervision import launch, stopping
from tasks.supervision.status import config_of, list_status, look_at_run
from tests.supervision import fakes
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, finish, wait_for

WAITER = """
import sys
from pathlib import Path
from tasks.runs.folder import RunFolder
from tasks.supervision import launch, stopping
launch.AGENT = "tests.supervision.fakes:agent_main"
run = RunFolder(Path(sys.argv[1]))
print("starting", flush=True)
launch.start_or_adopt(run)
launch.wait_for_training(run)
"""


def test_ctrl_c_hang_up_and_sigkill_of_the_waiter_leave_the_training_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.15})
    waiter = subprocess.Popen([sys.executable, "-c", WAITER, str(run.path)], start_new_session=True)
    wait_for(lambda: look_at_run(run).step >= 3)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        os.killpg(waiter.pid, signum)
    waiter.wait()
    before = look_at_run(run).step
    wait_for(lambda: look_at_run(run).step > before + 3)
    started = launch.start_or_adopt(run)
    assert started.adopted and started.job is not None
    finish(run)
    assert_undisturbed(run)
    assert len(record.load_record(run).attempts) == 1


@pytest.mark.proof
def test_an_attempt_runs_the_code_that_it_was_started_with(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"where": True})
    finish(run)
    code = run.code(1).resolve()
    where = [Path(line) for line in (run.path / "where").read_text().splitlines()]
    assert len(where) >= 2, "the training and its evaluations"
    assert all(path.is_relative_to(code) for path in where)
    (attempt,) = record.load_record(run).attempts
    assert attempt.code_digest == provenance.code_digest()


def test_waiting_for_a_run_that_nobody_works_on_ends_with_where_to_look(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(DataError, match=r"its agent is gone, and it stands at step 0 of 40 \(planned\)"):
        launch.follow(run, lambda status: status.training_is_over)


def test_an_agent_that_cannot_work_is_reported_with_its_log(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.rank_identity(1).mkdir(parents=True)
    launch.start_or_adopt(run)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"its agent is gone(.|\n)*IsADirectoryError(.|\n)*log: .*_log\.out"):
        launch.wait_for_training(run)
    assert time.monotonic() - began < 25


@pytest.mark.proof
def test_a_start_waits_for_another_starter(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with Lease(run.lease):
        waiter = subprocess.Popen([sys.executable, "-c", WAITER, str(run.path)], stdout=subprocess.PIPE)
        assert waiter.stdout is not None and waiter.stdout.readline() == b"starting\n"
        with pytest.raises(subprocess.TimeoutExpired):
            waiter.wait(3 * launch.POLL_S)
        assert look_at_run(run).state == "planned"
    assert waiter.wait(timeout=120) == 0
    assert look_at_run(run).state == "succeeded"


@pytest.mark.proof
def test_two_starters_of_a_failed_run_train_it_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"die_at": 12})
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match="killed by SIGKILL at step 12"):
        launch.wait_for_training(run)
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    (run.path / "fake.json").write_text("{}")
    starters = [subprocess.Popen([sys.executable, "-c", WAITER, str(run.path)]) for _ in range(3)]
    assert [starter.wait(timeout=120) for starter in starters] == [0, 0, 0], look_at_run(run).reason
    finish(run)
    assert_undisturbed(run)
    assert [attempt.outcome for attempt in record.load_record(run).attempts] == ["failed", "succeeded"]


def test_a_cancelled_run_that_nobody_works_on_is_marked(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert stopping.cancel(run) is False
    assert (look_at_run(run).state, look_at_run(run).reason) == ("cancelled", "cancelled by the user")
    assert not run.stop.exists(), "nobody is there to obey it"


def test_status_lists_what_can_be_read_and_why_the_rest_cannot(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record.save_record(run, record.load_record(run).having(state="running"))
    broken = run.path.parent / "broken-0123"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    odd = make_run(tmp_path / "odd")
    record.save_record(odd, record.load_record(odd).having(identity={}))
    odd.path.rename(run.path.parent / "odd-4567")
    (status,), unreadable = list_status(run.path.parent)
    assert status.is_abandoned and (status.step, status.steps, status.loss) == (0, 40, None)
    assert [one.state for one in status.evaluations] == ["pending"] and status.evaluations_missing == []
    assert list(unreadable) == ["broken-0123", "odd-4567"]
    assert "is no run record" in unreadable["broken-0123"] and "steps" in unreadable["odd-4567"]


def attempt_of(agent: Identity) -> Attempt:
    """An attempt that the agent has just begun."""
    return Attempt(
        started=time.time(),
        host=agent.host,
        boot_id=agent.boot_id,
        pid=agent.pid,
        pid_started=agent.started,
        pid_ticks=agent.ticks,
        job="7",
        code_digest="",
        versions={},
    )


def test_an_agent_on_another_host_is_adopted(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    elsewhere = replace(Identity.mine(), host="elsewhere", pid=7)
    write_json(run.lease, {**elsewhere.to_json(), "since": time.time()})
    record.save_record(run, record.load_record(run).having(state="running", attempts=[attempt_of(elsewhere)]))
    began = time.monotonic()
    assert launch.start_or_adopt(run).adopted
    assert time.monotonic() - began < 30


@pytest.mark.proof
def test_a_start_outwaits_the_lease_of_a_host_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert launch.HANDOVER_S > STALE_S + HEARTBEAT_S
    monkeypatch.setattr(launch, "PATIENCE_S", 0.5)
    run = make_run(tmp_path)
    gone = replace(Identity.mine(), boot_id="before the reboot")
    write_json(run.lease, {**gone.to_json(), "since": time.time()})
    stale = time.time() - STALE_S + 2
    os.utime(run.lease, (stale, stale))
    assert not launch.start_or_adopt(run).adopted
    assert "waiting for it to leave" in caplog.text
    finish(run)


def test_status_tells_a_silent_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    record.save_record(run, record.load_record(run).having(state="running"))
    PhaseWriter(run).set("first_batch", 3)
    with Lease(run.lease):
        assert look_at_run(run).silent_s == 0
        said = read_json(run.phase())
        write_json(run.phase(), {**said, "at": said["at"] - 600})
        assert look_at_run(run).silent_s == 0, "the clock of its machine is 10 minutes behind"
        then = run.lease.stat().st_mtime - 95
        os.utime(run.phase(), (then, then))
        status_command(runs=run.path.parent)
        record.save_record(run, record.load_record(run).having(attempts=[attempt_of(Identity.mine())]))
        assert look_at_run(run).silent_s == 0, "that was said by the attempt before"
    printed = capsys.readouterr().out
    assert (
        "3/40" in printed and "! it has logged nothing for 9" in printed and "in phase first_batch" in printed
    )


def test_a_run_that_a_person_cancelled_needs_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    mine = attempt_of(Identity.mine()).model_copy(update={"ended": 2.0, "outcome": "cancelled"})
    record.save_record(run, record.load_record(run).having(state="cancelled", attempts=[mine]))
    (want,) = wanted_of(run.id, config_of(run))
    ledger.append(run.ledger, LedgerEntry(want.uid, want.step, want.task, "submitted", None, 1, at=1.0))
    status_command(runs=run.path.parent)
    assert "NEEDS YOU" not in capsys.readouterr().out
    ledger.append(run.ledger, LedgerEntry(want.uid, want.step, want.task, "lost", None, 3, at=1.0))
    status_command(runs=run.path.parent)
    printed = capsys.readouterr().out
    assert "evaluation without a result: step 40 zero_shot: it was lost, and its job is gone" in printed


def test_an_evaluation_that_waits_to_be_tried_again_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    (want,) = wanted_of(run.id, config_of(run))
    why = "job 7 ended without a result; try 2 of 3 in 30 s"
    asked = LedgerEntry(want.uid, want.step, want.task, "submitted", None, 1, at=time.time(), reason=why)
    ledger.append(run.ledger, asked)
    with Lease(run.lease):
        status_command(runs=run.path.parent)
        assert f"    step 40 zero_shot: {why}\n" in capsys.readouterr().out
        status_command(runs=run.path.parent, as_json=True)
        (row,) = json.loads(capsys.readouterr().out)["runs"]
        assert row["evaluations_waiting"] == [{"step": 40, "task": "zero_shot", "reason": why}]


def test_the_json_of_a_dead_run_says_that_it_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    record.save_record(run, record.load_record(run).having(state="running"))
    status_command(runs=run.path.parent, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["state"], row["agent_is_alive"]) == ("failed", False)
    assert row["reason"].startswith("its agent is gone")


def test_the_newest_training_shows_how_far_a_run_has_come(tmp_path: Path) -> None:
    """Rows of a killed training lie ahead of the one that resumed."""
    run = make_run(tmp_path)
    MetricsWriter(run.metrics).append(make_row(TRAIN_AXIS, 30, "train", {}))
    assert look_at_run(run).step == 30
    phases = PhaseWriter(run)
    phases.set("start", 0)
    assert look_at_run(run).step == 0
    phases.set("step", 21)
    assert look_at_run(run).step == 21


def test_a_torn_result_is_none(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record.save_record(run, record.load_record(run).having(state="succeeded"))
    fakes.save(run, 40, b"weights")
    (want,) = wanted_of(run.id, config_of(run))
    fakes.evaluate(run.path, want.step, want.task, want.uid)
    ledger.append(run.ledger, LedgerEntry(want.uid, want.step, want.task, "done", None, 1, at=time.time()))
    assert look_at_run(run).evaluations_missing == []
    result = run.evaluation(want.step, want.task)
    result.write_bytes(result.read_bytes()[:20])
    assert look_at_run(run).evaluations_missing


@pytest.mark.proof
def test_a_best_checkpoint_that_results_do_not_choose_is_work_left(tmp_path: Path) -> None:
    """As where an agent was killed between the last result and the link."""
    best = {"every": 20, "tasks": ["zero_shot"], "best": "zero_shot_top1"}
    run = make_run(tmp_path, evaluate=best)
    launch.start_or_adopt(run)
    finish(run)
    assert run.best.readlink().name == run.checkpoint(40).name
    link_atomic(run.best, run.checkpoint(20).name)
    assert not look_at_run(run).is_complete and not look_at_run(run).evaluations_missing
    assert not launch.start_or_adopt(run, "evaluate").is_up_to_date
    assert launch.wait_for_evaluations(run).is_complete
    assert run.best.readlink().name == run.checkpoint(40).name
    assert (run.path / "evaluated").read_text() == "20\n40\n", "nothing is judged again"
    assert launch.start_or_adopt(run, "evaluate").is_up_to_date


def test_status_of_a_folder_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status_command(runs=Path("runs")) == 0
    for name in ("rums", "file"):
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match="--runs: there is no folder"):
            status_command(runs=Path(name))
