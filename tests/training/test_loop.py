"""What a training leaves behind, and how it fails."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.core.errors import DataError, OtherRankError, UsageError
from tasks.core.files import read_json, write_json
from tasks.core.schema.recipes import RECIPES, RecipeClasses
from tasks.dataset.version import versions
from tasks.models.clip.clip import ClipTask
from tasks.models.task import ALL, Features, Loss
from tasks.runs import phases
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.training import rank
from tests.conftest import ROOT
from tests.models import lengths
from tests.training.helpers import EVERY, STEPS, make_run, model_bytes, rows, train_here

FEW = ("train.steps=6", "train.checkpoint_every=6", "evaluate.every=6", "train.log_every=4")


def test_metrics_hold_the_means_of_their_intervals(undisturbed: RunFolder) -> None:
    found = rows(undisturbed, "train")
    assert list(found) == [1, *range(5, STEPS + 1, 5)]
    for row in found.values():
        assert 0 < row["train/data_wait"] < 1
        assert row["train/samples_per_s"] == pytest.approx(32 / row["train/step_s"])
        assert row["system/rss_bytes"] > 1e8
        assert abs(row["t"] - found[1]["t"]) < 300
    assert found[5]["train/lr"] == pytest.approx(1e-3)
    assert 0 < found[STEPS]["train/lr"] < 1e-5
    assert found[1]["train/loss"] == pytest.approx(math.log(32), abs=0.5), "an untrained model guesses"
    assert found[STEPS]["train/loss"] < found[5]["train/loss"] - 0.3


def test_validation_stands_at_each_checkpoint(undisturbed: RunFolder) -> None:
    found = rows(undisturbed, "val")
    assert list(found) == [EVERY, 2 * EVERY, STEPS]
    for checkpoint in list_checkpoints(undisturbed):
        assert read_json(checkpoint.path / "meta.json")["val_loss"] == found[checkpoint.step]["val/loss"]
    assert found[STEPS]["val/loss"] < found[EVERY]["val/loss"]


def test_phases_are_told_in_order(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, int]] = []
    say = phases.PhaseWriter.set

    def listen(writer: phases.PhaseWriter, phase: Any, step: int, workers: Any = ()) -> None:
        if not found or found[-1] != (phase, step):
            found.append((phase, step))
        say(writer, phase, step, workers)

    monkeypatch.setattr(phases.PhaseWriter, "set", listen)
    run = make_run(digits_dataset, tmp_path, *FEW, "train.checkpoint_every=3")
    assert train_here(run) == 6
    steps = [("step", step) for step in range(1, 7)]
    saved = [[("checkpoint", step), ("validate", step)] for step in (3, 6)]
    saved[-1].append(("checkpoint", 6))  # until it is on the disk
    assert found == [
        ("start", 0),
        ("first_batch", 0),
        *steps[:3],
        *saved[0],
        *steps[3:],
        *saved[1],
        ("end", 6),
    ]
    last = phases.read_phase(run.phase())
    assert last is not None and (last.phase, last.pid) == ("end", os.getpid())


def test_seed_decides(digits_dataset: Path, tmp_path: Path) -> None:
    runs = [
        make_run(digits_dataset, tmp_path / str(place), *FEW, f"train.seed={seed}")
        for place, seed in enumerate((3, 3, 4))
    ]
    for run in runs:
        train_here(run)
    same, again, other = (model_bytes(run, 6) for run in runs)
    assert same == again != other


def test_bf16_computes_in_bf16_and_keeps_fp32(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, *FEW, "train.precision=bf16")
    train_here(run)
    weights = load_file(run.checkpoint(6) / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    plain = make_run(digits_dataset, tmp_path, *FEW)
    train_here(plain)
    assert rows(run, "train")[1]["train/loss"] == pytest.approx(
        rows(plain, "train")[1]["train/loss"], abs=0.05
    )
    assert rows(run, "train")[1]["train/loss"] != rows(plain, "train")[1]["train/loss"]


def test_streaming_reader_trains_too(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, *FEW, "loader.reader=streaming")
    assert train_here(run) == 6


def test_datasets_are_mixed(digits_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for name in ("data", "more"):
        (tmp_path / "mixed" / name).symlink_to(digits_dataset)
    shares = ", ".join(f"{{dataset: {tmp_path}/mixed/{name}}}" for name in ("data", "more"))
    run = make_run(digits_dataset, tmp_path / "mixed", *FEW, f"train.data=[{shares}]")
    alone = make_run(digits_dataset, tmp_path, *FEW)
    assert [train_here(one) for one in (run, alone)] == [6, 6]
    assert model_bytes(run, 6) != model_bytes(alone, 6)


def test_a_loss_that_is_not_finite_ends_it_naming_the_step(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = ClipTask.forward, iter(range(1, 100))

    def broken_at_three(task: ClipTask, batch: Any) -> Loss:
        loss = forward(task, batch)
        return loss._replace(sum=loss.sum * (math.nan if next(calls) == 3 else 1))

    monkeypatch.setattr(ClipTask, "forward", broken_at_three)
    run = make_run(digits_dataset, tmp_path, *FEW)
    with pytest.raises(DataError, match=r"loss is nan at step 3.*train\.lr"):
        train_here(run)
    assert rows(run, "train")[4]["train/loss"] is None
    assert not list_checkpoints(run), "weights that are lost must not be saved"


def test_a_validation_loss_that_is_not_finite_is_called_one(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = ClipTask.forward

    def broken_when_judging(task: ClipTask, batch: Any) -> Loss:
        loss = forward(task, batch)
        return loss._replace(sum=loss.sum * (1 if task.training else math.nan))

    monkeypatch.setattr(ClipTask, "forward", broken_when_judging)
    run = make_run(digits_dataset, tmp_path, *FEW)
    with pytest.raises(DataError, match="the validation loss is nan at step 6"):
        train_here(run)
    with pytest.raises(DataError, match="the validation loss is nan at step 6"):
        train_here(run)
    monkeypatch.undo()
    assert train_here(run) == 6
    measured = rows(run, "val")[6]["val/loss"]
    assert read_json(run.checkpoint(6) / "meta.json")["val_loss"] == measured > 0


def test_weights_that_are_not_finite_are_not_saved(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last update breaks them, which no training loss shows."""
    after_step, calls = ClipTask.after_step, iter(range(1, 100))

    def broken_at_the_end(task: ClipTask) -> None:
        after_step(task)
        if next(calls) == 6:
            with torch.no_grad():
                task.model.text_projection[0, 0] = math.inf

    monkeypatch.setattr(ClipTask, "after_step", broken_at_the_end)
    run = make_run(digits_dataset, tmp_path, *FEW)
    with pytest.raises(DataError, match="after step 6: text_projection is not finite"):
        train_here(run)
    assert not list_checkpoints(run)


