"""Real jobs through submitit: they outlive their submitter and nothing outlives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tasks.core.errors import TarmacError
from tasks.core.process import Identity
from tasks.runs import jobs
from tasks.runs.job import Job

TELL = "tests.runs.jobs_of_tests:tell"
SUBMITTER = """
import json, sys, time
from pathlib import Path
from tasks.runs import jobs
job = jobs.submit("tests.runs.jobs_of_tests:tell", [sys.argv[1], sys.argv[2]], Path(sys.argv[3]),
                  time_limit_s=60, name="told")
print(json.dumps(job.to_json()), flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(jobs.__file__).parents[2]))


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def told(path: Path) -> list[str]:
    wait_for(lambda: path.exists() and path.read_text() != "")
    return path.read_text().split()


def test_a_job_survives_ctrl_c_hang_up_and_death_of_its_submitter(tmp_path: Path) -> None:
    note = tmp_path / "note"
    command = [sys.executable, "-c", SUBMITTER, str(note), "2", str(tmp_path / "jobs")]
    submitter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert submitter.stdout is not None
    job = Job.from_json(json.loads(submitter.stdout.readline()))
    pid, session, gpus = told(note)
    assert int(session) != os.getsid(submitter.pid)
    assert gpus == "''", "no GPU is visible unless asked for"
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        os.killpg(submitter.pid, signum)
    submitter.wait()
    assert job.is_alive() and psutil.pid_exists(int(pid))
    wait_for(lambda: not job.is_alive())
    assert note.read_text() == "done" and job.said_goodbye


def test_a_job_dies_with_its_controller(tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = jobs.submit(TELL, [str(note), "30"], tmp_path, time_limit_s=60, name="told")
    process = Identity.of(int(told(note)[0]))
    psutil.Process(job.identity.pid).kill()
    wait_for(lambda: not process.is_alive(), timeout_s=3)
    assert not job.is_alive() and not job.said_goodbye


def test_a_job_ends_at_its_time_limit_and_says_so(tmp_path: Path) -> None:
    began = time.monotonic()
    job = jobs.submit(TELL, [str(tmp_path / "note"), "30"], tmp_path, time_limit_s=4, name="told")
    wait_for(lambda: not job.is_alive())
    assert time.monotonic() - began < 10
    assert "the job came to its time limit" in job.log.read_text()


def test_a_failure_is_in_the_log(tmp_path: Path) -> None:
    job = jobs.submit("tests.runs.jobs_of_tests:fail", [], tmp_path, time_limit_s=60, name="failing")
    wait_for(lambda: not job.is_alive())
    assert job.said_goodbye and job.log.read_text().rstrip().endswith("ValueError: the weights do not fit")


def test_what_cannot_be_submitted_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(TarmacError, match=r"could not be submitted(.|\n)*2 GPUs are asked for"):
        jobs.submit(TELL, [], tmp_path, time_limit_s=60, gpus=2, name="greedy")


def test_gpus_are_counted_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert jobs.gpus_here(tmp_path) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert jobs.gpus_here(tmp_path) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert jobs.gpus_here(tmp_path) == 0


def test_gpus_are_taken_from_those_visible() -> None:
    assert jobs.visible_gpus(2, None) == ("0", "1")
    assert jobs.visible_gpus(2, "5,3,1") == ("5", "3")
    assert jobs.visible_gpus(1, "MIG-0a1b, GPU-2c3d") == ("MIG-0a1b",)
    assert jobs.visible_gpus(0, "-1,0") == ()
    with pytest.raises(TarmacError, match="leaves 0"):
        jobs.visible_gpus(1, "")
