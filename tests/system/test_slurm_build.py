"""Maps over a real Slurm: results, lost workers, jobs and starters, waiting, time limits, mistakes."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.core.engines import map_groups, slurm, slurm_queue
from tasks.core.errors import DataError, TarmacError
from tasks.core.schema.engine import Engines
from tasks.dataset.building.builder import build
from tests.core.engines.functions import (
    Job,
    die,
    die_once,
    environment,
    hang_once,
    note,
    refuse,
    stumble,
    work,
)
from tests.dataset import raw
from tests.services import until
from tests.slurm_lab import queue, slurm_or_skip

pytestmark = pytest.mark.system

STARTER = """\
import sys
from pathlib import Path
from tasks.core.engines import map_groups
from tasks.core.schema.engine import Engines
from tasks.dataset.building.builder import build
from tests.core.engines.functions import Job, work
folder = Path(sys.argv[1])
engines = Engines.model_validate({"build": {"kind": "slurm", "jobs": 2}})
list(map_groups(work, [Job(n, folder, 60.0) for n in range(4)], engines, folder=folder / "jobs"))
"""
SLOW_START = """\
import pathlib, time
pathlib.Path(__file__).with_name("started").touch()
time.sleep(3)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_or_skip(tmp_path_factory) as folder:
        yield folder


@pytest.fixture(autouse=True)
def impatient(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Slurm's clients, looking more often than a large cluster would like."""
    monkeypatch.setenv("SLURM_CONF", str(lab / "slurm.conf"))
    monkeypatch.setattr(slurm, "QUEUE_POLL_S", 0.3)
    monkeypatch.setattr(slurm, "POLL_S", 0.1)
    monkeypatch.setattr(slurm_queue, "SEEN_S", 1.0)
    monkeypatch.setattr(slurm_queue, "LOOK_S", 0.3)


def engines(**build: Any) -> Engines:
    return Engines.model_validate({"build": {"kind": "slurm", "jobs": 2, "cpus": 2, **build}})


def traces(folder: Path) -> int:
    return len(list(folder.glob("*.begun")))


@pytest.mark.proof
def test_every_item_once_over_several_jobs(tmp_path: Path) -> None:
    function = functools.partial(note, folder=tmp_path)
    found = list(map_groups(function, range(5, 45), engines(jobs=3), folder=tmp_path / "jobs"))
    assert sorted(found) == [n * n for n in range(5, 45)]
    assert {path.read_text() for path in tmp_path.glob("*.txt")} == {"."}
    assert len(list(tmp_path.glob("jobs/*/rows/*.jsonl"))) == 3
    assert queue() == []
    assert list(map_groups(function, [], engines(), folder=tmp_path / "none")) == []


@pytest.mark.proof
def test_the_jobs_run_where_slurm_says_and_not_here(tmp_path: Path) -> None:
    found = list(
        map_groups(work, (Job(n, tmp_path, 0.3) for n in range(6)), engines(), folder=tmp_path / "jobs")
    )
    assert sorted(done.number for done in found) == list(range(6))
    assert {done.path.parent for done in found} == {tmp_path}
    logs = [path.read_text() for path in tmp_path.glob("jobs/*/logs/*_log.out")]
    assert len(logs) == 2
    assert all("Job completed successfully" in log for log in logs)
    jobs = [path.name.removesuffix("_0_log.out") for path in tmp_path.glob("jobs/*/logs/*_log.out")]
    assert {slurm_queue.ending(job) for job in jobs} == {"COMPLETED"}


def test_a_killed_worker_is_replaced_within_its_job(tmp_path: Path) -> None:
    found = list(
        map_groups(die_once, [Job(n, tmp_path) for n in range(4)], engines(), folder=tmp_path / "jobs")
    )
    assert sorted(found) == [0, 1, 2, 3]
    assert len(list(tmp_path.glob("jobs/*/rows/*.jsonl"))) == 2


@pytest.mark.proof
def test_a_cancelled_job_is_done_again_by_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = []
    with caplog.at_level(logging.WARNING):
        jobs = [Job(n, tmp_path, 0.4) for n in range(24)]
        for done in map_groups(work, jobs, engines(), folder=tmp_path / "jobs"):
            if not found:
                [victim] = [job for job in queue() if job.endswith("_1")]
                subprocess.run(["scancel", victim], check=True)
            found.append(done.number)
    assert sorted(found) == list(range(24))
    assert [f"{victim} ended early (CANCELLED)" in message for message in caplog.messages] == [True]


def test_an_interrupted_map_leaves_no_job(tmp_path: Path) -> None:
    jobs = [Job(n, tmp_path, 0.0 if n == 0 else 60.0) for n in range(4)]
    running = map_groups(work, jobs, engines(), folder=tmp_path / "jobs")
    assert next(running).number == 0
    assert len(queue()) == 2
    running.close()
    assert queue() == []


@pytest.mark.proof
def test_jobs_end_after_their_starters_death(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)])
    until("the jobs' work", lambda: traces(tmp_path) >= 2, 30)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    assert len(queue()) == 2
    until("the jobs' end", lambda: queue() == [], 30)
    [log, _] = [path.read_text() for path in tmp_path.glob("jobs/*/logs/*_log.out")]
    assert "the process that started this job is gone" in log


