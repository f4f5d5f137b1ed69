"""The job that keeps the evaluations of a finished training is small, wherever the training's was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.core.engines.slurm_queue import SlurmJob
from tasks.core.lock import Lease
from tasks.core.schema import Engines
from tasks.runs import gpus, record
from tasks.runs.jobs import Job
from tasks.supervision import allocation
from tasks.supervision.agent import Agent
from tasks.supervision.allocation import Allocation, Succession
from tasks.supervision.evaluating.evaluation_jobs import Evaluations
from tasks.supervision.evaluating.evaluations import Training
from tasks.supervision.ranks.success import TrainingEnd, judge_end
from tests.supervision import fakes
from tests.supervision.fakes import make_config, make_run


def test_the_job_that_keeps_evaluations_asks_for_one_core_and_no_gpu(tmp_path: Path) -> None:
    engine = {
        "slurm": {
            "account": "lab",
            "extra": {"qos": "low", "exclusive": True},
            "cpus": 32,
            "memory": "400GB",
        },
        "train": {
            "kind": "slurm",
            "partition": "gpu",
            "gpus": 4,
            "time": "48h",
            "setup": ["module load cuda"],
        },
        "evaluate": {"kind": "slurm", "partition": "gpu", "gpus": 1},
    }
    first, second = make_config(tmp_path, engine=engine).engine.for_successor()
    for found in (first, second):
        assert (found.account, found.cpus, found.memory, found.gpus) == ("lab", 1, 10**9, None)
        assert (found.setup, found.extra, found.time) == (["module load cuda"], {"qos": "low"}, None)
    assert (first.partition, second.partition) == (None, "gpu"), "the cluster's own, then the training's"


def test_evaluations_in_the_trainings_job_go_on_in_one_with_one_gpu_and_its_share() -> None:
    train = {
        "kind": "slurm",
        "partition": "gpu",
        "gpus": 4,
        "cpus": 30,
        "memory": "400GB",
        "time": "48h",
        "extra": {"exclusive": True, "gres": "gpu:a100:4", "qos": "low"},
    }
    (found,) = Engines.model_validate({"train": train}).for_successor()
    assert (found.gpus, found.cpus, found.memory) == (1, 8, 100 * 10**9)
    assert (found.extra, found.time) == ({"gres": "gpu:a100:1", "qos": "low"}, 48 * 3600)
    (same,) = Engines.model_validate({"train": {**train, "gpus": 1, "extra": None}}).for_successor()
    assert (same.gpus, same.cpus, same.memory) == (1, 30, 400 * 10**9)


@pytest.mark.parametrize(
    ("evaluate", "seen", "aside_s", "due"),
    [
        ("local", "0,1", None, True),
        ("local", "0", None, False),
        ("local", "", None, False),
        ("local", "0,1", 60, False),
        ("slurm", "", None, True),
    ],
)
def test_a_job_is_left_where_the_evaluations_need_less(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    evaluate: str,
    seen: str,
    aside_s: int | None,
    due: bool,
) -> None:
    monkeypatch.setattr(allocation, "own_job", lambda: SlurmJob("1", "x", 0))
    monkeypatch.setenv(gpus.VISIBLE_GPUS, seen)
    monkeypatch.delenv(gpus.SPARE_GPUS, raising=False)
    engine: dict[str, Any] = {"train": {"kind": "slurm"}, "evaluate": {"kind": evaluate}}
    config = make_config(tmp_path, engine=engine)
    succession = Succession(make_run(tmp_path), config, aside_s)
    assert succession.is_due(0.0) is due
    succession.is_time_over = True
    assert succession.is_due(0.0) or not (aside_s or due)


def test_a_job_that_comes_again_without_a_lost_node_takes_up_training_and_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluations that are open then are no reason for a successor, which would train nothing."""

    def lose_a_node(agent: Agent, evaluations: Evaluations) -> Training:
        ended = TrainingEnd(-9, 15, 40, 0.1, 10, rank=1, ranks=2, lost_node="b")
        return agent._judge(ended, judge_end(ended), time.time(), 0)

    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(Agent, "_train_with_gpus", lose_a_node)
    successor = Job("2", SlurmJob("2", "successor", os.getuid()), tmp_path)
    monkeypatch.setattr(Succession, "submit", lambda *_: successor)
    slurm = {"kind": "slurm", "gpus": 1}
    engine = {"train": {**slurm, "nodes": 2}, "evaluate": slurm}
    run = make_run(tmp_path, engine=engine, evaluate={"every": 10, "tasks": ["zero_shot"]})
    fakes.save(run, 10, b"weights")
    job = Job("1", SlurmJob("1", "agent", os.getuid()), tmp_path)
    record.save_record(run, record.load_record(run).having(job=job.to_json(run.path)))
    with Lease(run.lease) as lease:
        Agent(run, lease, Allocation()).work()
    left = record.load_record(run)
    assert (left.state, left.goal) == ("queued", "train") and "its node b was lost" in left.reason
    lease = Lease(run.lease)
    assert Allocation().take(lease, run) is None, "the run waits for the job"
    lease.release()
