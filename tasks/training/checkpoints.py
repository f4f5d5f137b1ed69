"""Writing a run's state to disk and taking it up again, bit by bit.

A checkpoint is a folder that gets its name when all of it is on disk: `model.safetensors` (what others
load), `state.pt` (optimizer and random generators, for resuming) and `meta.json` with the BLAKE3 of both.
Nothing in it is a pickle that could run code: `state.pt` is read with `weights_only=True`.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from tasks.core.errors import DataError, TarmacError
from tasks.core.files import blake3_file, fsync_path, link_atomic, write_json
from tasks.runs.checkpoints import META, Checkpoint, CheckpointMeta, is_sound, list_checkpoints, read_meta
from tasks.runs.folder import RunFolder

MODEL = "model.safetensors"
STATE = "state.pt"
DRAFT = ".draft_"

logger = logging.getLogger(__name__)


def save(run: RunFolder, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the state after `step` steps and point `latest` at it; TarmacError when the disk refuses it."""
    final = run.checkpoint(step)
    draft = run.checkpoints / f"{DRAFT}{final.name}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        save_model(model, str(draft / MODEL))
        torch.save({"optimizer": optimizer.state_dict(), "random": _random_state()}, draft / STATE)
        files = {name: _settle(draft / name) for name in (MODEL, STATE)}
        meta = CheckpointMeta(step=step, files=files, time=time.time())
        write_json(draft / META, meta.model_dump())
        _replace(draft, final)
        link_atomic(run.latest, final.name)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise TarmacError(f"{final}: cannot be written: {error}; make room on the disk and resume") from error


def add_val_loss(run: RunFolder, step: int, val_loss: float) -> None:
    """Write the validation loss into the `meta.json` of the checkpoint of `step`, which is there."""
    checkpoint = Checkpoint(step, run.checkpoint(step))
    meta = read_meta(checkpoint)
    if meta is None:
        raise DataError(f"{checkpoint.path / META}: is gone; resume the run and it is written again")
    write_json(checkpoint.path / META, meta.model_copy(update={"val_loss": val_loss}).model_dump())


def newest(run: RunFolder) -> Checkpoint | None:
    """The newest sound checkpoint, to which `latest` points again; torn ones are named in the log.

    Drafts that a killed writer left are removed: whoever calls this is the run's only writer now. DataError
    for a checkpoint that cannot be read, and for a link that a copy has made a folder.
    """
    for link in (run.latest, run.best):
        if link.is_dir() and not link.is_symlink():
            raise DataError(
                f"{link}: is a folder, as a copy that follows links leaves it, and has to be a link; its "
                "content stands in a folder step_… beside it: remove it and resume"
            )
    for draft in run.checkpoints.glob(f"{DRAFT}*"):
        shutil.rmtree(draft)
    for checkpoint in reversed(list_checkpoints(run)):
        if is_sound(checkpoint):
            link_atomic(run.latest, checkpoint.path.name)
            return checkpoint
        logger.warning("%s is torn and passed over; it will be written again", checkpoint.path)
    return None


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put model, optimizer and random generators back to where they were; devices stay as they are."""
    load_model(model, checkpoint.path / MODEL)
    state: dict[str, Any] = torch.load(checkpoint.path / STATE, map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"]["cpu"])
    if torch.cuda.is_available() and "cuda" in state["random"]:
        torch.cuda.set_rng_state(state["random"]["cuda"])


def _random_state() -> dict[str, torch.Tensor]:
    """Of the only generators a training process draws from; data has its own, made from the position."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _settle(path: Path) -> str:
    """Put the file on the disk, readable for all (safetensors writes for the owner only); its BLAKE3."""
    with path.open("rb") as file:
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    return blake3_file(path)


def _replace(draft: Path, final: Path) -> None:
    """Give the draft its name; what stands there is torn, or `newest` would have resumed from it."""
    fsync_path(draft)
    if final.exists():
        shutil.rmtree(final)
    os.rename(draft, final)
    fsync_path(final.parent)
