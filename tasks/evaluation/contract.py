"""What an evaluator is, what it meets and what it gives back. It sees a checkpoint only through `Subject`.

Embeddings cross this line as NumPy arrays, so an evaluator is plain arithmetic that is tested without torch.
The price is that all of a split's embeddings leave the accelerator; they are small beside its images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict

from tasks.core.errors import DataError
from tasks.core.units import counted
from tasks.evaluation.results import Prediction
from tasks.models.recipes import Capability

Embeddings = NDArray[np.float32]
"""[samples, width], rows of length 1."""
Members = dict[str, bytes]


@dataclass(frozen=True)
class Embedded:
    """The samples of one batch: their keys, their embeddings, and what was extracted from each."""

    keys: Sequence[str]
    embeddings: Embeddings
    extracted: Sequence[str]


@dataclass(frozen=True)
class BatchLoss:
    """Of the samples of one batch; the mean loss is the sum by the weight."""

    sum: float
    weight: float
    samples: int


@dataclass(frozen=True)
class Answered:
    """One question of the sample `key`, the right answer, and what the model says."""

    key: str
    question: str
    expected: str
    said: str


@dataclass(frozen=True)
class EvaluationOutcome:
    """What an evaluator found out; see EvaluationResult for the fields."""

    metrics: Mapping[str, float]
    split: str
    samples: int
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)
    predictions: Sequence[Prediction] = ()
    notes: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By name; they are left beside the result, in a folder named like the task."""


@dataclass(frozen=True)
class CheckpointLocation:
    """Where a checkpoint lies."""

    run: Path
    checkpoint: Path
    step: int


class Subject(Protocol):
    """A checkpoint together with the data it is judged on."""

    def place(self) -> CheckpointLocation:
        """Where it lies, for programs that read it themselves."""

    def held_out(self) -> str:
        """The split that an evaluation takes unless told otherwise; DataError when there is no such split."""

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        """Every sample of the split once, in storage order; `extract` (picklable) sees its members."""

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        """One row a text."""

    def logit_scale(self) -> float:
        """What similarities are multiplied by before a softmax over them."""

    def losses(self, split: str) -> Iterator[BatchLoss]:
        """The loss of every sample of the split once, in storage order."""

    def answers(self, split: str, samples: int, most_tokens: int) -> Iterator[Answered]:
        """What the model says to each question of the first `samples` of the split, in storage order and in
        `most_tokens` tokens at most."""

    def reply(
        self, messages: Sequence[tuple[str, str]], pictures: Sequence[Image.Image], most_tokens: int
    ) -> str:
        """What the model says next in a conversation of (role, text), in which `<image>` marks the places of
        the pictures."""

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        """What the model is given of each text: those with the same tokens are one text to it."""


class Evaluator(BaseModel, ABC):
    """One kind of evaluation; its fields are the arguments that a task in the config may give."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    needs: ClassVar[frozenset[Capability]] = frozenset({"embed"})
    """What a recipe's models must give, or the task is refused before anything is built."""
    judges_samples: ClassVar[bool] = True
    """Whether it judges a split of the run's dataset, and not data of its own."""
    better_low: ClassVar[tuple[str, ...]] = ("loss",)
    """How the names of metrics end whose lowest value is the best."""
    least_samples: ClassVar[int] = 1
    """How many a split must hold to be judged on."""

    split: str | None = None
    """The held-out one unless given."""

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        """The names of all metrics that it may give; one that ends with `*` stands for whatever begins so, of
        which only data tell more. `samples` are of the split that it judges, where that is there."""
        return ("*",)

    def problem(self, split: str, samples: Iterator[Members]) -> str:
        """Why samples of this split cannot be judged, and the fix; empty where nothing is known against it.

        Takes as few as tell. Known before a training, so that none ends in an evaluation that fails.
        """
        return ""

    @property
    def downloads(self) -> str:
        """What the evaluation downloads by itself, and how to have it do so ahead; empty for most."""
        return ""

    @abstractmethod
    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Judge the checkpoint; DataError, naming the sample and the fix, for data that does not allow it."""


def require_finite(names: Sequence[str], embeddings: Embeddings) -> None:
    """DataError that names the first whose embedding is not finite."""
    broken = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if broken.size:
        lost = f"{counted(int(broken.size), 'embedding')} not finite, the first of {names[broken[0]]!r}"
        raise DataError(
            f"{lost}: the model's weights are lost; train anew with a lower train.lr or a longer train.warmup"
        )
