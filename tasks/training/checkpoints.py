"""Writes a run's state to disk, beside the training, and takes it up again, bit by bit.

A checkpoint is a folder that gets its name when all of it is on disk: `model.safetensors` (which others
load), `state.pt` (optimizer, loader and random generators, for resuming) and `meta.json` with the BLAKE3 of
both. No pickle in it could run code: `state.pt` is read with `weights_only=True`. A training with weights in
shards adds `parts`, in which each rank has written its part of the optimizer's state; its index is a pickle
of torch's, so resume none that a stranger gave you. A checkpoint that is taken over from another trainer has
the weights alone; that trainer resumes from its own file.

The state is copied to the host, then written and hashed by a thread. torch, safetensors and BLAKE3 release
the interpreter while they work, so a step waits for the copy alone. The price is memory for one more state on
the host. One checkpoint is on its way at a time: the next save waits for it, so no backlog grows on a slow
disk. A process that is killed while it writes leaves the checkpoint before.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_file, save_model
from torch import Tensor, distributed, nn

from tasks.core.errors import DataError, TarmacError, first_line
from tasks.core.files import blake3_file, fsync_path, link_atomic, write_json
from tasks.models.state_dict import weights_of
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
from tasks.training import sharded_weights as shards
from tasks.training.devices import random_state, set_random_state
from tasks.training.ranks import ALONE, Ranks

STATE = "state.pt"
PARTS = "parts"
"""The folder of what ranks with weights in shards have saved, as torch.distributed.checkpoint writes it."""
DRAFT = ".draft_"
OUT_OF_MEMORY = "memory ran out while saving"
"""The agent looks for it in the log of a training that ended so."""
NO_MEMORY = f"{OUT_OF_MEMORY}; lower loader.workers, loader.prefetch or train.batch_size"
REFUSED = (OSError, RuntimeError, MemoryError)
logger = logging.getLogger(__name__)


class Weights(nn.Module):
    """Only a model's weights; safetensors takes a module, since it looks for weights that are one."""

    def __init__(self, values: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._values = values

    def state_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return dict(self._values)


@dataclass(frozen=True)
class Copied:
    """The content of one checkpoint, apart from the training."""

    weights: Weights
    state: Mapping[str, Any]
    parts: Future[Any] | None = None
    """The end of what all ranks write into a draft of their own."""


class CheckpointSaver:
    """Writes the checkpoints of a run in a thread.

    Leaving the block waits for the checkpoint on its way, whatever the reason for leaving.
    """

    def __init__(self, run: RunFolder, ranks: Ranks = ALONE) -> None:
        self._run, self._ranks = run, ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._under_way: list[Future[None]] = []
        self._group: Any = distributed.new_group(backend="gloo") if ranks.shards else None
        """For what the ranks tell each other beside the training, or None."""

    def save(
        self, step: int, model: nn.Module, state: Mapping[str, Any], parts: dict[str, Tensor] | None = None
    ) -> None:
        """Copy the state after `step` steps, and have it written; waits for the checkpoint before.

        All ranks call it. The first writes model and state; of a model in shards every rank writes `parts`.
        TarmacError when the checkpoint before could not be written, or memory runs out.
        """
        with self._ranks.agreeing():
            self.wait()
        weights, written = model, None
        if parts is not None:
            try:
                weights = Weights(shards.gather(model, self._ranks))
                written = shards.save(parts, parts_draft_of(self._run, step), self._group)
            except (MemoryError, RuntimeError) as error:
                raise _not_written(self._run, step, error, NO_MEMORY) from error
        with self._ranks.agreeing():
            if self._ranks.is_first:
                content = copied(self._run, step, weights, state, written)
                self._under_way.append(self._thread.submit(write_copied, self._run, step, content))
            elif written is not None:
                self._under_way.append(self._thread.submit(_await_parts, self._run, step, written))

    def add_val_loss(self, step: int, val_loss: float) -> None:
        """Have the validation loss written into the checkpoint of `step` once that is there."""
        self._under_way.append(self._thread.submit(add_val_loss, self._run, step, val_loss))

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written, as soon as it is known; waits for
        none."""
        while self._under_way and self._under_way[0].done():
            self._under_way.pop(0).result()

    def wait(self) -> None:
        """Wait until nothing is on its way; raise the error of what could not be written."""
        while self._under_way:
            self._under_way.pop(0).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except TarmacError as failed:
            if error is None:
                raise
            logger.error("%s", failed)  # beside the error that ends the training
        finally:
            self._thread.shutdown()


def save_checkpoint(run: RunFolder, step: int, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Write the model and the rest of the state after `step` steps and point `latest` at it.

    TarmacError when the disk refuses it, or memory runs out.
    """
    write_copied(run, step, copied(run, step, model, state))


def copied(
    run: RunFolder,
    step: int,
    model: nn.Module,
    state: Mapping[str, Any],
    parts: Future[Any] | None = None,
) -> Copied:
    """Return the content of the checkpoint of `step` in the host's memory, where no later step changes it.

    TarmacError when memory runs out.
    """
    known: dict[tuple[Any, ...], torch.Tensor] = {}
    try:
        weights = model if isinstance(model, Weights) else Weights(_copy(model.state_dict(), known))
        return Copied(weights, _copy({**state, "random": random_state()}, known), parts)
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError when the host's memory runs out
        raise _not_written(run, step, error, NO_MEMORY) from error


def write_copied(run: RunFolder, step: int, content: Copied) -> None:
    """Write what was copied and point `latest` at it; TarmacError as for `save_checkpoint`."""

    def write(draft: Path) -> None:
        save_model(content.weights, str(draft / MODEL))
        torch.save(content.state, draft / STATE)
        if content.parts is not None:
            shards.await_saved(content.parts)
            os.rename(parts_draft_of(run, step), draft / PARTS)
            fsync_path(draft / PARTS)  # its entries are those of other processes

    try:
        _publish(run, step, write)
    except (*REFUSED, SafetensorError) as error:
        shutil.rmtree(_draft_of(run, step), ignore_errors=True)
        remedy = _remedy(error, run.checkpoints, content.weights)
        raise _not_written(run, step, error, remedy) from error


def _await_parts(run: RunFolder, step: int, parts: Future[Any]) -> None:
    try:
        shards.await_saved(parts)
    except REFUSED as error:
        raise _not_written(run, step, error, "make room on the disk") from error


def take_over_weights(run: RunFolder, step: int, source: Path, val_loss: float | None) -> None:
    """Make the weights in another trainer's file the run's checkpoint of `step`, and point `latest` at it.

    UnreadableWeights where the file holds none.
    """
    weights = weights_of(source)
    _publish(run, step, lambda draft: save_file(weights, draft / MODEL), val_loss)


def parts_draft_of(run: RunFolder, step: int) -> Path:
    """Where all ranks write their parts of the checkpoint of `step`."""
    return run.checkpoints / f"{DRAFT}{PARTS}_{run.checkpoint(step).name}"


def _draft_of(run: RunFolder, step: int) -> Path:
    return run.checkpoints / f"{DRAFT}{run.checkpoint(step).name}"


def _publish(run: RunFolder, step: int, write: Callable[[Path], None], val_loss: float | None = None) -> None:
    """Have `write` fill a draft, give it the name of the checkpoint when all is on disk, and point `latest`
    at it.

    A folder that has the name already is torn, or `newest` would have resumed from it.
    """
    began, final, draft = time.monotonic(), run.checkpoint(step), _draft_of(run, step)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    write(draft)
    written = sorted(path for path in draft.rglob("*") if path.is_file())
    files = {str(path.relative_to(draft)): _settle(path) for path in written}
    took_s = round(time.monotonic() - began, 3)
    meta = CheckpointMeta(step=step, files=files, val_loss=val_loss, time=time.time(), seconds=took_s)
    write_json(draft / META, meta.model_dump())
    leave_if_taken_over(run)
    fsync_path(draft)
    if final.exists():
        shutil.rmtree(final)
    os.rename(draft, final)
    fsync_path(final.parent)
    link_atomic(run.latest, final.name)


def _settle(path: Path) -> str:
    """Put the file on the disk, readable for all (safetensors writes for the owner only); return its
    BLAKE3."""
    with path.open("rb") as file:
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    return blake3_file(path)


def _not_written(run: RunFolder, step: int, error: BaseException, remedy: str) -> TarmacError:
    why = first_line(error)
    return TarmacError(f"{run.checkpoint(step)}: cannot be written: {why}; {remedy} and resume")


def _copy(value: Any, known: dict[tuple[Any, ...], torch.Tensor]) -> Any:
    """The value with its tensors copied to the host; tensors that share their memory still do."""
    if isinstance(value, torch.Tensor):
        place = value.device, value.data_ptr(), value.dtype, value.shape, value.stride()
        if place not in known:
            known[place] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return known[place]
    if isinstance(value, Mapping):
        return {name: _copy(part, known) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(part, known) for part in value)
    return value


def _remedy(error: BaseException, place: Path, model: nn.Module) -> str:
    """Return what the user can do about the error.

    torch raises a RuntimeError for a full disk and for a lack of memory alike, so this tries whether the disk
    takes as much as model and optimizer may need.
    """
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
    """Return the newest sound checkpoint and point `latest` at it again; the log names torn ones.

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


def restore(checkpoint: Checkpoint, model: nn.Module | None) -> dict[str, Any]:
    """Put model and random generators back to where they were, and return the rest of the state as saved.

    Devices stay as they are. None stands for a model that is in another rank's hands.
    """
    if model is not None:
        load_model(model, checkpoint.path / MODEL)
    state: dict[str, Any] = torch.load(checkpoint.path / STATE, map_location="cpu", weights_only=True)
    set_random_state(state["random"])
    return state
