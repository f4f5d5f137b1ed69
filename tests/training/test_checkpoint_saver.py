"""Saving beside the training: what lands on the disk is the state as it was, and a failure is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tasks.core.errors import DataError, TarmacError
from tasks.core.files import read_json
from tasks.runs.checkpoints import is_sound, list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.training.checkpoints import CheckpointSaver
from tests.training.test_checkpoints import files_no_larger_than

LARGE = (2048, 4096)
"""32 MB, whose writing takes a moment."""


def test_steps_taken_meanwhile_change_nothing_of_it(tmp_path: Path) -> None:
    run, model = RunFolder(tmp_path), nn.Linear(*LARGE)
    with torch.no_grad(), CheckpointSaver(run) as aside:
        for step in (1, 2, 3):
            model.weight.fill_(step)
            aside.save(step, model, {"momentum": model.weight, "feed": {"position": step}})
            aside.add_val_loss(step, step / 10)
            model.weight.fill_(-1)
    for checkpoint in list_checkpoints(run):
        assert is_sound(checkpoint)
        weight = load_file(checkpoint.path / "model.safetensors")["weight"]
        state = torch.load(checkpoint.path / "state.pt", weights_only=True)
        assert weight.eq(checkpoint.step).all() and state["momentum"].eq(checkpoint.step).all()
        assert read_json(checkpoint.path / "meta.json")["val_loss"] == checkpoint.step / 10
    assert run.latest.resolve() == run.checkpoint(3)


def test_a_checkpoint_that_cannot_be_written_is_told_at_a_later_step(tmp_path: Path) -> None:
    run, model = RunFolder(tmp_path), nn.Linear(*LARGE)
    with CheckpointSaver(run) as aside:
        aside.save(1, model, {})
        aside.wait()
        with files_no_larger_than(1 << 20), pytest.raises(TarmacError, match=r"step_00000002.*make room"):
            aside.save(2, model, {})
            for _ in range(6000):
                time.sleep(0.01)
                aside.check()
    assert [path.name for path in sorted(run.checkpoints.iterdir())] == ["latest", "step_00000001"]


def test_the_last_one_is_waited_for_and_its_failure_told(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with (
        files_no_larger_than(1 << 20),
        pytest.raises(TarmacError, match=r"step_00000001.*make room"),
        CheckpointSaver(run) as aside,
    ):
        aside.save(1, nn.Linear(*LARGE), {})


def test_an_error_of_the_training_is_not_hidden_and_costs_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(DataError, match="bad sample"), CheckpointSaver(run) as aside:
        aside.save(1, nn.Linear(*LARGE), {})
        raise DataError("bad sample")
    assert is_sound(list_checkpoints(run)[0])
    with (
        files_no_larger_than(1 << 20),
        pytest.raises(DataError, match="bad sample"),
        CheckpointSaver(run) as aside,
    ):
        aside.save(2, nn.Linear(*LARGE), {})
        raise DataError("bad sample")
    assert "step_00000002: cannot be written" in caplog.text
