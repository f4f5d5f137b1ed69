"""What a training takes of each of its devices, known before one is there; see `tasks.training.fake_step`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.core import child
from tasks.core.files import read_json
from tasks.core.schema import Config
from tasks.core.units import size
from tasks.runs.folder import RunFolder
from tasks.runs.plan import settled

MEASURE = "tasks.training.fake_step:footprint"
CONTEXT_BYTES = 0.8e9
"""What CUDA, its libraries and NCCL are taken to need of a GPU for each process; it is not measured."""
SPARE = 0.95
"""The share of a GPU's memory that may be taken: an allocator loses some between its blocks."""


@dataclass(frozen=True)
class Footprint:
    """The bytes that a rank takes of its device, and the floating-point operations of its step.

    `weights` includes an average of them, `batch` is what a step is given; `peak` and `judging` are the most
    that is held in a step and while the loss on held-out samples is computed, `whole` the bytes of the model
    on one device, `saving` the bytes of the copy on the host while a checkpoint is written. `flops` are those
    of the model, without what is computed twice to save memory.
    """

    weights: int
    gradients: int
    optimizer: int
    batch: int
    peak: int
    judging: int
    whole: int
    saving: int
    flops: int

    @property
    def most(self) -> float:
        """The bytes of a GPU that the training needs: the next batch is there while a step is taken."""
        return max(self.peak + self.batch, self.judging) + CONTEXT_BYTES

    @property
    def beside(self) -> float:
        """The bytes of a GPU that an evaluation needs, which has the whole model and no more."""
        kept = self.weights + self.gradients + self.optimizer
        return self.whole + max(self.judging - kept, 0) + CONTEXT_BYTES

    def __str__(self) -> str:
        kept = self.weights + self.gradients + self.optimizer
        parts = (
            f"weights {size(self.weights)}, gradients {size(self.gradients)}, AdamW {size(self.optimizer)}, "
            f"batches and activations {size(self.most - CONTEXT_BYTES - kept)}"
        )
        return f"{size(self.most)}: {parts}, and {size(CONTEXT_BYTES)} for CUDA"


def read_footprint(run: RunFolder) -> Footprint | None:
    """Return what the run's agent has left; None where it did not compute it."""
    return Footprint(**read_json(run.footprint)) if run.footprint.exists() else None


def footprint_of(config: Config, *, asks_hub: bool = False) -> Footprint:
    """Return the footprint of a rank of the config's training, computed in a child process, which takes
    seconds; TarmacError where the model cannot be built here.

    The shape of pretrained weights is read from their files; unless the hub may be asked for them, they have
    to be on this machine.
    """
    assert config.train is not None
    known = config.model_copy(update={"train": settled(config.train, config.engine.train)})
    given = {"config": known.model_dump(mode="json", by_alias=True), "asks_hub": asks_hub}
    found: Mapping[str, Any] = child.call(MEASURE, given)
    return Footprint(**found)
