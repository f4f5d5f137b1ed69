"""What `tarmac plan` says of the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.forecasting import TrainingLeft, training_left
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset import versions
from tasks.runs import jobs
from tasks.runs.plan import plan
from tasks.supervision.status import RunStatus
from tests.conftest import digits_config
from tests.supervision.fakes import save


def make_config(dataset: Path, folder: Path, *overrides: str) -> Config:
    return digits_config(folder, folder, f"dataset.output={dataset}", *overrides)


def test_what_would_only_show_after_the_training_is_told(digits_dataset: Path, tmp_path: Path) -> None:
    version = versions.resolve(digits_dataset)
    config = make_config(digits_dataset, tmp_path, "evaluate.tasks=[{kind: zero_shot, split: vla}]")
    with pytest.raises(UsageError, match="no 'vla'"):
        training_left(config, version.name)
    run = plan(make_config(digits_dataset, tmp_path), version)
    for step in (200, 400, 600):
        save(run, step, b"weights")
    finer = make_config(digits_dataset, tmp_path, "train.checkpoint_every=50", "evaluate.every=50")
    with pytest.raises(UsageError, match=r"evaluate\.every: 50 asks for step 50"):
        training_left(finer, version.name)


def test_one_gpu_of_several_is_named(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(digits_dataset, tmp_path)
    version = versions.resolve(digits_dataset).name
    for gpus, says in ((8, ", on one of 8 GPUs and its evaluations on another"), (1, ""), (0, "")):
        monkeypatch.setattr(jobs, "gpus_here", lambda gpus=gpus: gpus)
        assert training_left(config, None) == TrainingLeft(f"clip, after the build{says}")
        new = training_left(config, version)
        assert new is not None and new.told.startswith("a new run, digits-clip-")
        assert new.told.endswith(says) and ("GPU" in new.told) == (gpus > 1)


def test_up_to_date_is_a_run_with_the_evaluations_asked_for(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(digits_dataset, tmp_path)
    version = versions.resolve(digits_dataset)
    run = plan(config, version)
    monkeypatch.setattr(RunStatus, "is_complete", True)
    assert training_left(config, version.name) == TrainingLeft(f"up to date: {run.name}", is_left=False)
    renamed = make_config(digits_dataset, tmp_path, "evaluate.tasks=[{kind: zero_shot, name: zz}]")
    assert training_left(renamed, version.name) == TrainingLeft(f"goes on: {run.name}, planned")


def test_runs_that_cannot_be_written_are_told_first(digits_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = make_config(digits_dataset, tmp_path, f"runs={tmp_path}/file")
    with pytest.raises(UsageError, match=r"runs: .*file is a file; give a folder"):
        training_left(config, None)
