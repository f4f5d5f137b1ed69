"""What a format makes of a trained model: files, and the question by which the other library is asked.

Both sides compute in float64, so that what is left between them is a difference of the models and not the
order in which sums were rounded. Pictures and texts are made from a fixed seed: an export needs no dataset,
and a proof shows nothing of a private one.
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
    """The recipe's, as `train.recipe` has it."""
    options: Options
    model: nn.Module


@dataclass(frozen=True)
class ProofQuestion:
    """What the other library is given, and what Tarmac's model says to it."""

    answers: Mapping[str, Tensor]
    """By name, as the program of the proof names its own. Whole numbers have to be the same."""
    pictures: Sequence[Image.Image] = ()
    texts: Sequence[str] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """An export whose files are there."""

    covers: str
    """Which parts of the model are in it, for a reader."""
    usage: str
    """The Python expression that loads it, with `{path}` where the folder's name belongs."""
    question: ProofQuestion
    moves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of JSON files, by name: keys with a path in the folder, which hold the whole path at the end."""


def picture(number: int, width: int, height: int) -> Image.Image:
    """Clouds in colour, others for each number."""
    clouds = np.random.default_rng([SEED, number]).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(clouds).resize((width, height), Image.Resampling.BICUBIC)


def refuse(target: str, reason: str, instead: str) -> UsageError:
    """The error for a model that a format has no place for; `instead` says what works."""
    return UsageError(f"--to {target}: {reason}; {instead}")
