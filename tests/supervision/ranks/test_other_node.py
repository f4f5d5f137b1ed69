"""Trainings on several nodes, whose keepers are processes of this machine: srun alone is left out.

The ranks are fakes; tests/system/test_slurm_nodes.py has the real ones on two nodes of a real Slurm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.core import config as configs
from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import read_json
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.runs.folder import RunFolder
from tasks.supervision.ranks import node_ranks, other_node, trainer
from tasks.supervision.ranks.success import RankEnd, TrainingEnd, causes_of, judge_end
from tasks.supervision.ranks.trainer import RunningRanks
from tests.services import until
from tests.supervision import fakes

TWO = {"train": {"kind": "slurm", "nodes": 2, "ranks": 1}}


@pytest.fixture
def step_s() -> float:
    return 1.0


@pytest.fixture
def run(step_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run on the nodes a, which is this process, and b; both are this machine."""
    monkeypatch.setattr(trainer, "other_nodes", lambda: ["b"])
    monkeypatch.setattr(trainer, "command_on", lambda node, cpus: [])
    monkeypatch.setattr(trainer, "keeper_command", fakes.keeper_command)
    monkeypatch.setattr(node_ranks, "rank_command", fakes.rank_command)
    monkeypatch.setattr(trainer, "FOLLOW_S", 0.5)
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    return fakes.make_run(tmp_path, {"step_s": step_s}, engine=TWO)


@pytest.fixture
def ranks(run: RunFolder) -> Iterator[RunningRanks]:
    with Lease(run.lease) as lease:
        started = trainer.start_training(run, 1, configs.reload(run.config), lease.identity)
        yield started
        started.kill()


def ends_of(ranks: RunningRanks, seconds: float = 30) -> Sequence[RankEnd]:
    ends: Sequence[RankEnd] = until("the ends of all ranks", lambda: ranks.wait(0.1), seconds, pause_s=0.0)
    return ends


def keeper(run: RunFolder) -> psutil.Process:
    """The process that keeps the ranks of node b."""
    (found,) = [
        one for one in psutil.Process().children(recursive=True) if one.cmdline()[-2:] == [str(run.path), "1"]
    ]
    return found


def rank_of(run: RunFolder, rank: int) -> psutil.Process:
    identity = run.rank_identity(1, rank)
    until("the rank's start", identity.exists, 30)
    return psutil.Process(read_json(identity)["pid"])


@pytest.mark.parametrize("step_s", [0.02])
def test_ranks_on_two_nodes_end_together(run: RunFolder, ranks: RunningRanks) -> None:
    assert rank_of(run, 1).ppid() == keeper(run).pid != os.getpid()
    places = [rank_of(run, rank).environ() for rank in (0, 1)]
    assert [one["RANK"] for one in places] == ["0", "1"]
    assert {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"], one["LOCAL_RANK"]) for one in places} == {
        ("2", "1", "0")
    }
    assert len({one["MASTER_PORT"] for one in places}) == 1
    assert "TARMAC_STORE" in places[0] and "TARMAC_STORE" not in places[1]
    assert [one["GLOO_SOCKET_IFNAME"] for one in places] == ["lo", "lo"], "by which a is reached"
    held = keeper(run)
    assert ends_of(ranks) == [RankEnd(0, 0), RankEnd(1, 0)]
    assert not held.is_running() or held.status() == psutil.STATUS_ZOMBIE


def test_a_rank_that_is_killed_on_another_node_is_named(run: RunFolder, ranks: RunningRanks) -> None:
    rank_of(run, 1).kill()
    ends = ends_of(ranks)
    assert causes_of(ends, None) == [RankEnd(1, -signal.SIGKILL)] and ends[0].was_ended


@pytest.mark.parametrize("how", ["it is killed", "it is silent"])
def test_a_lost_node_is_named_and_the_others_are_ended(
    run: RunFolder, ranks: RunningRanks, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_node, "SILENCE_S", 2.0)
    there, held = rank_of(run, 1), keeper(run)
    if how == "it is silent":
        held.suspend()
    else:
        held.kill()
    began = time.monotonic()
    ends = ends_of(ranks)
    assert time.monotonic() - began < 15
    assert causes_of(ends, None) == [RankEnd(1, -signal.SIGKILL, lost_node="b")] and ends[0].was_ended
    until("the end of its rank", lambda: not there.is_running() or there.status() == "zombie", 20)
    (cause,) = causes_of(ends, None)
    ended = TrainingEnd(cause.exit_code, 3, 40, 0.1, None, rank=1, ranks=2, lost_node=cause.lost_node)
    verdict = judge_end(ended)
    assert verdict.state == "failed" and verdict.reason == "rank 1 of 2: the node b was lost"
    assert [one.code for one in verdict.findings] == ["node.lost"]


def test_a_stop_reaches_the_ranks_of_all_nodes(run: RunFolder, ranks: RunningRanks) -> None:
    there = rank_of(run, 1)
    ranks.end()
    ends = ends_of(ranks)
    assert [end.was_ended for end in ends] == [True, True] and not there.is_running()


STARTER = """
import sys, time
from pathlib import Path
from tasks.core import config as configs
from tasks.core.lock import Lease
from tasks.core.lock import Lease
from tasks.runs.folder import RunFolder
from tasks.supervision.ranks import node_ranks, trainer
from tests.supervision import fakes
trainer.other_nodes, trainer.command_on = lambda: ["b"], lambda node, cpus: []
trainer.keeper_command, node_ranks.rank_command = fakes.keeper_command, fakes.rank_command
run = RunFolder(Path(sys.argv[1]))
lease = Lease(run.lease)
lease.acquire()
trainer.start_training(run, 1, configs.reload(run.config), lease.identity)
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.proof
def test_no_rank_outlives_the_agent(run: RunFolder) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(run.path)], stdout=subprocess.PIPE, cwd=fakes.ROOT
    )
    assert agent.stdout is not None and agent.stdout.readline() == b"started\n"
    both = [rank_of(run, rank) for rank in (0, 1)]
    agent.kill()
    agent.wait()
    until("their end", lambda: not any(one.is_running() for one in both), 20)


def test_a_node_that_does_not_start_is_named_with_the_reason(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('srun: error: b: no such partition')"]
    monkeypatch.setattr(trainer, "keeper_command", lambda run, number: command)
    with pytest.raises(TarmacError, match=r"node b does not start its part .*: srun: error: b: no such part"):
        trainer.start_training(run, 1, configs.reload(run.config), Identity.mine())
    monkeypatch.setattr(trainer, "other_nodes", list)
    with pytest.raises(TarmacError, match=r"engine.train.nodes: 2, and its Slurm job has 1"):
        trainer.start_training(run, 1, configs.reload(run.config), Identity.mine())


@pytest.mark.parametrize(
    ("engine", "train", "problem"),
    [
        ({"nodes": 2, "ranks": 1}, {}, "nodes needs kind: slurm"),
        ({"kind": "slurm", "nodes": 2}, {}, "nodes: needs the number of ranks on each; give gpus or ranks"),
        (
            {"kind": "slurm", "nodes": 2, "gpus": 3},
            {"batch_size": 8},
            "train.batch_size: 8 samples cannot be divided evenly among 6 ranks",
        ),
    ],
)
def test_nodes_that_cannot_be_are_refused(
    tmp_path: Path, engine: dict[str, Any], train: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        fakes.make_config(tmp_path, engine={"train": engine}, train=train)