def test_metrics_are_on_the_disk_before_their_checkpoint(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []
    fsync = os.fsync

    def listen(descriptor: int) -> None:
        settled.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", listen)
    run = make_run(digits_dataset, tmp_path, *FEW)
    train_here(run)
    first = next(place for place, path in enumerate(settled) if path.endswith("model.safetensors"))
    assert str(run.metrics.resolve()) in settled[:first]


def test_a_damaged_sample_is_named(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tmp_path / "dataset"
    version = dataset / "versions" / versions.resolve(digits_dataset).name
    shutil.copytree(versions.resolve(digits_dataset), version)
    for shard in (version / "train").glob("*.tar"):
        content = bytearray(shard.read_bytes())
        content[600] ^= 1
        shard.unlink()
        shard.write_bytes(content)
    run = make_run(
        version, tmp_path, *FEW, "train.steps=60", "train.checkpoint_every=60", "evaluate.every=60"
    )
    monkeypatch.setattr(rank, "leave_with_starter", lambda: None)
    assert rank.main([str(run.path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    assert (
        "train/00000" in error and "digit_" in error and "member json" in error and "tarmac repair" in error
    )


def test_a_dataset_of_another_kind_is_refused(digits_dataset: Path, tmp_path: Path) -> None:
    version = tmp_path / "version"
    shutil.copytree(versions.resolve(digits_dataset), version)
    manifest = read_json(version / "manifest.json")
    write_json(version / "manifest.json", {**manifest, "modality": "volume_report"})
    run = make_run(version, tmp_path, *FEW)
    with pytest.raises(UsageError, match=r"train\.recipe.*image_text.*volume_report"):
        train_here(run)


def test_errors_of_the_user_are_one_line(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, *FEW)
    run.loader.unlink()
    ended = subprocess.run(
        [sys.executable, "-m", "tasks.training.rank", str(run.path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1 and "loader.json" in ended.stderr


def test_a_wrong_model_is_a_usage_error(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rank, "leave_with_starter", lambda: None)
    run = make_run(digits_dataset, tmp_path, *FEW, "train.model.name=tarmac/digit")
    assert rank.main([str(run.path)]) == 2
    assert "did you mean tarmac/digits?" in capsys.readouterr().err


def test_determinism_is_set_before_ranks_join(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL decides as its group is made whether it may reduce by NVLS, whose sums differ from run to run."""
    at_start: list[bool] = []

    def refuse(*arguments: Any, **named: Any) -> None:
        at_start.append(torch.are_deterministic_algorithms_enabled())
        raise RuntimeError("no group in this test")

    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = make_run(digits_dataset, tmp_path, *FEW)
    torch.use_deterministic_algorithms(False)
    with pytest.raises(OtherRankError, match="no group in this test"):
        rank.run_rank(run)
    assert at_start == [True]


def test_an_operation_without_a_deterministic_form_names_the_key(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contrast = ClipTask.contrast

    def scattered(task: ClipTask, features: Features, own: slice = ALL) -> Loss:
        places = torch.zeros(2, dtype=torch.int64)
        torch.zeros(2).put_(places, torch.ones(2))
        return contrast(task, features, own)

    monkeypatch.setattr(ClipTask, "contrast", scattered)
    monkeypatch.setattr(rank, "leave_with_starter", lambda: None)
    run = make_run(digits_dataset, tmp_path, *FEW)
    assert rank.main([str(run.path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    assert "put_ does not have a deterministic implementation" in error
    assert "train.deterministic: false" in error
    other = make_run(digits_dataset, tmp_path, *FEW, "train.deterministic=false")
    assert rank.main([str(other.path)]) == 0


def test_a_second_recipe_is_one_file_and_one_line(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, lengths.NAME, RecipeClasses(*lengths.ROW))
    block = f"train={{recipe: {lengths.NAME}, model: {{}}, batch_size: 32, steps: 40, lr: 0.01, checkpoint_every: 20, threads: 1}}"
    run = make_run(digits_dataset, tmp_path, block, "evaluate=null", workers=1)
    assert train_here(run) == 40
    found = rows(run, "train")
    assert found[40]["train/loss"] < found[1]["train/loss"] / 4
    assert found[1]["train/characters"] > 32, "logs of its own come into the metrics"
    assert set(rows(run, "val")) == {20, 40}
    weights = model_bytes(run, 40)
    shutil.rmtree(run.checkpoint(40))
    assert train_here(run) == 40 and model_bytes(run, 40) == weights
