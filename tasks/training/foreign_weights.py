"""Another trainer's checkpoint as one of the run: the weights alone, by the names that the model gives them.

What a resume needs stays in the trainer's own file, from which it goes on itself.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tasks.core.errors import TarmacError, first_line
from tasks.core.files import blake3_file, fsync_path, link_atomic, write_json
from tasks.runs.checkpoints import META, MODEL, CheckpointMeta
from tasks.runs.environment import leave_if_taken_over
from tasks.runs.folder import RunFolder

WRAPPERS = ("module.", "_orig_mod.")
"""What DDP and torch.compile put before the names of a model's weights."""


class Unreadable(TarmacError):
    """The file is not whole yet, or no checkpoint."""


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in a file of torch or safetensors; Unreadable where there is none."""
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        raise Unreadable(f"{path}: {first_line(error)}") from error
    weights = found.get("state_dict", found) if isinstance(found, dict) else None
    if not weights or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise Unreadable(f"{path}: holds no state dict")
    return {_unwrapped(name): value.contiguous() for name, value in weights.items()}


def write_checkpoint(run: RunFolder, step: int, source: Path, val_loss: float | None) -> None:
    """The weights in `source` as the run's checkpoint of `step`, to which `latest` points then."""
    final = run.checkpoint(step)
    draft = run.checkpoints / f".draft_{final.name}"
    shutil.rmtree(draft, ignore_errors=True)
    weights = weights_of(source)
    draft.mkdir(parents=True)
    save_file(weights, draft / MODEL)
    os.chmod(draft / MODEL, 0o644)
    fsync_path(draft / MODEL)
    files = {MODEL: blake3_file(draft / MODEL)}
    meta = CheckpointMeta(step=step, files=files, val_loss=val_loss, time=time.time())
    write_json(draft / META, meta.model_dump())
    fsync_path(draft)
    leave_if_taken_over(run)
    if final.exists():
        shutil.rmtree(final)
    os.rename(draft, final)
    fsync_path(final.parent)
    link_atomic(run.latest, final.name)


def _unwrapped(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper)
    return name
