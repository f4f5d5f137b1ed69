"""A run that was killed, stopped or torn ends in the very bits of one that was left alone."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.core.errors import DataError
from tasks.core.files import blake3_file, read_json, write_json
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.models.clip.clip import ClipTask
from tasks.runs import phases
from tasks.runs.checkpoints import is_sound, list_checkpoints
from tasks.runs.folder import RunFolder
from tests.training.helpers import (
    EVERY,
    STEPS,
    is_beyond_checkpoint,
    make_run,
    model_bytes,
    rows,
    set_workers,
    start_rank,
    train_here,
    wait_for,
)


def assert_same_end(run: RunFolder, undisturbed: RunFolder) -> None:
    """Weights, optimizer and every measured loss; speed and times may differ."""
    last = undisturbed.checkpoint(STEPS)
    assert model_bytes(run, STEPS) == model_bytes(undisturbed, STEPS)
    assert (run.checkpoint(STEPS) / "state.pt").read_bytes() == (last / "state.pt").read_bytes()
    for kind, name in (("train", "train/loss"), ("val", "val/loss")):
        losses = {step: row[name] for step, row in rows(run, kind).items()}
        assert losses == {step: row[name] for step, row in rows(undisturbed, kind).items()}


def copy_until(undisturbed: RunFolder, folder: Path, last: int) -> RunFolder:
    """The undisturbed run as it was when the checkpoint of step `last` had just been written."""
    run = RunFolder(folder / undisturbed.name)
    shutil.copytree(undisturbed.path, run.path, symlinks=True)
    for checkpoint in list_checkpoints(run):
        if checkpoint.step > last:
            shutil.rmtree(checkpoint.path)
    return run


def test_killed_and_resumed_with_other_workers(
    digits_dataset: Path, tmp_path: Path, undisturbed: RunFolder
) -> None:
    run = make_run(digits_dataset, tmp_path, workers=2)
    process = start_rank(run)
    wait_for(lambda: is_beyond_checkpoint(run), process, run)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert all(is_sound(checkpoint) for checkpoint in list_checkpoints(run))
    assert not run.checkpoint(STEPS).exists(), "it was too fast to be disturbed"
    set_workers(run, 0)
    assert train_here(run) == STEPS
    assert_same_end(run, undisturbed)


@pytest.mark.proof
def test_killed_while_it_saves(digits_dataset: Path, tmp_path: Path, undisturbed: RunFolder) -> None:
    """A checkpoint a step, so that one is always on its way while the steps go on."""
    run = make_run(digits_dataset, tmp_path, "train.checkpoint_every=1")
    process = start_rank(run)
    wait_for(lambda: len(list_checkpoints(run)) > 3, process, run)
    while not list(run.checkpoints.glob(".draft_*")):
        assert process.poll() is None, (run.path / "rank.log").read_text()
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    saved = list_checkpoints(run)
    assert all(is_sound(checkpoint) for checkpoint in saved)
    assert run.latest.resolve() in {checkpoint.path.resolve() for checkpoint in saved[-2:]}
    assert not run.checkpoint(STEPS).exists(), "it was too fast to be disturbed"
    run.config.write_text(
        run.config.read_text().replace("checkpoint_every: 1\n", f"checkpoint_every: {EVERY}\n")
    )
    assert train_here(run) == STEPS
    assert model_bytes(run, STEPS) == model_bytes(undisturbed, STEPS)
    assert not list(run.checkpoints.glob(".draft_*"))


@pytest.mark.proof
def test_leaves_with_its_starter(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, workers=2)
    process = start_rank(run)
    assert process.stdin is not None
    wait_for(lambda: is_beyond_checkpoint(run), process, run)
    phase = phases.read_phase(run.phase())
    assert phase is not None and phase.pid == process.pid and len(phase.workers) == 2
    workers = [Identity.of(pid) for pid in phase.workers]
    process.stdin.close()
    assert process.wait(timeout=60) == 1
    deadline = time.monotonic() + 5
    while any(worker.is_alive() for worker in workers):
        assert time.monotonic() < deadline, "its workers stay behind"
        time.sleep(0.05)
    assert all(is_sound(checkpoint) for checkpoint in list_checkpoints(run))


LONG = ("train.steps=20000", "train.checkpoint_every=20", "train.log_every=1", "evaluate=null")


@pytest.mark.proof
def test_sigterm_to_all_processes_of_a_training_leaves_it_to_its_agent(
    digits_dataset: Path, tmp_path: Path
) -> None:
    """As Slurm sends it to a job that it ends, loader workers and their forkserver among them."""
    run = make_run(digits_dataset, tmp_path, *LONG, workers=2)
    with Lease(run.lease) as lease:
        process = start_rank(run, lease.identity)
        wait_for(lambda: is_beyond_checkpoint(run), process, run)
        reached = list_checkpoints(run)[-1].step
        os.killpg(process.pid, signal.SIGTERM)
        wait_for(lambda: list_checkpoints(run)[-1].step > reached + 40, process, run)
        run.stop.touch()
        assert process.wait(60) == 0, (run.path / "rank.log").read_text()
    last = list_checkpoints(run)[-1]
    assert is_sound(last) and last.step == max(rows(run, "train"))


@pytest.mark.proof
def test_a_training_whose_run_was_taken_over_ends_at_once(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, *LONG)
    with Lease(run.lease) as lease:
        process = start_rank(run, lease.identity)
        wait_for(lambda: is_beyond_checkpoint(run), process, run)
        write_json(run.lease, {**lease.identity.to_json(), "host": "elsewhere", "since": 0.0})
        taken = time.time()
        assert process.wait(60) == 1
        assert "the run was taken over by process" in (run.path / "rank.log").read_text()
        newest = max(row["t"] for row in rows(run, "train").values())
        assert newest < taken + 1.5, "it looks once a second"
        run.lease.unlink()


def test_validation_that_was_broken_off_is_made_up_for(
    undisturbed: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint without its validation loss is what a stop or a death leaves; a stop within it does again."""
    run = copy_until(undisturbed, tmp_path, STEPS)
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(line for line in lines if f"train/step:{STEPS}:val" not in line))
    meta = run.checkpoint(STEPS) / "meta.json"
    whole = read_json(meta)
    write_json(meta, {**whole, "val_loss": None})
    forward, judged = ClipTask.forward, []

    def stop_when_judging(task: ClipTask, batch: Any) -> Any:
        judged.append(len(batch["key"]))
        run.stop.write_text("a test asks for it")
        return forward(task, batch)

    monkeypatch.setattr(ClipTask, "forward", stop_when_judging)
    assert train_here(run) == STEPS
    assert judged == [32], "it reads on"
    assert STEPS not in rows(run, "val") and read_json(meta)["val_loss"] is None

    monkeypatch.undo()
    run.stop.unlink()
    assert train_here(run) == STEPS
    assert_same_end(run, undisturbed)
    assert read_json(meta) == whole


