"""Maps on a real Dask cluster of a scheduler and two workers, each a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tasks.core.engines import dask, map_groups
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.schema.engine import Engines
from tasks.dataset.building.builder import build
from tests.core.engines.functions import Job, die, die_once, refuse, stumble, work
from tests.dataset import raw
from tests.services import free_port, service, until

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
Start = Callable[..., int]


class Cluster:
    """A scheduler on loopback, and workers as they are asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._folder = folder
        self._stack = stack
        port = self.address.rpartition(":")[2]
        self.scheduler = self._start(
            "scheduler",
            ["--host", "127.0.0.1", "--port", port, "--no-dashboard", "--dashboard-address", ":0"],
            "Scheduler at:",
        )

    def worker(self, name: str, path: Path | None = None) -> int:
        """Start a worker whose modules come from `path` first; its nanny's process id."""
        options = [self.address, "--name", name, "--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard"]
        options += ["--local-directory", str(self._folder), "--memory-limit", "0"]
        return self._start("worker", options, "Registered to:", path)

    def _start(self, program: str, options: list[str], says: str, path: Path | None = None) -> int:
        log = self._folder / f"{program}-{free_port()}.log"
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *options]
        env = {**os.environ, "PYTHONPATH": str(path or ROOT), "PYTHONSAFEPATH": "1"}
        process = self._stack.enter_context(service(command, log, env))
        until(f"the {program}", lambda: process.poll() is not None or says in log.read_text(), 60, 0.1)
        assert process.poll() is None, log.read_text()
        return process.pid


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler without workers."""
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("dask"), stack)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        started = Cluster(tmp_path_factory.mktemp("dask"), stack)
        for name in ("a", "b"):
            started.worker(name)
        yield started


def engines(cluster: Cluster) -> Engines:
    return Engines.model_validate({"build": {"kind": "dask", "address": cluster.address}})


def test_every_item_once_on_all_workers_and_few_ahead(cluster: Cluster, tmp_path: Path) -> None:
    taken = 0

    def items() -> Iterator[Job]:
        nonlocal taken
        for number in range(200):
            taken = number + 1
            yield Job(number, tmp_path)

    found = []
    for done in map_groups(work, items(), engines(cluster), folder=tmp_path / "jobs"):
        found.append(done)
        assert taken <= len(found) + dask.FEWEST
    assert sorted(done.number for done in found) == list(range(200))
    assert len({done.pid for done in found}) == 2
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_killed_workers_items_are_done_again(cluster: Cluster, tmp_path: Path) -> None:
    jobs = [Job(n, tmp_path) for n in range(8)]
    for job in jobs[1:]:
        (tmp_path / f"{job.number}.first").touch()
    assert sorted(map_groups(die_once, jobs, engines(cluster), folder=tmp_path / "jobs")) == list(range(8))


def test_errors_come_back_as_they_are(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^7 is wrong$"):
        list(map_groups(refuse, [Job(7, tmp_path)], engines(cluster), folder=tmp_path / "jobs"))
    with pytest.raises(ZeroDivisionError):
        list(map_groups(stumble, range(6), engines(cluster), folder=tmp_path / "jobs"))


@pytest.mark.proof
def test_a_closed_map_begins_nothing_more(cluster: Cluster, tmp_path: Path) -> None:
    running = map_groups(
        work, (Job(n, tmp_path, 0.2) for n in range(50)), engines(cluster), folder=tmp_path / "jobs"
    )
    next(running)
    running.close()
    time.sleep(1)
    begun = len(list(tmp_path.glob("*.begun")))
    assert begun <= 6


@pytest.mark.proof
def test_work_that_kills_every_worker_ends_with_a_reason(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(TarmacError, match="Dask workers died over the same work"):
        list(map_groups(die, range(1), engines(cluster), folder=tmp_path / "jobs"))


@pytest.mark.proof
def test_a_cluster_without_workers_is_waited_for(bare: Cluster, tmp_path: Path) -> None:
    said: list[str] = []

    def begin(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            bare.worker("late")

    jobs = [Job(n, tmp_path) for n in range(3)]
    found = list(map_groups(work, jobs, engines(bare), folder=tmp_path / "jobs", say=begin))
    assert sorted(done.number for done in found) == [0, 1, 2]
    assert said[0] == f"waiting for workers of the Dask cluster at {bare.address}"


@pytest.mark.proof
def test_other_code_on_a_worker_is_named(bare: Cluster, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tasks", tmp_path / "old/tasks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "old/tests").symlink_to(ROOT / "tests")
    with (tmp_path / "old/tasks/core/units.py").open("a") as file:
        file.write("\n# older\n")
    bare.worker("old", tmp_path / "old")
    with pytest.raises(UsageError, match=r"has Tarmac's code \w{12}, the build \w{12}"):
        list(map_groups(work, [Job(1, tmp_path)], engines(bare), folder=tmp_path / "jobs"))


@pytest.mark.proof
def test_a_worker_without_tarmac_is_named(bare: Cluster, tmp_path: Path) -> None:
    (tmp_path / "other/tasks").mkdir(parents=True)
    (tmp_path / "other/tasks/__init__.py").touch()
    bare.worker("bare", tmp_path / "other")
    with pytest.raises(UsageError, match=r"has no module tasks\.core"):
        list(map_groups(work, [Job(1, tmp_path)], engines(bare), folder=tmp_path / "jobs"))


@pytest.mark.proof
def test_workers_that_do_not_share_the_folder_are_told_of(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "touch", lambda path: None)
    with pytest.raises(UsageError, match="the Dask workers do not see"):
        list(map_groups(work, [Job(1, tmp_path)], engines(cluster), folder=tmp_path / "jobs"))


@pytest.mark.proof
def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "CONNECT_S", 1)
    nowhere = Engines.model_validate({"build": {"kind": "dask", "address": f"tcp://127.0.0.1:{free_port()}"}})
    with pytest.raises(TarmacError, match="no Dask scheduler answers at") as caught:
        list(map_groups(work, [Job(1, tmp_path)], nowhere, folder=tmp_path / "jobs"))
    assert "\n" not in str(caught.value)


def test_a_scheduler_that_dies(bare: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "LOST_S", 2.0)
    bare.worker("a")
    running = map_groups(
        work, (Job(n, tmp_path, 0.2) for n in range(50)), engines(bare), folder=tmp_path / "jobs"
    )
    next(running)
    psutil.Process(bare.scheduler).send_signal(signal.SIGKILL)
    with pytest.raises(TarmacError, match="is gone"):
        list(running)


def test_a_dataset_is_the_same_as_on_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 120)
    (tmp_path / "raw" / "0042.png").write_text("<html>")
    config = raw.config(tmp_path / "raw", tmp_path / "out")
    here = raw.contents(build(config).version)
    block = {"output": tmp_path / "dask"}
    there = config.model_copy(
        update={"engine": engines(cluster), "dataset": config.dataset.model_copy(update=block)}
    )
    assert raw.contents(build(there).version) == here
