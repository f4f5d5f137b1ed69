"""Writing a run's state to disk and taking it up again, bit by bit.

A checkpoint is a folder that gets its name when all of it is on disk: `model.safetensors` (what others
load), `state.pt` (optimizer, loader and random generators, for resuming) and `meta.json` with the BLAKE3 of
both. Nothing in it is a pickle that could run code: `state.pt` is read with `weights_only=True`.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from tasks.core.errors import DataError, TarmacError, first_line
from tasks.core.files import blake3_file, fsync_path, link_atomic, write_json
from tasks.runs.checkpoints import (
    META,
    MODEL,
    Checkpoint,
    CheckpointMeta,
    is_sound,
    list_checkpoints,
    read_meta,
)
from tasks.runs.environment import leave_if_taken_over
from tasks.runs.folder import RunFolder

STATE = "state.pt"
DRAFT = ".draft_"
OUT_OF_MEMORY = "memory ran out while saving"
"""What the agent looks for in the log of a training that ended so."""
NO_MEMORY = f"{OUT_OF_MEMORY}; lower loader.workers, loader.prefetch or train.batch_size"

logger = logging.getLogger(__name__)


class Weights(nn.Module):
    """A model's weights and no more; safetensors takes a module, since it looks for weights that are one."""

    def __init__(self, values: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._values = values

    def state_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return dict(self._values)


@dataclass(frozen=True)
class Copied:
    """What one checkpoint holds, apart from the training."""

    weights: Weights
    state: Mapping[str, Any]


def save_checkpoint(run: RunFolder, step: int, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Write the model and the rest of the state after `step` steps and point `latest` at it.

    TarmacError when the disk refuses it, or memory runs out.
    """
    write_copied(run, step, copied(run, step, model, state))


def copied(run: RunFolder, step: int, model: nn.Module, state: Mapping[str, Any]) -> Copied:
    """All that the checkpoint of `step` holds, in the host's memory, where no later step changes it.

    TarmacError when memory runs out.
    """
    known: dict[tuple[Any, ...], torch.Tensor] = {}
    try:
        weights = Weights(_copy(model.state_dict(), known))
        return Copied(weights, _copy({**state, "random": _random_state()}, known))
    except (MemoryError, RuntimeError) as error:  # which torch raises for want of the host's memory
        raise _not_written(run, step, error, NO_MEMORY) from error


def write_copied(run: RunFolder, step: int, content: Copied) -> None:
    """Write what was copied and point `latest` at it; TarmacError as of `save_checkpoint`."""
    final = run.checkpoint(step)
    draft = run.checkpoints / f"{DRAFT}{final.name}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        save_model(content.weights, str(draft / MODEL))
        torch.save(content.state, draft / STATE)
        files = {name: _settle(draft / name) for name in (MODEL, STATE)}
        meta = CheckpointMeta(step=step, files=files, time=time.time())
        write_json(draft / META, meta.model_dump())
        leave_if_taken_over(run)
        _replace(draft, final)
        link_atomic(run.latest, final.name)
    except (OSError, RuntimeError, SafetensorError, MemoryError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        remedy = _remedy(error, run.checkpoints, content.weights)
        raise _not_written(run, step, error, remedy) from error


def _not_written(run: RunFolder, step: int, error: Exception, remedy: str) -> TarmacError:
    says = first_line(error)
    return TarmacError(f"{run.checkpoint(step)}: cannot be written: {says}; {remedy} and resume")


def _copy(value: Any, known: dict[tuple[Any, ...], torch.Tensor]) -> Any:
    """The value with its tensors copied to the host; those that are one stay one."""
    if isinstance(value, torch.Tensor):
        place = value.device, value.data_ptr(), value.dtype, value.shape, value.stride()
        if place not in known:
            known[place] = value.detach().to("cpu", copy=True)
        return known[place]
    if isinstance(value, Mapping):
        return {name: _copy(part, known) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(part, known) for part in value)
    return value


def _remedy(error: Exception, place: Path, model: nn.Module) -> str:
    """What to do about it. torch raises a RuntimeError for a full disk and a lack of memory alike, so the
    disk is asked whether it takes as much as model and optimizer may need."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or getattr(error, "errno", 0) == errno.ENOMEM:
        return NO_MEMORY
    size_bytes = 3 * sum(value.numel() * value.element_size() for value in model.state_dict().values())
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            os.posix_fallocate(probe.fileno(), 0, size_bytes)
    except OSError:
        return "make room on the disk"
    return f"the disk has room, so most likely {NO_MEMORY}"


def add_val_loss(run: RunFolder, step: int, val_loss: float) -> None:
    """Write the validation loss into the `meta.json` of the checkpoint of `step`, which is there."""
    checkpoint = Checkpoint(step, run.checkpoint(step))
    meta = read_meta(checkpoint)
    leave_if_taken_over(run)
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


def restore(checkpoint: Checkpoint, model: nn.Module) -> dict[str, Any]:
    """Put model and random generators back to where they were; devices stay as they are. The rest of the
    state, as it was saved."""
    load_model(model, checkpoint.path / MODEL)
    state: dict[str, Any] = torch.load(checkpoint.path / STATE, map_location="cpu", weights_only=True)
    torch.set_rng_state(state["random"]["cpu"])
    if torch.cuda.is_available() and "cuda" in state["random"]:
        torch.cuda.set_rng_state(state["random"]["cuda"])
    return state


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
