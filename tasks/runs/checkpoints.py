"""Finds the checkpoints of a run and checks that they are whole, from the files alone, without torch.

A checkpoint appears by rename, complete; its `meta.json` names the BLAKE3 of its files, which shows a file
that was damaged later. Reading them all costs the checkpoint's size once, at a resume and at the end.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tasks.core.errors import DataError
from tasks.core.files import blake3_file, ignore_missing, read_json, unreadable_as_error
from tasks.runs.folder import RunFolder
from tasks.runs.followed import read_origin

META = "meta.json"
MODEL = "model.safetensors"
SETTLED_NS = 2_000_000_000
"""A folder that changed longer ago shows every later change by its time, however coarse the clock."""


class CheckpointMeta(BaseModel):
    """`meta.json`: `files` maps file names to BLAKE3; `val_loss` is None where none is measured yet.
    `seconds` is how long it took to write, None in an older one."""

    model_config = ConfigDict(frozen=True)

    step: int
    files: dict[str, str]
    val_loss: float | None = None
    time: float
    seconds: float | None = None


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step` optimizer steps, in the folder `path`."""

    step: int
    path: Path


def list_checkpoints(folder: RunFolder) -> list[Checkpoint]:
    """Return every checkpoint by step, sound or not."""
    found = []
    for path in folder.checkpoints.glob("step_*"):
        match = re.fullmatch(r"step_(\d+)", path.name)
        if match is not None and path.is_dir():
            found.append(Checkpoint(int(match.group(1)), path))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


class CheckpointListing:
    """The checkpoints of a run for a caller who asks often: listed only when their folder has changed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._changed_ns = 0
        self._found: list[Checkpoint] = []

    def __call__(self) -> list[Checkpoint]:
        try:
            changed_ns = self._folder.checkpoints.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns != self._changed_ns:
            self._found = list_checkpoints(self._folder)
            self._changed_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else 0
        return self._found


def read_meta(checkpoint: Checkpoint) -> CheckpointMeta | None:
    """Return the checkpoint's `meta.json`; None when it is missing or torn, DataError when it is
    unreadable."""
    with unreadable_as_error(DataError), ignore_missing():
        try:
            return CheckpointMeta.model_validate(read_json(checkpoint.path / META))
        except ValueError:
            return None
    return None


def is_sound(checkpoint: Checkpoint, only: str | None = None) -> bool:
    """Whether `meta.json` is there, for this step, and every file that it names (or `only` that file) has the
    content that it had. One of another trainer is sound as long as its files are as the run took them.

    DataError when a file cannot be read: it may be whole.
    """
    if (origin := read_origin(checkpoint.path)) is not None:
        return not (origin.unusable or origin.lack())
    meta = read_meta(checkpoint)
    if meta is None or meta.step != checkpoint.step or not meta.files:
        return False
    with unreadable_as_error(DataError), ignore_missing():
        names = meta.files if only is None else [only]
        return all(blake3_file(checkpoint.path / name) == meta.files.get(name) for name in names)
    return False


def newest_sound(folder: RunFolder) -> Checkpoint | None:
    """Return the sound checkpoint of the highest step, from which a resumed run goes on."""
    return next((found for found in reversed(list_checkpoints(folder)) if is_sound(found)), None)


def by_val_loss(folder: RunFolder) -> list[Checkpoint]:
    """Return the checkpoints with a validation loss, the lowest first, and the earlier of two equals."""
    measured = [
        (meta.val_loss, checkpoint.step, checkpoint)
        for checkpoint in list_checkpoints(folder)
        if (meta := read_meta(checkpoint)) is not None and meta.val_loss is not None
    ]
    return [entry[2] for entry in sorted(measured, key=lambda entry: entry[:2])]