@pytest.mark.proof
def test_setup_lines_and_the_stages_defaults_reach_the_job(tmp_path: Path) -> None:
    shared = {"setup": ["export TARMAC_A=lost"], "memory": "500MB", "extra": {"comment": "two words"}}
    block = {"kind": "slurm", "setup": ["export TARMAC_A='x y'"], "cpus": 3}
    both = Engines.model_validate({"slurm": shared, "build": block})
    names = ["TARMAC_A", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_NTASKS"]
    found = list(map_groups(environment, names, both, folder=tmp_path / "jobs"))
    assert sorted(map(str, found)) == ["1", "3", "477", "x y"]


@pytest.mark.proof
def test_a_job_that_its_time_limit_ended_goes_on_in_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Takes more than a minute, for Slurm's limits are whole ones."""
    with caplog.at_level(logging.WARNING):
        found = list(map_groups(hang_once, [Job(0, tmp_path)], engines(time="60s"), folder=tmp_path / "jobs"))
    assert found == [0]
    assert caplog.messages and all("ended early (TIMEOUT)" in message for message in caplog.messages)


@pytest.mark.proof
def test_a_warning_while_the_job_starts_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Slurm sends it up to a minute early, so that it may meet an interpreter that still imports."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_START)

    def warn() -> None:
        until("the job's interpreter", (tmp_path / "started").exists, 60)
        subprocess.run(["scancel", "--batch", "--signal=USR2", *queue()], check=True)

    warner = threading.Thread(target=warn)
    warner.start()
    slow = engines(jobs=1, setup=[f"export PYTHONPATH={tmp_path}"])
    found = list(map_groups(work, [Job(0, tmp_path)], slow, folder=tmp_path / "jobs"))
    warner.join()
    assert [done.number for done in found] == [0]
    assert caplog.messages == []


@pytest.mark.proof
def test_work_in_hand_is_finished_when_time_is_short(tmp_path: Path) -> None:
    """The signal that comes before the time limit, sent by hand."""
    found = []
    for done in map_groups(
        work, [Job(n, tmp_path, 0.5) for n in range(8)], engines(jobs=1), folder=tmp_path / "jobs"
    ):
        if not found:
            subprocess.run(["scancel", "--batch", "--signal=USR2", *queue()], check=True)
        found.append(done.number)
    assert sorted(found) == list(range(8))
    [first, _] = sorted(tmp_path.glob("jobs/*/rows/0.*.jsonl"))
    rows = first.read_text().splitlines()
    assert rows[-1] == '{"end": "time"}'
    begun, finished = (sum(row.startswith(f'{{"{word}"') for row in rows) for word in ("begun", "item"))
    assert 0 < begun == finished < 8
    assert {path.read_text() for path in tmp_path.glob("*.begun")} == {"."}


def test_waiting_in_the_queue_is_said_and_no_fault(tmp_path: Path) -> None:
    said: list[str] = []

    def release(text: str) -> None:
        said.append(text)
        subprocess.run(["scontrol", "release", *{job.partition("_")[0] for job in queue()}], check=True)

    held = engines(extra={"hold": True})
    found = list(map_groups(environment, ["A", "B"], held, folder=tmp_path / "jobs", say=release))
    assert found == [None, None]
    assert said[0] == "waiting in the queue: 2 jobs (JobHeldUser: held until scontrol release)"


@pytest.mark.proof
def test_a_controller_that_does_not_answer_for_a_while(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_queue, "ANSWER_S", 0.5)
    controller = int((lab / "slurmctld.pid").read_text())
    found = []
    try:
        for done in map_groups(
            work, [Job(n, tmp_path, 0.8) for n in range(16)], engines(), folder=tmp_path / "jobs"
        ):
            if not found:
                os.kill(controller, signal.SIGSTOP)
            found.append(done.number)
            if len(found) == 16:
                os.kill(controller, signal.SIGCONT)
    finally:
        os.kill(controller, signal.SIGCONT)
    assert sorted(found) == list(range(16))
    assert len(list(tmp_path.glob("jobs/*/rows/*.jsonl"))) == 2


def test_errors_come_back_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^7 is wrong$"):
        list(map_groups(refuse, [Job(7, tmp_path)], engines(), folder=tmp_path / "jobs"))
    with pytest.raises(TarmacError, match=r"ZeroDivisionError.*log is") as caught:
        list(map_groups(stumble, range(6), engines(), folder=tmp_path / "jobs"))
    log = Path(str(caught.value).rpartition("log is ")[2])
    assert "return 1 // (number - 3)" in log.read_text()
    assert queue() == []


@pytest.mark.proof
def test_work_that_kills_every_worker_ends_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(TarmacError, match="was killed 3 times"):
        list(map_groups(die, range(1), engines(), folder=tmp_path / "jobs"))


@pytest.mark.proof
def test_jobs_that_never_get_to_work_end_with_their_last_words(tmp_path: Path) -> None:
    broken = engines(jobs=1, setup=["echo there is no module cuda", "exit 1"])
    with pytest.raises(TarmacError, match="ended 3 times") as caught:
        list(map_groups(environment, ["A"], broken, folder=tmp_path / "jobs"))
    assert str(caught.value).endswith("there is no module cuda")


def test_what_slurm_refuses_is_said_in_its_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TarmacError, match=r"does not take the job: .*invalid partition.*nowhere"):
        list(map_groups(environment, ["A"], engines(partition="nowhere"), folder=tmp_path / "jobs"))
    assert capfd.readouterr().err == ""


def test_a_dataset_is_the_same_as_on_one_machine(lab: Path, tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 120)
    (tmp_path / "raw" / "0042.png").write_text("<html>")
    config = raw.config(tmp_path / "raw", tmp_path / "out")
    here = raw.contents(build(config).version)
    block = {"output": tmp_path / "slurm"}
    there = config.model_copy(
        update={"engine": engines(), "dataset": config.dataset.model_copy(update=block)}
    )
    notes: list[str] = []
    result = build(there, lambda done, total, note: notes.append(f"{done}/{total} {note}"))
    assert raw.contents(result.version) == here
    assert "120/120 samples" in notes
    assert not (tmp_path / "slurm" / "staging").exists()
