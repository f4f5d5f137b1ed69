"""Results out of order, a gatherer that is killed, and a server that refuses: each row once, and nobody waits."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.core.errors import TarmacError
from tasks.core.files import write_json
from tasks.core.lock import Lease
from tasks.runs import metrics
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tasks.supervision.tracking import gatherer, gathering, wandb_file
from tasks.supervision.tracking.tensorboard_files import TensorBoardFiles
from tests.supervision.conftest import processes_of
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import finish, wait_for
from tests.supervision.tracking.test_gatherer import assert_gathered, assert_reached, gather_quickly, server  # noqa: F401
from tests.supervision.tracking.test_tensorboard_files import points
from tests.supervision.tracking.wandb_server import Server

MODES = ["ok", "slow", "hang", "500", "429", "401", "reset"]


def write_result(run: RunFolder, step: int) -> None:
    checkpoint = {"checkpoint": run.checkpoint(step).name, "metrics": {"top1": step / 10_000}}
    facts: dict[str, Any] = {"task": "zero_shot", "step": step, "samples": 20, "seconds": 0.1, "versions": {}}
    write_json(run.evaluation(step, "zero_shot"), {**facts, **checkpoint})


def write_results(run: RunFolder, steps: list[int], pause_s: float) -> None:
    for step in steps:
        write_result(run, step)
        time.sleep(pause_s)


def gather_killed(run: RunFolder, results: int, kills: int, pause_s: float) -> None:
    """Gather results that come in any order while the gatherer is killed: as it starts, and as it works."""
    moments = random.Random(kills)
    steps = moments.sample(range(1, results + 1), results)
    writing = threading.Thread(target=write_results, args=(run, steps, pause_s))
    with Lease(run.lease):  # stands for the agent
        writing.start()
        for number in range(kills):
            before = sum(path.stat().st_size for path in wandb_file.files_of(run.wandb))
            process = gathering.start_gatherer(run)
            if number % 2 == 0:
                wait_for(
                    lambda before=before: (
                        sum(path.stat().st_size for path in wandb_file.files_of(run.wandb)) > before + 1000
                    )
                )
            time.sleep(moments.uniform(0.0, 1.5))
            process.kill()
            process.wait()
        writing.join()
    gathering.complete(run)


def assert_once(run: RunFolder, results: int) -> None:
    assert_gathered(run)
    uids = {row["uid"] for row in gatherer.evaluation_rows(run)}
    assert len(uids) == results and set(TensorBoardFiles(run).recorded()) == uids
    shown = points(run, "eval", "eval/zero_shot/top1")
    assert [step for step, _ in shown] == list(range(1, results + 1))


def set_to(stand_in: Server, mode: str) -> None:
    stand_in.mode = "ok" if mode == "hang" else mode
    stand_in.answers.clear() if mode == "hang" else stand_in.answers.set()


@pytest.mark.proof
def test_results_out_of_order_are_gathered_once_by_a_killed_gatherer(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    gather_killed(run, results=30, kills=2, pause_s=0.1)
    assert_once(run, 30)


@pytest.mark.proof
def test_a_thousand_results_and_fifty_kills(
    tmp_path: Path,
    server: Server,  # noqa: F811
) -> None:
    """Delivered at last to a server that has refused them in every way."""
    run = make_run(tmp_path, track={"mode": "offline"})
    gather_killed(run, results=1000, kills=50, pause_s=0.15)
    assert_once(run, 1000)
    assert len(wandb_file.files_of(run.wandb)) > 20
    for mode in MODES[2:]:
        set_to(server, mode)
        with pytest.raises(TarmacError, match=r"^not uploaded, the \w+ [^\n]*$"):
            gathering.sync(run, timeout_s=8)
    set_to(server, "ok")
    gathering.sync(run, timeout_s=400)
    assert_reached(run, server)
    assert gathering.upload(run) is None


@pytest.mark.proof
@pytest.mark.parametrize("mode", MODES)
def test_online_the_server_has_each_result_once_however_it_behaved(
    tmp_path: Path,
    server: Server,  # noqa: F811
    mode: str,
) -> None:
    """It behaves so from the middle of the run to its end; what is left then is uploaded by `--sync`."""
    run = make_run(tmp_path, track={"mode": "online"})
    threading.Timer(4.0, set_to, (server, mode)).start()
    with Lease(run.lease):
        process = gathering.start_gatherer(run)
        write_results(run, random.Random(7).sample(range(1, 41), 40), pause_s=0.2)
        process.kill()
        process.wait()
    gather_quickly(run, finish_s=3)
    assert_once(run, 40)
    set_to(server, "ok")
    gathering.sync(run)
    assert_reached(run, server)
    assert gathering.upload(run) is None


def test_a_hanging_server_holds_no_rank_no_agent_and_no_evaluation(
    tmp_path: Path,
    server: Server,  # noqa: F811
) -> None:
    set_to(server, "hang")
    port = int(server.url.rpartition(":")[2])
    step_s = {}
    for mode in ("offline", "online"):
        run = make_run(tmp_path / mode, {"step_s": 0.1}, track={"mode": mode}, train={"steps": 40})
        launch.start_or_adopt(run)
        asking: set[str] = set()
        while look_at_run(run).step < 40 or (mode == "online" and not asking):
            asking |= asking_of(run, port)
            time.sleep(0.2)
        assert finish(run).is_complete
        times = [row["t"] for row in metrics.read_metrics(run.metrics)[0]]
        took_s = sorted(later - one for one, later in pairwise(times))
        assert took_s[-1] < 5.0, "the shortest of the waits for a server is longer"
        step_s[mode] = took_s[len(took_s) // 4]  # which a busy machine changes least
        assert asking == ({"tracker"} if mode == "online" else set())
    assert step_s["online"] < 1.2 * step_s["offline"]


def asking_of(run: RunFolder, port: int) -> set[str]:
    """`tracker` where the gatherer or what it started has asked the server, and the command of any other process of
    the run that has."""
    found = set()
    for process in {child for one in processes_of(run.path) for child in (one, *children_of(one))}:
        try:
            asks = any(link.raddr and link.raddr.port == port for link in process.net_connections())
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        is_tracker = "tracking.gatherer" in command or "wandb-core" in command
        found |= {"tracker" if is_tracker else command} if asks else set()
    return found


def children_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []
