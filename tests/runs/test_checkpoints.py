"""Which checkpoint a resume may trust."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3

from tasks.core.errors import DataError
from tasks.runs import checkpoints
from tasks.runs.folder import RunFolder


def save(run: RunFolder, step: int, val_loss: float | None = None) -> Path:
    path = run.checkpoint(step)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights %d" % step)
    files = {"model.safetensors": blake3(b"weights %d" % step).hexdigest()}
    meta = {"step": step, "files": files, "val_loss": val_loss, "time": 1.0}
    (path / "meta.json").write_text(json.dumps(meta))
    return path


@pytest.mark.parametrize("damage", ["flipped", "truncated", "no file", "no meta", "torn meta", "other step"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    run = RunFolder(tmp_path)
    save(run, 100)
    newest = save(run, 200)
    model, meta = newest / "model.safetensors", newest / "meta.json"
    found = checkpoints.newest_sound(run)
    assert found is not None and found.step == 200
    if damage == "flipped":
        model.write_bytes(b"Weights 200")
    elif damage == "truncated":
        model.write_bytes(b"weights")
    elif damage == "no file":
        model.unlink()
    elif damage == "no meta":
        meta.unlink()
    elif damage == "torn meta":
        meta.write_text(meta.read_text()[:30])
    else:
        newest.rename(run.checkpoint(300))
    found = checkpoints.newest_sound(run)
    assert found is not None and found.step == 100


@pytest.mark.parametrize("name", ["model.safetensors", "meta.json"])
def test_one_that_cannot_be_read_is_not_called_torn(tmp_path: Path, name: str) -> None:
    """It may be whole: to pass it over would mean to write over it."""
    run = RunFolder(tmp_path)
    save(run, 100)
    unreadable = save(run, 200) / name
    unreadable.unlink()
    unreadable.mkdir()
    with pytest.raises(DataError, match=rf"step_00000200/{name} cannot be read: .*disk"):
        checkpoints.newest_sound(run)


def test_drafts_and_links_are_no_checkpoints(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    save(run, 100)
    (run.checkpoints / ".draft_step_00000200").mkdir()
    run.latest.symlink_to("step_00000100")
    assert [checkpoint.step for checkpoint in checkpoints.list_checkpoints(run)] == [100]


def test_the_best_has_the_lowest_validation_loss_and_the_earlier_of_equals(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert checkpoints.by_val_loss(run) == []
    for step, loss in ((100, 0.5), (200, 0.3), (300, None), (400, 0.3)):
        save(run, step, loss)
    best = next(iter(checkpoints.by_val_loss(run)))
    assert best is not None and best.step == 200
