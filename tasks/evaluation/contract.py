"""The contract of an evaluator: its input, the `Subject`, and its output, the `EvaluationOutcome`.

Embeddings are passed as NumPy arrays, so an evaluator is plain arithmetic that is tested without torch. The
price is that all embeddings of a split leave the accelerator; they are small beside its images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict

from tasks.core.errors import DataError
from tasks.core.schema.block import Folder
from tasks.core.units import counted
from tasks.evaluation.results import Prediction
from tasks.evaluation.samples import JudgedSamples
from tasks.models.recipes import Capability

Embeddings = NDArray[np.float32]
"""[samples, width], rows of length 1."""
Members = dict[str, bytes]
LOST_WEIGHTS = "the model's weights are lost; train anew with a lower train.lr or a longer train.warmup"


class StreamPosition(NamedTuple):
    """How far a pass over a split is: the batches that were read, and the bad samples that they lack."""

    batches: int
    left_out: int


START = StreamPosition(0, 0)


@dataclass(frozen=True)
class Embedded:
    """Samples with their keys, their embeddings, and the text that was extracted from each."""

    keys: Sequence[str]
    embeddings: Embeddings
    extracted: Sequence[str]
    after: StreamPosition = START
    """Where the pass over the split goes on."""

    @classmethod
    def join(cls, batches: Iterable[Embedded], most: int | None = None) -> Embedded:
        """Join batches, and stop reading them after `most` samples."""
        joined: list[Embedded] = []
        count = 0
        for batch in batches:
            joined.append(batch)
            count += len(batch.keys)
            if most is not None and count >= most:
                break
        return cls(
            [key for batch in joined for key in batch.keys][:most],
            np.concatenate([batch.embeddings for batch in joined])[:most],
            [text for batch in joined for text in batch.extracted][:most],
        )


@dataclass(frozen=True)
class BatchLoss:
    """The loss of one batch; the mean loss is the sum divided by the weight."""

    sum: float
    weight: float
    samples: int
    first_key: str = ""
    after: StreamPosition = START
    """Where the pass over the split goes on."""


@dataclass(frozen=True)
class Answered:
    """One question of the sample `key`, the right answer, and the model's answer."""

    key: str
    question: str
    expected: str
    answer: str


class ChatRequest(NamedTuple):
    """A conversation of (role, text) that the model is to continue, in which `<image>` marks the places of
    the pictures. Where the last message is the assistant's, the model continues that message."""

    messages: Sequence[tuple[str, str]]
    pictures: Sequence[Image.Image]


@dataclass(frozen=True)
class EvaluationOutcome:
    """The output of an evaluator; see EvaluationResult for the fields."""

    metrics: Mapping[str, float]
    split: str
    samples: int
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)
    predictions: Sequence[Prediction] = ()
    notes: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files by name, written beside the result into a folder named after the task."""
    samples_by_label: Mapping[str, int] = field(default_factory=dict)
    by_sample: JudgedSamples | None = None
    """What each sample contributed; None where only another program knows. Its `data` is empty, unless the
    evaluator has data of its own."""


@dataclass(frozen=True)
class CheckpointLocation:
    """The folders of a run and its checkpoint, and the checkpoint's step."""

    run: Path
    checkpoint: Path
    step: int


class Subject(Protocol):
    """A checkpoint together with the data that it is evaluated on."""

    def place(self) -> CheckpointLocation:
        """Return the checkpoint's location, for programs that read it themselves."""

    def held_out(self) -> str:
        """Return the split that an evaluation uses by default; DataError where there is none."""

    def embed_images(
        self, split: str, extract: Callable[[Members], str], after: StreamPosition = START
    ) -> Iterator[Embedded]:
        """Embed every sample of the split once, in storage order, or those `after` a batch; `extract`
        (picklable) gets its members."""

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        """Return one row per text."""

    def logit_scale(self) -> float:
        """Return the factor that similarities are multiplied by before a softmax."""

    def losses(self, split: str, after: StreamPosition = START) -> Iterator[BatchLoss]:
        """Compute the loss of every sample of the split once, in storage order, or of those `after` a
        batch."""

    def answers(self, split: str, samples: int, most_tokens: int, skip: int = 0) -> Iterator[Answered]:
        """Answer each question of the first `samples` of the split, in storage order and in `most_tokens`
        tokens at most, without the first `skip` questions."""

    def replies(self, requests: Sequence[ChatRequest], most_tokens: int) -> Sequence[str]:
        """Continue each conversation, all in one pass and in `most_tokens` tokens at most."""

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        """Return the tokens of each text; texts with equal tokens are the same to the model."""


class Evaluator(BaseModel, ABC):
    """One kind of evaluation; its fields are the arguments that a task in the config may give."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    needs: ClassVar[frozenset[Capability]] = frozenset({"embed"})
    """The capabilities that a recipe's models need; without them the task is refused before
    anything is built."""
    judges_samples: ClassVar[bool] = True
    """Whether it evaluates a split of the run's dataset rather than data of its own."""
    better_low: ClassVar[tuple[str, ...]] = ("loss",)
    """The endings of metrics whose lowest value is the best."""
    least_samples: ClassVar[int] = 1
    """How many samples a split must hold."""

    split: str | None = None
    """The split to evaluate; the held-out one by default."""
    dataset: Folder | None = None
    """The folder of another dataset to evaluate on, in the version that is current when the run is planned;
    the run's own by default."""

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        """Return the names of all possible metrics; a name that ends with `*` is a prefix, where only the
        data determine the rest. `samples` are those of the evaluated split, where it exists already."""
        return ("*",)

    def problem(self, split: str, samples: Iterator[Members]) -> str:
        """Return why samples of this split cannot be evaluated, and the fix; empty where no reason is known.

        Reads as few samples as necessary. It runs before a training, so that none ends in an evaluation that
        fails.
        """
        return ""

    @property
    def further_split(self) -> str | None:
        """A split that is read beside the evaluated one, and must be another; None for most."""
        return None

    @property
    def downloads(self) -> str:
        """What the evaluation downloads itself, and how to do that ahead; empty for most."""
        return ""

    @abstractmethod
    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Evaluate the checkpoint; DataError, with the sample and the fix, for data that cannot be
        evaluated."""


def require_finite(names: Sequence[str], embeddings: Embeddings) -> None:
    """Raise DataError with the name of the first embedding that is not finite."""
    broken = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if broken.size:
        found = f"{counted(int(broken.size), 'embedding')} not finite, first that of {names[broken[0]]!r}"
        raise DataError(f"{found}: {LOST_WEIGHTS}")