def test_torn_checkpoint_is_passed_over(
    undisturbed: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy_until(undisturbed, tmp_path, 2 * EVERY)
    os.truncate(run.checkpoint(2 * EVERY) / "state.pt", 1000)
    assert train_here(run) == STEPS
    assert str(run.checkpoint(2 * EVERY)) in caplog.text
    assert str(run.checkpoint(EVERY)) not in caplog.text
    assert_same_end(run, undisturbed)
    assert [found.step for found in list_checkpoints(run) if is_sound(found)] == [EVERY, 2 * EVERY, STEPS]


def test_latest_is_mended_after_a_kill_before_its_switch(undisturbed: RunFolder, tmp_path: Path) -> None:
    run = copy_until(undisturbed, tmp_path, STEPS)
    run.latest.unlink()
    run.latest.symlink_to(run.checkpoint(EVERY).name)
    began = time.time()
    assert train_here(run) == STEPS
    assert run.latest.resolve() == run.checkpoint(STEPS).resolve()
    assert read_json(run.checkpoint(STEPS) / "meta.json")["time"] < began, "nothing was to be trained"


def test_draft_of_a_killed_save_is_cleared_away(undisturbed: RunFolder, tmp_path: Path) -> None:
    run = copy_until(undisturbed, tmp_path, STEPS)
    before = sorted(path.name for path in run.checkpoints.iterdir())
    shutil.copytree(run.checkpoint(EVERY), run.checkpoints / ".draft_step_00000095")
    assert train_here(run) == STEPS
    assert sorted(path.name for path in run.checkpoints.iterdir()) == before


def test_stop_is_obeyed_at_the_next_step(
    undisturbed: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_until(undisturbed, tmp_path, 0)
    run.metrics.unlink()
    after_step = ClipTask.after_step
    done = iter(range(1, STEPS))

    def stop_at_seven(task: ClipTask) -> None:
        after_step(task)
        if next(done) == 7:
            run.stop.write_text("a test asks for it")

    monkeypatch.setattr(ClipTask, "after_step", stop_at_seven)
    assert train_here(run) == 7
    phase = phases.read_phase(run.phase())
    assert phase is not None and (phase.phase, phase.step) == ("end", 7)
    assert run.latest.resolve() == run.checkpoint(7).resolve()
    assert not rows(run, "val"), "validating would let the stop wait"

    monkeypatch.undo()
    assert train_here(run) == 7, "the sentinel is still there"
    run.stop.unlink()
    assert train_here(run) == STEPS
    assert model_bytes(run, STEPS) == model_bytes(undisturbed, STEPS)


def test_goes_on_where_the_loader_was_and_from_the_step_where_nothing_says(
    undisturbed: RunFolder, tmp_path: Path
) -> None:
    """Checkpoints from before the loader's state was kept are taken up too."""
    run = copy_until(undisturbed, tmp_path, 2 * EVERY)
    at = run.checkpoint(2 * EVERY)
    state = torch.load(at / "state.pt", weights_only=True)
    for change in ({}, {"feed": {"position": 7, "unit": "pack"}}):
        torch.save({**{name: state[name] for name in ("optimizer", "random")}, **change}, at / "state.pt")
        meta = read_json(at / "meta.json")
        files = {**meta["files"], "state.pt": blake3_file(at / "state.pt")}
        write_json(at / "meta.json", {**meta, "files": files})
        if change:
            shutil.rmtree(run.checkpoint(STEPS))
            with pytest.raises(DataError, match="cannot go on at pack 7: it reads batches of 32 samples"):
                train_here(run)
        else:
            assert train_here(run) == STEPS and model_bytes(run, STEPS) == model_bytes(undisturbed, STEPS)


def test_the_weights_that_it_starts_from_are_the_checkpoint_of_step_0(
    digits_dataset: Path, tmp_path: Path
) -> None:
    few = ("train.steps=4", "train.checkpoint_every=2", "evaluate.every=4", "train.warmup=0")
    old = make_run(digits_dataset, tmp_path / "old", *few)
    assert train_here(old) == 4 and [one.step for one in list_checkpoints(old)] == [2, 4]
    weights = old.checkpoint(4) / "model.safetensors"
    tuned = f"train.model={{name: tarmac/digits, pretrained: {weights}}}"
    run = make_run(digits_dataset, tmp_path / "new", *few, tuned)
    assert train_here(run) == 4
    assert [one.step for one in list_checkpoints(run)] == [0, 2, 4]
    assert model_bytes(run, 0) == weights.read_bytes()
    assert rows(run, "val")[0]["val/loss"] == rows(old, "val")[4]["val/loss"]
    last = model_bytes(run, 4)
    for step in (2, 4):
        shutil.rmtree(run.checkpoint(step))
    run.metrics.unlink()
    assert train_here(run) == 4 and model_bytes(run, 4) == last, "a start from step 0 is the start"
    plain = make_run(digits_dataset, tmp_path / "new", *few, tuned, "evaluate.start=false")
    assert plain.path == run.path, "and it changes no weights"
