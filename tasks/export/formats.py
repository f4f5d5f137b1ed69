"""The output of a format's writer: files, and the question that the other library is asked.

Both sides compute in float64, so that a difference between them comes from the models and not from the order
in which sums were rounded. Pictures and texts are made from a fixed seed: an export needs no dataset, and a
proof shows nothing of a private one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from tasks.core.errors import UsageError
from tasks.models.recipes import Options

TEXTS = (
    "a photo of a seven",
    "Two dogs, one black and one white, run along a beach!",
    "it's the 3rd of 12 pictures",
    "x",
)
SEED = 0


@dataclass(frozen=True)
class TrainedModel:
    """A checkpoint's model, on the CPU and in evaluation mode, and the recipe that made it."""

    recipe: Any
    name: str
    """The name of the recipe, as in `train.recipe`."""
    options: Options
    model: nn.Module


@dataclass(frozen=True)
class ProofQuestion:
    """The inputs for the other library, and the answers of Tarmac's model."""

    answers: Mapping[str, Tensor]
    """Answers by name, as the proof program names them. Integers have to be equal."""
    pictures: Sequence[Image.Image] = ()
    texts: Sequence[str] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """An export whose files are written."""

    covers: str
    """The parts of the model that it contains, for a reader."""
    usage: str
    """The Python expression that loads it, with `{path}` in place of the folder's name."""
    question: ProofQuestion
    moves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By JSON file: keys whose relative path becomes absolute once the folder has its final place."""


def picture(number: int, width: int, height: int) -> Image.Image:
    """Make coloured clouds, different for each number."""
    clouds = np.random.default_rng([SEED, number]).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(clouds).resize((width, height), Image.Resampling.BICUBIC)


def refuse(target: str, reason: str, instead: str) -> UsageError:
    """Return the error for a model that a format cannot represent; `instead` names what works."""
    return UsageError(f"--to {target}: {reason}; {instead}")
