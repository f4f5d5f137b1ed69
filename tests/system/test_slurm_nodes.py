"""Trainings on nodes of a real Slurm that are lost: Slurm, or the agent by itself, queues the job again, and
the training goes on from its checkpoint. On two nodes it trains as on one.

Slurm takes half a minute to find out.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tasks.core.engines import slurm_queue
from tasks.core.files import read_json
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tests.services import until
from tests.supervision.test_agent import assert_undisturbed
from tests.system.test_slurm_training import AGENT, finish, impatient, lab, make_run
from tests.training import helpers
from tests.training.helpers import rows

pytestmark = pytest.mark.system
__all__ = ["impatient", "lab"]
TWO = {"nodes": 2, "ranks": 1}


def nodes_of(run: RunFolder, ranks: int, attempt: int = 1) -> list[str]:
    """The emulated node on which each rank's process began, by Slurm's own variable."""
    found = []
    for rank in range(ranks):
        identity = run.rank_identity(attempt, rank)
        until("the rank's start", identity.exists, 60)
        found.append(psutil.Process(read_json(identity)["pid"]).environ()["SLURMD_NODENAME"])
    return found


def test_digits_train_on_two_nodes_as_on_one(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real training, whose ranks meet by the store on the first node and exchange gradients by gloo."""
    monkeypatch.setattr(launch, "AGENT", AGENT)
    steps = ("train.steps=4", "train.checkpoint_every=2", "evaluate=null", "track.mode=disabled")
    losses = []
    for engine in ("{kind: slurm, nodes: 2, ranks: 2}", "{kind: local, ranks: 4}"):
        place = tmp_path / engine[7]
        place.mkdir()
        run = helpers.make_run(digits_dataset, place, *steps, f"engine={{train: {engine}}}")
        launch.start_or_adopt(run)
        if "slurm" in engine:
            assert nodes_of(run, 4) == ["n1", "n1", "n2", "n2"]
        launch.wait_for_training(run)
        losses.append({step: row["train/loss"] for step, row in rows(run, "train").items()})
    assert losses[0] == losses[1]


def restore(node: str) -> None:
    """Start the node's daemon again, and have Slurm use it."""
    subprocess.run(["slurmd", "-N", node], check=True)
    subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)


def kill_node(lab: Path, job: str, agent: int) -> None:
    """What a power failure does to the node n1: its daemon, the job's keeper and the job die at once."""
    os.kill(int((lab / "slurmd-n1.pid").read_text()), signal.SIGKILL)
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or []).startswith(f"slurmstepd: [{job}."):
            process.kill()
    os.kill(agent, signal.SIGKILL)


@pytest.mark.proof
def test_a_training_outlives_its_node(tmp_path: Path, lab: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.1}, evaluate={"every": 40, "tasks": ["zero_shot"]})
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("a checkpoint", lambda: look_at_run(run).checkpoints, 60)
    kill_node(lab, job.id, record.load_record(run).attempts[-1].pid)
    assert launch.start_or_adopt(run).adopted
    until("the queue", lambda: look_at_run(run).queue, 120)
    subprocess.run(["scontrol", "update", f"JobId={job.id}", "StartTime=now+3"], check=True)
    finish(run)
    assert_undisturbed(run)
    assert [one.outcome for one in record.load_record(run).attempts] == ["lost", "succeeded", "evaluated"]
    restore("n1")


def lose(lab: Path, job: str, node: str) -> None:
    """What a power failure does to a node: its daemon, the step's keeper and all that it has started die."""
    os.kill(int((lab / f"slurmd-{node}.pid").read_text()), signal.SIGKILL)
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or []).startswith(f"slurmstepd: [{job}.0]"):
            for one in (process, *process.children(recursive=True)):
                one.kill()


@pytest.mark.proof
def test_a_training_outlives_its_second_node(tmp_path: Path, lab: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.1}, slurm=TWO, evaluate={"every": 40, "tasks": ["zero_shot"]})
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("a checkpoint", lambda: look_at_run(run).checkpoints, 90)
    lost = nodes_of(run, 2)[1]
    lose(lab, job.id, lost)
    until("the news", lambda: "was lost" in (record.load_record(run).reason or ""), 60)
    assert f"its node {lost} was lost" in (record.load_record(run).reason or "")
    shown = subprocess.run(["scontrol", "show", "job", job.id], capture_output=True, text=True).stdout
    assert f"ExcNodeList={lost}" in shown
    restore(lost)
    subprocess.run(["scontrol", "update", f"JobId={job.id}", "ExcNodeList=", "StartTime=now+3"], check=True)
    finish(run)
    assert_undisturbed(run)
    outcomes = [one.outcome for one in record.load_record(run).attempts]
    assert outcomes[:2] == ["failed", "succeeded"], outcomes
    assert slurm_queue.ending(job.id) == "COMPLETED"
