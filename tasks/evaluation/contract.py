"""What an evaluator is, what it meets and what it gives back. It sees a checkpoint only through `Subject`.

Embeddings cross this line as NumPy arrays, so an evaluator is plain arithmetic that is tested without torch.
The price is that all of a split's embeddings leave the accelerator; they are small beside its images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from tasks.core.errors import DataError
from tasks.core.units import counted
from tasks.evaluation.results import Prediction

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
class Outcome:
    """What an evaluator found out; see EvaluationResult for the fields."""

    metrics: Mapping[str, float]
    split: str
    samples: int
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)
    predictions: Sequence[Prediction] = ()


class Subject(Protocol):
    """A checkpoint together with the data it is judged on."""

    def held_out(self) -> str:
        """The split that an evaluation takes unless told otherwise; DataError when there is no such split."""

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        """Every sample of the split once, in storage order; `extract` (picklable) sees its members."""

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        """One row a text."""

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        """What the model is given of each text: those with the same tokens are one text to it."""


class Evaluator(BaseModel, ABC):
    """One kind of evaluation; its fields are the arguments that a task in the config may give."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    least_samples: ClassVar[int] = 1
    """How many a split must hold to be judged on."""

    split: str | None = None
    """The held-out one unless given."""

    def problem(self, split: str, samples: Iterator[Members]) -> str:
        """Why samples of this split cannot be judged, and the fix; empty where nothing is known against it.

        Takes as few as tell. Known before a training, so that none ends in an evaluation that fails.
        """
        return ""

    @abstractmethod
    def evaluate(self, subject: Subject) -> Outcome:
        """Judge the checkpoint; DataError, naming the sample and the fix, for data that does not allow it."""


def require_finite(names: Sequence[str], embeddings: Embeddings) -> None:
    """DataError that names the first whose embedding is not finite."""
    broken = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if broken.size:
        lost = f"{counted(int(broken.size), 'embedding')} not finite, the first of {names[broken[0]]!r}"
        raise DataError(
            f"{lost}: the model's weights are lost; train anew with a lower train.lr or a longer train.warmup"
        )
