"""What a recipe is, and the recipes there are. A new one is a file with such a class and a line in the table.

The table holds names and not classes, so that whoever only asks what there is does not import torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tasks.core.schema import Train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.loader.workers import Transform

RECIPES: Mapping[str, str] = {"clip": "tasks.models.clip:ClipRecipe"}
CHECKS: Mapping[str, str] = {"clip": "tasks.models.clip_config:check"}
"""What checks a recipe's `train.model` without torch."""


class Recipe(Protocol):
    """A model family: all that training and evaluation have to know about it."""

    modality: str
    """Of the datasets it takes."""

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        """A new model on the CPU; random weights come from torch's global generator.

        `pretrained=False` for a model whose weights a checkpoint will replace anyway.
        """

    def transform(self, is_train: bool) -> Transform:
        """From a sample's members to the tensors of a batch; augmented for training."""

    def parameter_groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """Groups for AdamW, each with its own options, without a learning rate."""

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """The mean loss of a batch, a scalar."""

    def after_step(self, model: nn.Module) -> None:
        """Called after each optimizer step, to keep parameters within bounds."""

    def embed_images(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """[samples, width], rows of length 1."""

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """[texts, context length], on the CPU: all that the model is given of each text."""

    def embed_texts(self, model: nn.Module, texts: Sequence[str]) -> Tensor:
        """[texts, width], rows of length 1, in the images' space and on the model's device."""


def module_of(train: Train) -> str:
    """The module that loader processes import for this training."""
    return RECIPES[train.recipe].partition(":")[0]


def check(train: Train) -> None:
    """UsageError for a `train.model` that the recipe does not know; at once, because torch is not needed."""
    module, _, name = CHECKS[train.recipe].partition(":")
    getattr(importlib.import_module(module), name)(train.model)


def load(train: Train) -> Recipe:
    """The recipe with its `train.model` checked; UsageError names the key and the fix."""
    module, _, name = RECIPES[train.recipe].partition(":")
    recipe: Recipe = getattr(importlib.import_module(module), name).of(train.model)
    return recipe
