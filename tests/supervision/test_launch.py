"""Whoever waits for a run may be killed; whoever is killed while working does not leave anyone waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.lease import Lease
from tasks.runs import record
from tasks.supervision import launch
from tasks.supervision.status import list_status, look
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, finish, wait_for

WAITER = """
import sys
from pathlib import Path
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
launch.AGENT = "tests.supervision.fakes:agent_main"
run = RunFolder(Path(sys.argv[1]))
print("starting", flush=True)
launch.start_or_adopt(run)
launch.wait_for_training(run)
"""


def test_ctrl_c_hang_up_and_sigkill_of_the_waiter_leave_the_training_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.08})
    waiter = subprocess.Popen([sys.executable, "-c", WAITER, str(run.path)], start_new_session=True)
    wait_for(lambda: look(run).step >= 3)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        os.killpg(waiter.pid, signum)
    waiter.wait()
    before = look(run).step
    wait_for(lambda: look(run).step > before + 3)
    started = launch.start_or_adopt(run)
    assert started.adopted and started.job is not None
    finish(run)
    assert_undisturbed(run)
    assert len(record.load(run).attempts) == 1


def test_waiting_for_a_run_that_nobody_works_on_ends_with_where_to_look(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(DataError, match=r"its agent is gone, and it stands at step 0 of 40 \(planned\)"):
        launch.follow(run, lambda status: status.training_is_over)


def test_an_agent_that_cannot_work_is_told_with_its_log(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.rank_identity(1).mkdir(parents=True)
    launch.start_or_adopt(run)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"its agent is gone(.|\n)*IsADirectoryError(.|\n)*log: .*_log\.out"):
        launch.wait_for_training(run)
    assert time.monotonic() - began < 15


def test_a_start_waits_for_another_starter(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with Lease(run.lease):
        waiter = subprocess.Popen([sys.executable, "-c", WAITER, str(run.path)], stdout=subprocess.PIPE)
        assert waiter.stdout is not None and waiter.stdout.readline() == b"starting\n"
        with pytest.raises(subprocess.TimeoutExpired):
            waiter.wait(3 * launch.POLL_S)
        assert look(run).state == "planned"
    assert waiter.wait(timeout=30) == 0
    assert look(run).state == "succeeded"


def test_a_cancelled_run_that_nobody_works_on_is_marked(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert launch.cancel(run) is False
    assert (look(run).state, look(run).reason) == ("cancelled", "cancelled by the user")
    assert not run.stop.exists(), "nobody is there to obey it"


def test_status_lists_what_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path)
    record.save(run, record.load(run).having(state="running"))
    broken = run.path.parent / "broken-0123"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    (status,) = list_status(run.path.parent)
    assert status.is_abandoned and (status.step, status.steps, status.loss) == (0, 40, None)
    assert [one.state for one in status.evaluations] == ["pending"] and status.evaluations_missing == []
    assert "broken-0123" in caplog.text
