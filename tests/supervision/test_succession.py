"""The job that keeps the evaluations of a finished training is small, wherever the training's was."""

from __future__ import annotations

from pathlib import Path

from tests.supervision.fakes import make_config


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
