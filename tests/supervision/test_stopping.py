"""A run that is stopped leaves nothing alive, and two runs never train on one GPU at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from flows import cli
from tasks.core.errors import DataError, TarmacError, Withdrawn
from tasks.core.files import read_json, write_json
from tasks.core.lock import HEARTBEAT_S, STALE_S
from tasks.runs import gpus, record
from tasks.runs.folder import RunFolder
from tasks.supervision import launch, stopping
from tasks.supervision.status import look_at_run
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, finish, processes_of, rank_of, rows, wait_for
from tests.supervision.test_launch import WAITER

TAKE = "import sys; from tasks.runs import gpus; print(gpus.take_gpus([sys.argv[1]], 1, 'other'))"


def found_by_another(name: str) -> str:
    """What another process gets that wants this GPU."""
    done = subprocess.run([sys.executable, "-c", TAKE, name], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """The one GPU that is visible; nobody else has one of this name."""
    name = f"GPU-{uuid.uuid4()}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    return name


def test_a_gpu_is_one_trainings_until_all_that_inherited_it_have_ended(gpu: str) -> None:
    taken = gpus.take_gpus([gpu], 1, "first")
    assert isinstance(taken, gpus.HeldGpus)
    expected = f"waiting for a GPU: {gpu} is used by first (process {os.getpid()})"
    assert found_by_another(gpu) == expected
    heir = subprocess.Popen(["sleep", "60"], pass_fds=taken.descriptors)
    taken.release()
    assert found_by_another(gpu) == expected
    heir.kill()
    heir.wait()
    assert found_by_another(gpu).startswith("HeldGpus")


def test_the_first_free_gpus_are_taken_all_or_none(gpu: str) -> None:
    names = [f"{gpu}-{number}" for number in range(3)]
    second = gpus.take_gpus(names[1:2], 1, "second")
    others = gpus.take_gpus(names, 2, "others")
    assert isinstance(second, gpus.HeldGpus) and isinstance(others, gpus.HeldGpus)
    assert others.names == (names[0], names[2])
    others.release()
    second.release()
    third = gpus.take_gpus(names[2:], 1, "third")
    assert isinstance(gpus.take_gpus(names[1:], 2, "both"), gpus.GpusInUse)
    assert found_by_another(names[1]).startswith("HeldGpus"), "one of two was kept"
    assert isinstance(third, gpus.HeldGpus)
    third.release()
    with pytest.raises(TarmacError, match="2 GPUs are asked for, but there are 1"):
        gpus.take_gpus([gpu], 2, "greedy")


def test_evaluations_share_a_gpu_and_a_training_waits_for_those_that_run_alone(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "LOCKS", tmp_path)
    monkeypatch.setattr(gpus, "NEXT_S", 0.2)
    other = f"{gpu}-1"
    training = gpus.take_gpus([gpu], 1, "first")
    assert isinstance(training, gpus.HeldGpus)
    refused = gpus.take_gpu_to_evaluate([gpu], "first")
    assert str(refused) == f"waiting for a GPU: {gpu} is used by first (process {os.getpid()})"
    beside = gpus.take_gpu_to_evaluate([gpu, other], "first")
    assert isinstance(beside, gpus.HeldGpus) and beside.names == (other,)
    beside.release()
    training.release()
    shared = [gpus.take_gpu_to_evaluate([gpu], "first") for _ in range(2)]
    assert all(isinstance(one, gpus.HeldGpus) for one in shared)
    waiting = gpus.take_gpus([gpu], 1, "second")
    assert str(waiting).endswith(f"used by an evaluation of first (process {os.getpid()})")
    next_one = gpus.take_gpu_to_evaluate([gpu], "first")
    assert str(next_one) == "waiting for a GPU: a training takes the next one"
    taken_before = gpus.take_gpu_to_evaluate([gpu], "first", is_kept=True)
    assert isinstance(taken_before, gpus.HeldGpus), "its job has only now come to hold it"
    taken_before.release()
    for one in shared:
        assert isinstance(one, gpus.HeldGpus)
        one.release()
    second = gpus.take_gpus([gpu], 1, "second")
    assert isinstance(second, gpus.HeldGpus)
    second.release()
    wait_for(lambda: isinstance(gpus.take_gpu_to_evaluate([gpu], "first"), gpus.HeldGpus))


@pytest.mark.proof
def test_a_second_run_waits_for_the_gpu_and_names_who_has_it(tmp_path: Path, gpu: str) -> None:
    first = make_run(tmp_path / "first", {"step_s": 0.5})
    second = make_run(tmp_path / "second")
    launch.start_or_adopt(first)
    wait_for(lambda: rows(first) >= 1)
    launch.start_or_adopt(second)
    wait_for(lambda: look_at_run(second).state == "queued" and look_at_run(second).reason != "")
    assert f"{gpu} is used by {first.name} (process " in look_at_run(second).reason
    assert launch.start_or_adopt(second).adopted
    launch.wait_for_training(first)
    assert rows(second) == 0, "both trained at once"
    assert finish(second).state == "succeeded" and look_at_run(second).reason == ""


@pytest.mark.proof
def test_a_run_that_waits_for_a_gpu_can_be_stopped(tmp_path: Path, gpu: str) -> None:
    taken = gpus.take_gpus([gpu], 1, "somebody")
    assert isinstance(taken, gpus.HeldGpus)
    run = make_run(tmp_path)
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).state == "queued" and look_at_run(run).reason != "")
    stopping.end(run, "enough")
    assert (look_at_run(run).state, look_at_run(run).reason) == ("cancelled", "enough")
    assert processes_of(tmp_path) == []
    taken.release()


@pytest.mark.proof
def test_a_stop_during_the_evaluations_ends_them_and_is_no_failure(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"evaluation_s": 60.0})
    launch.start_or_adopt(run)
    wait_for(lambda: (run.path / "evaluated").exists())
    began = time.monotonic()
    stopping.end(run, "enough")
    assert time.monotonic() - began < stopping.patience(run), "it was not the agent that ended them"
    assert processes_of(tmp_path) == []
    assert look_at_run(run).state == "succeeded" and look_at_run(run).stopped == "enough"
    with pytest.raises(Withdrawn, match="its evaluations were cancelled: enough"):
        launch.wait_for_evaluations(run)
    (run.path / "fake.json").write_text("{}")
    finish(run)
    assert record.load_record(run).attempts[-1].stopped is None and look_at_run(run).is_complete


def test_cancel_ends_training_and_evaluations_and_proves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(
        tmp_path,
        {"step_s": 0.05, "evaluation_s": 60.0},
        train={"steps": 2000},
        evaluate={"every": 10, "tasks": ["zero_shot"]},
    )
    launch.start_or_adopt(run)
    wait_for(lambda: (run.path / "evaluated").exists())
    pids = {process.pid for process in processes_of(tmp_path)}
    assert cli.main(["cancel", str(run.path), "--json"]) == 0
    shown = capsys.readouterr()
    printed = json.loads(shown.out)
    assert f"{run.name} is asked to stop at its next step" in shown.err
    assert processes_of(tmp_path) == []
    assert printed["state"] == "cancelled" and printed["left"] == [] and printed["elsewhere"] is None
    ended = {one["what"]: one["pid"] for one in printed["ended"]}
    assert {"agent", "training, rank 0", "zero_shot of step 10"} <= ended.keys()
    assert pids <= set(ended.values()), "a process of the run is missing in the list"
    assert not any(one["forced"] for one in printed["ended"])
    assert read_json(run.exit(1))["stop"]["who"] == "user"


@pytest.mark.proof
def test_cancel_ends_the_evaluations_that_a_killed_agent_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, {"evaluation_s": 600.0})
    launch.start_or_adopt(run)
    wait_for(lambda: (run.path / "evaluated").exists())
    psutil.Process(record.load_record(run).attempts[-1].pid).kill()
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    assert processes_of(tmp_path), "its evaluation ended with it"
    assert cli.main(["cancel", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "zero_shot of step 40 (process " in said and "by force" in said
    assert said.endswith("  left   none: no process of the run lives on this machine\n")
    assert processes_of(tmp_path) == []


def test_a_training_that_is_killed_while_it_stops_is_a_failure_that_names_both(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.2, "deaf": True})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 1)
    stopping.cancel(run)
    rank = rank_of(run)
    wait_for(lambda: "stopping: cancelled by the user" in agent_log(run))
    os.kill(rank.pid, signal.SIGKILL)
    with pytest.raises(DataError, match=r"killed by SIGKILL at step .* it was asked to stop: cancelled by"):
        launch.wait_for_training(run)
    (finding,) = [json.loads(line) for line in run.findings.read_text().splitlines()]
    assert finding["code"] == "process.gone"


@pytest.mark.parametrize("text", [pytest.param("", marks=pytest.mark.proof), "enough of it"])
def test_a_stop_by_hand_is_obeyed_and_says_that_nobody_signed_it(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path, {"step_s": 0.1})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 1)
    run.stop.write_text(text)
    with pytest.raises(Withdrawn, match=text or "the file .stop. was found"):
        launch.wait_for_training(run)
    assert read_json(run.exit(1))["stop"]["who"] == "somebody"


def test_an_agent_that_lost_its_lease_ends_its_training_and_writes_nothing_more(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.05}, train={"steps": 1000})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 12)
    before = record.load_record(run)
    write_json(run.lease, {**read_json(run.lease), "host": "elsewhere"})
    taken = time.monotonic()
    wait_for(lambda: processes_of(tmp_path) == [])
    assert time.monotonic() - taken < 40
    assert record.load_record(run) == before and before.state == "running"
    assert not run.exit(1).exists() and not run.stop.exists()
    assert read_json(run.lease)["host"] == "elsewhere"
    assert f"the run was taken over by process {read_json(run.lease)['pid']} on elsewhere" in agent_log(run)


ELSEWHERE = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
"""Runs a command as on another host that shares the file system; for root alone."""


def can_be_elsewhere() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*ELSEWHERE, "true"]).returncode == 0


@pytest.mark.proof
@pytest.mark.skipif(not can_be_elsewhere(), reason="unshare --uts needs root")
def test_a_training_whose_agent_is_suspended_makes_room_for_another_hosts(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.3})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 12)
    rank, agent = rank_of(run), psutil.Process(record.load_record(run).attempts[-1].pid)
    agent.suspend()
    stale = time.time() - STALE_S - HEARTBEAT_S
    os.utime(run.lease, (stale, stale))
    (run.path / "fake.json").write_text("{}")
    starter = subprocess.Popen([*ELSEWHERE, sys.executable, "-c", WAITER, str(run.path)])
    wait_for(lambda: not rank.is_alive())
    assert starter.wait(timeout=120) == 0
    assert agent.status() == psutil.STATUS_STOPPED
    agent.resume()
    wait_for(lambda: not psutil.pid_exists(agent.pid))
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)
    uids = [json.loads(line)["uid"] for line in run.metrics.read_text().splitlines()]
    assert len(uids) == len(set(uids)), "two trainings wrote"
    assert [attempt.host for attempt in record.load_record(run).attempts][1:] == ["elsewhere"]


def test_what_a_killed_training_has_started_ends_with_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"starts": True, "die_at": 5})
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match="killed by SIGKILL at step 5"):
        launch.wait_for_training(run)
    wait_for(lambda: processes_of(tmp_path) == [])


@pytest.mark.proof
@pytest.mark.parametrize("way", ["cancel", "start"])
def test_what_outlives_agent_and_training_is_found_and_ended(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, {"starts": True, "step_s": 0.2})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 1)
    for pid in (record.load_record(run).attempts[-1].pid, rank_of(run).pid):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    (left,) = processes_of(tmp_path)
    if way == "cancel":
        assert cli.main(["cancel", str(run.path)]) == 0
        said = capsys.readouterr().out
        assert f"started by the training (process {left.pid})" in said
        assert "  left   none: no process of the run lives on this machine\n" in said
    else:
        (run.path / "fake.json").write_text("{}")
        finish(run)
    assert not left.is_running()
    wait_for(lambda: processes_of(tmp_path) == [])


def agent_log(run: RunFolder) -> str:
    (log,) = run.logs(1).glob("agent/*_log.out")
    return log.read_text()
