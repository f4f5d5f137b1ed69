"""A task is a recipe's model together with its loss, as one module that maps a batch to its loss.

It is a module like any other, so DDP, `compile` and accumulation wrap it without knowing the recipe. A loss
is returned as sum and weight, because only these add up over micro-batches and ranks of different weight,
such as different numbers of tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

ALL = slice(None)
Features = Mapping[str, Tensor]
"""The tensors that a contrastive loss compares, by name; each has shape [samples, ...]."""


class Loss(NamedTuple):
    """`sum` is differentiable and `weight` is not, both of shape []; their ratio is the mean loss.

    `logs` holds further metrics of the batch by name, of shape [] and detached.
    """

    sum: Tensor
    weight: Tensor
    logs: dict[str, Tensor]


class Task(nn.Module, ABC):
    """A model with its loss. Checkpoints save the model alone."""

    model: Any

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: Mapping[str, Any]) -> Loss:
        """Compute the loss of a batch that is on the model's device."""

    def chance(self, samples: int) -> float | None:
        """Return the least loss of a model that does not know what belongs together, for a batch of so many
        samples; None where it has no closed form."""
        return None

    def after_step(self) -> None:
        """Keep parameters within bounds; called after each optimizer step."""
        return


class Contrastive(Task):
    """A task whose loss compares each sample with all others of the batch.

    The loss of a batch is not the sum of its parts' losses. Callers that compute a batch in parts, on several
    ranks or one after the other, encode the parts and contrast all features at once.
    """

    @abstractmethod
    def encode(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Compute the features of each sample on its own."""

    @abstractmethod
    def contrast(self, features: Features, own: slice = ALL) -> Loss:
        """Compute the loss of the samples `own`, each compared with all; its weight is their number.

        The losses of parts of the samples add up to that of all, and each needs only its own rows of the
        logits: [own, samples] in place of [samples, samples].
        """

    def forward(self, batch: Mapping[str, Any]) -> Loss:
        return self.contrast(self.encode(batch))


def both_ways(one: Tensor, other: Tensor, scale: Tensor | float, own: slice = ALL) -> tuple[Tensor, Tensor]:
    """Return the scaled similarities [own, samples] of `one` [samples, width] to all of `other`, and back."""
    there = scale * one[own] @ other.T
    return there, there.T if own == ALL else scale * other[own] @ one.T


class Embedder(ABC):
    """A task of the capability `embed`: it embeds images or volumes, and texts, in one space."""

    @property
    @abstractmethod
    def logit_scale(self) -> float:
        """The factor that similarities are multiplied by before a softmax."""

    @abstractmethod
    def embed_images(self, batch: Mapping[str, Any]) -> Tensor:
        """Return [samples, width], rows of length 1."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return [texts, context length] on the CPU: the tokens that the model reads of each text."""

    @abstractmethod
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Return [texts, width], rows of length 1, in the images' space and on the model's device."""


class Question(NamedTuple):
    """A question as input of the model, and as text for a reader."""

    tokens: list[int]
    tiles: Tensor
    """[tiles, side, side, 3] uint8, of all pictures in their order."""
    text: str
    expected: str
    """The right answer."""


class Answerer(ABC):
    """A task of the capability `generate`: it answers questions with text."""

    @abstractmethod
    def questions(self, members: Mapping[str, bytes]) -> list[Question]:
        """Return every question of a sample, each after the turns before it; DataError for members
        without any."""

    @abstractmethod
    def ask(self, messages: Sequence[tuple[str, str]], pictures: Sequence[Any]) -> Question:
        """Return the question that ends a conversation of (role, text) about PIL images. Where the last
        message is the assistant's, the answer continues that."""

    @abstractmethod
    def answer(self, questions: Sequence[Question], most_tokens: int) -> list[str]:
        """Answer each question by greedy decoding, in `most_tokens` tokens at most."""
