"""The agent judges the end of a training by what this attempt left, and records it in the run folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.errors import DataError, Withdrawn
from tasks.core.files import read_json
from tasks.runs import phases, record
from tasks.supervision import launch, stopping
from tasks.supervision.ranks.success import tail_of
from tasks.supervision.status import look_at_run
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, finish, rank_of, wait_for


@pytest.mark.proof
def test_a_killed_training_is_called_that_and_resumes(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"die_at": 25}, evaluate={"every": 20, "tasks": ["zero_shot"]})
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match="killed by SIGKILL at step 25"):
        launch.wait_for_training(run)
    launch.wait_for_evaluations(run)
    assert read_json(run.exit(1))["signal"] == "SIGKILL"
    (finding,) = [json.loads(line) for line in run.findings.read_text().splitlines()]
    assert finding["code"] == "process.gone" and finding["attempt"] == 1
    assert run.eval_result(20).exists() and not run.eval_result(40).exists()
    (run.path / "fake.json").write_text("{}")
    finish(run)
    assert_undisturbed(run)


@pytest.mark.proof
def test_a_resumed_training_is_judged_by_where_it_stands_itself(tmp_path: Path) -> None:
    """The one before it died with its last step done and not kept."""
    run = make_run(tmp_path, {"die_at": 40})
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match="killed by SIGKILL at step 40"):
        launch.wait_for_training(run)
    (run.path / "fake.json").write_text('{"step_s": 0.5}')
    launch.start_or_adopt(run)
    wait_for(lambda: len(record.load_record(run).attempts) == 2 and run.rank_identity(2).exists())
    rank = rank_of(run)
    wait_for(lambda: (phase := phases.read_phase(run.phase())) is not None and phase.pid == rank.pid)
    stopping.cancel(run)
    with pytest.raises(Withdrawn, match=r"cancelled by the user, at step 3[1-4] of 40"):
        launch.wait_for_training(run)
    ended = read_json(run.exit(2))
    assert ended["step"] < 35 and ended["loss"] == 1 / ended["step"]
    assert len(run.findings.read_text().splitlines()) == 1, "a stop is no failure"


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"no_batches": True})
    run.findings.symlink_to("/dev/full")
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match=r"failed: the disk of .*fake-.* is full; make room"):
        launch.wait_for_training(run)
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    (attempt,) = record.load_record(run).attempts
    assert attempt.outcome == "failed" and attempt.ended is not None
    run.findings.unlink()
    (run.path / "fake.json").write_text("{}")
    finish(run)
    assert_undisturbed(run)


def test_exit_code_0_without_a_batch_is_a_failure(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"no_batches": True, "says": "all samples were dropped"})
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match=r"saw no batch(.|\n)*rank_0.log") as caught:
        launch.wait_for_training(run)
    assert str(caught.value).count("all samples were dropped") == 1, "the reason quotes it"
    assert "run.no_batches" in run.findings.read_text()


def test_a_loss_that_is_not_finite_is_a_failure(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"nan_at": 7})
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match="loss was not finite at step 7"):
        launch.wait_for_training(run)
    assert "loss.nonfinite" in run.findings.read_text()


KILLED = """
import multiprocessing, os
held = multiprocessing.get_context("spawn").Semaphore()
print("the last words", flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_python_says_of_semaphores_is_not_the_last_word(tmp_path: Path) -> None:
    log = tmp_path / "rank_0.log"
    with log.open("w") as output:
        rank = subprocess.Popen([sys.executable, "-c", KILLED], stdout=output, stderr=output)
        rank.wait()
    wait_for(lambda: "leaked semaphore objects" in log.read_text() and log.read_text().endswith("\n"))
    assert tail_of(log) == ["the last words"]


CRASHED = """
import ctypes
from tasks.core.process import explain_itself
explain_itself()
def in_the_middle_of_a_kernel():
    ctypes.string_at(0)
in_the_middle_of_a_kernel()
"""


def test_a_rank_that_crashes_in_c_names_its_python_line(tmp_path: Path) -> None:
    log = tmp_path / "rank_0.log"
    with log.open("w") as output:
        rank = subprocess.run([sys.executable, "-c", CRASHED], stdout=output, stderr=output)
    assert rank.returncode == -signal.SIGSEGV
    lines = tail_of(log)
    assert lines[0] == "Fatal Python error: Segmentation fault"
    assert any("in in_the_middle_of_a_kernel" in line for line in lines)
    assert not any(line.startswith("Extension modules") for line in lines)
