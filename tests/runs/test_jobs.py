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

from tasks.core.engines.slurm_queue import SlurmJob
from tasks.core.errors import TarmacError
from tasks.core.process import Identity
from tasks.runs import jobs
from tasks.runs.gpus import SPARE_GPUS, VISIBLE_GPUS, gpu_environment, gpus_here
from tasks.runs.jobs import Job

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


def words_of(path: Path) -> list[str]:
    wait_for(lambda: path.exists() and path.read_text() != "")
    return path.read_text().split()


def test_a_job_survives_ctrl_c_hang_up_and_death_of_its_submitter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    note = tmp_path / "note"
    command = [sys.executable, "-c", SUBMITTER, str(note), "2", str(tmp_path / "jobs")]
    submitter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert submitter.stdout is not None
    job = Job.from_json(json.loads(submitter.stdout.readline()))
    pid, session, gpus = words_of(note)
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
    process = Identity.of(int(words_of(note)[0]))
    psutil.Process(job.identity.pid).kill()
    wait_for(lambda: not process.is_alive(), timeout_s=3)
    assert not job.is_alive() and not job.said_goodbye


def test_a_job_without_a_time_limit_runs(tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = jobs.submit(TELL, [str(note), "0.5"], tmp_path, time_limit_s=None, name="told")
    words_of(note)
    assert job.is_alive()
    wait_for(lambda: not job.is_alive())
    assert job.said_goodbye, job.log.read_text()


def test_a_job_ends_at_its_time_limit_and_says_so(tmp_path: Path) -> None:
    began = time.monotonic()
    job = jobs.submit(TELL, [str(tmp_path / "note"), "30"], tmp_path, time_limit_s=4, name="told")
    wait_for(lambda: not job.is_alive())
    assert time.monotonic() - began < 25
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
    assert gpus_here(tmp_path) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus_here(tmp_path) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_here(tmp_path) == 0


def test_gpus_are_taken_from_those_visible(tmp_path: Path) -> None:
    def given(gpus: int, visible: str) -> tuple[str | None, str | None]:
        found = gpu_environment(gpus, {VISIBLE_GPUS: visible}, tmp_path)
        return found[VISIBLE_GPUS], found[SPARE_GPUS]

    assert given(2, "5,3,1") == ("5,3", "1")
    assert given(1, "MIG-0a1b, GPU-2c3d") == ("MIG-0a1b", "GPU-2c3d")
    assert given(0, "-1,0") == ("", "")
    with pytest.raises(TarmacError, match="1 GPUs are asked for, but there are 0"):
        given(1, "")


def test_the_job_of_a_job_gets_a_gpu_that_the_first_left(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    first = gpu_environment(1, {}, tmp_path)
    assert first == {VISIBLE_GPUS: "0", SPARE_GPUS: "1"}
    second = gpu_environment(1, {name: value or "" for name, value in first.items()}, tmp_path)
    assert second == {VISIBLE_GPUS: "1", SPARE_GPUS: ""}
    (tmp_path / "nvidia1").unlink()
    only = {name: value or "" for name, value in gpu_environment(1, {}, tmp_path).items()}
    assert gpu_environment(1, only, tmp_path)[VISIBLE_GPUS] == "0", "the only one is shared"


def test_a_job_finds_out_by_itself_where_nothing_tells_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under WSL, ROCm or on a Jetson."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpus_here():
        pytest.skip("this machine has device files")
    note = tmp_path / "note"
    jobs.submit(TELL, [str(note), "0.2"], tmp_path, time_limit_s=60, name="told")
    assert words_of(note)[2] == "None"


def test_a_slurm_job_sees_the_gpus_that_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its submitter saw says nothing of its node; what Slurm says there does."""
    monkeypatch.setattr(jobs.signal, "signal", lambda *_: None)
    monkeypatch.setenv(SPARE_GPUS, "3")

    def visible(gpus: int, given: str | None) -> str:
        monkeypatch.delenv("SLURM_JOB_GPUS", raising=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5" if given is None else given)
        if given is not None:
            monkeypatch.setenv("SLURM_JOB_GPUS", given)
        jobs.enter_in_slurm(TELL, [str(tmp_path / "note"), "0"], gpus)
        assert SPARE_GPUS not in os.environ
        return os.environ["CUDA_VISIBLE_DEVICES"]

    assert (visible(2, "0,1"), visible(0, "2"), visible(0, None)) == ("0,1", "2", "")


def test_a_job_is_the_same_after_it_was_written_down(tmp_path: Path) -> None:
    slurm = Job("7", SlurmJob("7", "tarmac-train-1", 1000), tmp_path.resolve())
    assert Job.from_json(json.loads(json.dumps(slurm.to_json(tmp_path))), tmp_path.resolve()) == slurm
