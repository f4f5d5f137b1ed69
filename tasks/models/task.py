"""What a recipe makes of a model: a module that gives the loss of a batch.

It is a module like any other, so DDP, `compile` and accumulation wrap it and none of them has to know the
recipe. A loss comes as sum and weight, because only those add up over micro-batches and ranks whose weights
differ, as tokens do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

Features = Mapping[str, Tensor]
"""What a contrastive loss compares, by name; each of shape [samples, ...]."""


class Loss(NamedTuple):
    """`sum` is differentiable and `weight` is not, both of shape []; their ratio is the mean loss.

    `logs` are further figures of the batch for the metrics, of shape [] and detached, by name.
    """

    sum: Tensor
    weight: Tensor
    logs: dict[str, Tensor]


class Task(nn.Module, ABC):
    """A model with its loss. What is saved is the model alone."""

    model: Any

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: Mapping[str, Any]) -> Loss:
        """The loss of a batch that is on the model's device."""

    def after_step(self) -> None:
        """Called after each optimizer step, to keep parameters within bounds."""
        return


class Contrastive(Task):
    """A task whose loss compares each sample with all others of the batch.

    The loss of a whole is not the sum of its parts' losses, so whoever computes a batch in parts, on several
    ranks or one after the other, encodes the parts and contrasts all features at once.
    """

    @abstractmethod
    def encode(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """The features of a batch, each sample's by itself."""

    @abstractmethod
    def contrast(self, features: Features) -> Loss:
        """The loss of features, whose weight is the number of samples."""

    def forward(self, batch: Mapping[str, Any]) -> Loss:
        return self.contrast(self.encode(batch))


class Embedder(ABC):
    """A task of the capability `embed`: images, or volumes, and texts in one space."""

    @property
    @abstractmethod
    def logit_scale(self) -> float:
        """What similarities are multiplied by before a softmax over them."""

    @abstractmethod
    def embed_images(self, batch: Mapping[str, Any]) -> Tensor:
        """[samples, width], rows of length 1."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """[texts, context length], on the CPU: all that the model is given of each text."""

    @abstractmethod
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """[texts, width], rows of length 1, in the images' space and on the model's device."""


class Question(NamedTuple):
    """What is to be answered, as the model is given it, and for a reader."""

    tokens: list[int]
    tiles: Tensor
    """[tiles, side, side, 3] uint8: of all its pictures, in their order."""
    text: str
    expected: str
    """The right answer."""


class Answerer(ABC):
    """A task of the capability `generate`: it answers questions in words."""

    @abstractmethod
    def questions(self, members: Mapping[str, bytes]) -> list[Question]:
        """Every question of a sample, with what was said before it; DataError for members that hold none."""

    @abstractmethod
    def ask(self, messages: Sequence[tuple[str, str]], pictures: Sequence[Any]) -> Question:
        """The question that ends a conversation of (role, text), about pictures of PIL."""

    @abstractmethod
    def answer(self, questions: Sequence[Question], most_tokens: int) -> list[str]:
        """What the model says to each, word for word the likeliest, in `most_tokens` tokens at most."""
