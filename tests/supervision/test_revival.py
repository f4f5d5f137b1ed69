"""An agent that was killed is started again by whoever looks at its run."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.commands.status import status as status_command
from tasks.core.errors import DataError
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.supervision import launch, stopping
from tasks.supervision.status import look_at_run
from tests.supervision.conftest import processes_of
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, rows, wait_for

RESTART: dict[str, Any] = {"train": {"on_crash": "restart"}}


def kill_everything(tmp_path: Path, run: RunFolder) -> None:
    everything = processes_of(tmp_path)
    for process in everything:
        process.kill()
    psutil.wait_procs(everything, timeout=60)
    wait_for(lambda: not look_at_run(run).agent_is_alive)


def test_a_watcher_starts_a_killed_agent_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path, {"step_s": 0.05}, **RESTART)
    launch.start_or_adopt(run)
    killed: list[int] = []

    def kill_once(_: object) -> None:
        if not killed and rows(run) >= 15:
            killed.append(record.load_record(run).attempts[-1].pid)
            os.kill(killed[0], signal.SIGKILL)

    launch.wait_for_training(run, kill_once)
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)
    lost, last = record.load_record(run).attempts
    assert (lost.outcome, last.outcome) == ("lost", "succeeded") and lost.pid == killed[0]
    assert "started again (1 of 3)" in caplog.text


def test_status_starts_it_again_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, {"step_s": 0.1}, **RESTART)
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 12)
    kill_everything(tmp_path, run)
    status_command(runs=run.path.parent)
    shown = capsys.readouterr().out
    assert "! its agent was killed at step 1" in shown and "started again (1 of 3)" in shown
    assert "NEEDS YOU" not in shown
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)


@pytest.mark.proof
def test_an_agent_that_dies_again_and_again_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, {"step_s": 5.0}, **RESTART)
    launch.start_or_adopt(run)
    for _ in range(launch.REVIVALS):
        wait_for(lambda: record.load_record(run).attempts != [] and run.rank_identity(attempts(run)).exists())
        kill_everything(tmp_path, run)
        assert "started again" in launch.revive(run)
        before = attempts(run)
        wait_for(lambda before=before: attempts(run) > before)  # type: ignore[misc]
    kill_everything(tmp_path, run)
    assert launch.revive(run) == "" and processes_of(tmp_path) == []
    status_command(runs=run.path.parent, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["state"] == "failed" and row["needs_you"] and row["revived"] is None
    with pytest.raises(DataError, match="its agent is gone"):
        launch.wait_for_training(run)


def attempts(run: RunFolder) -> int:
    return len(record.load_record(run).attempts)


@pytest.mark.parametrize("why", ["stop", "elsewhere", "forbidden", "cancelled"])
def test_nobody_is_started_against_a_persons_will(tmp_path: Path, why: str) -> None:
    run = make_run(tmp_path, {"step_s": 0.1}, **({} if why == "forbidden" else RESTART))
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 2)
    kill_everything(tmp_path, run)
    if why == "stop":
        run.stop.write_text("enough")
    if why == "cancelled":
        stopping.end(run, "enough")
    if why == "elsewhere":
        state = record.load_record(run)
        record.save_record(run, state.having_last(host="another", boot_id="another"))
    assert launch.revive(run) == "" and processes_of(tmp_path) == []


def test_a_cancel_at_the_last_moment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, {"step_s": 0.1}, **RESTART)
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 2)
    kill_everything(tmp_path, run)
    monkeypatch.setattr(launch, "_may_revive", lambda status: bool(stopping.end(run, "enough")))
    assert launch.revive(run) == "" and processes_of(tmp_path) == []
    assert record.load_record(run).state == "cancelled"


@pytest.mark.proof
def test_the_job_that_revives_waits_for_the_lease_of_a_lost_host(tmp_path: Path) -> None:
    """A killed agent of another host seems alive until its lease is stale."""
    run = make_run(tmp_path, {"step_s": 0.05}, **RESTART)
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 2)
    kill_everything(tmp_path, run)
    lease = json.loads(run.lease.read_text())
    run.lease.write_text(json.dumps({**lease, "host": "another", "boot_id": "another"}))
    job = record.load_record(run).job
    assert job is not None
    launch.revive_in_slurm(str(run.path), "4711")
    assert processes_of(tmp_path) == [], "it follows another job"
    reviver = threading.Thread(target=launch.revive_in_slurm, args=(str(run.path), job["id"]))
    reviver.start()
    reviver.join(1.0)
    assert reviver.is_alive() and attempts(run) == 1
    os.utime(run.lease, (0, 0))
    reviver.join(60)
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)


@pytest.mark.proof
def test_a_killed_agent_of_evaluations_is_started_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"evaluation_s": 3.0}, **RESTART)
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    wait_for(lambda: (run.path / "evaluated").exists())
    kill_everything(tmp_path, run)
    launch.wait_for_evaluations(run)
    assert look_at_run(run).is_complete
