"""What a recipe is: how a model family is configured, built, fed and trained.

A recipe brings two classes, which the table in `tasks.core.schema.recipes` names. Its options are the
config's `train.model`, checked without torch, because a wrong name should cost neither seconds nor a build.
The recipe itself makes of them all that training and evaluation have to know of the family.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import ValidationError

from tasks.core.errors import UsageError, instead, list_mistakes
from tasks.core.schema import Train
from tasks.core.schema.block import Block
from tasks.core.schema.recipes import RECIPES
from tasks.models.needs import Need

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.loader.collate import Collate
    from tasks.loader.workers import Transform
    from tasks.models.task import Task

Capability = Literal["loss", "embed", "generate"]
"""What a trained model gives: the loss of held-out samples, embeddings (`task.Embedder`), texts."""
MORE_THAN: Mapping[str, Sequence[str]] = {"image_text": ("reinforced",)}
"""Modalities whose samples have all the members of another one, and more."""


class Options(Block):
    """What a config's `train.model` may say of one recipe; a mistake that pydantic finds names its key."""

    modality: ClassVar[str]
    """Of the datasets it takes; empty of one that takes any."""
    capabilities: ClassVar[frozenset[Capability]]
    parts: ClassVar[tuple[str, ...]] = ("model",)
    """Of the model, as `train.lr`, `train.warmup` and `train.freeze` name them."""
    packs: ClassVar[bool] = False
    """Whether it trains on several samples in one row, by `train.pack`."""
    is_external: ClassVar[bool] = False
    """Whether another trainer's command trains; see `tasks.training.external`."""

    @classmethod
    def takes(cls, modality: str) -> bool:
        """Whether the recipe trains on datasets of that modality."""
        return not cls.modality or modality in (cls.modality, *MORE_THAN.get(cls.modality, ()))

    @property
    def gives(self) -> frozenset[Capability]:
        """What a model of these options gives."""
        return self.capabilities

    @property
    def input_shape(self) -> tuple[int, int, int] | None:
        """(depth, height, width) of the volumes that a model reads; None of one that reads no volumes."""
        return None

    @property
    def needs(self) -> Sequence[Need]:
        """What a model of these options needs that no package brings; nothing unless a recipe says so."""
        return ()

    def require(self, train: Train) -> None:
        """ValueError for another key of the train block that these options do not go with."""
        return


class Recipe(Protocol):
    """A model family: all that training and evaluation have to know about it. It is made of its options."""

    collate: Collate
    """From transformed samples to a batch; `tasks.loader.collate.stack` where all have the same shapes."""

    @property
    def adam(self) -> Mapping[str, Any]:
        """Options of AdamW: its `betas` and `eps`."""

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        """A new model on the CPU; random weights come from torch's global generator.

        `pretrained=False` for a model whose weights a checkpoint will replace anyway.
        """

    def task(self, model: nn.Module) -> Task:
        """The model with its loss; an `Embedder` as well where the options say `embed`."""

    def transform(self, is_train: bool) -> Transform:
        """From a sample's members to the tensors of a batch; augmented for training."""

    def part_of(self, name: str) -> str:
        """The part of the model, one of the options' `parts`, that holds the parameter or module."""

    def is_decayed(self, name: str, parameter: Tensor) -> bool:
        """Whether weight decay acts on it."""


def module_of(train: Train) -> str:
    """The module that loader processes import for this training."""
    return RECIPES[train.recipe].recipe.partition(":")[0]


def options_type(name: str) -> type[Options]:
    """The class of the options of the recipe of this name; imports no torch."""
    found: type[Options] = _imported(RECIPES[name].options)
    return found


def check_recipe(train: Train) -> Options:
    """The options in `train.model`, after the parts that other keys name were looked up.

    UsageError names the key and the fix, without importing torch.
    """
    kind = options_type(train.recipe)
    try:
        options = kind.model_validate(train.model)
    except ValidationError as error:
        mistakes = [f"train.model{_worded(one, kind)}" for one in error.errors(include_url=False)]
        raise UsageError(list_mistakes(mistakes)) from None
    _check_parts(train, kind.parts)
    if train.pack is not None and not kind.packs:
        raise UsageError(f"train.pack: has no effect with recipe {train.recipe}; take it out")
    try:
        options.require(train)
    except ValueError as error:
        raise UsageError(f"train.{error}") from None
    return options


def levers(train: Train) -> str:
    """The keys that lower the memory of a training's step, for messages."""
    fields = options_type(train.recipe).model_fields
    sizes = [f"train.model.{name}" for name in ("max_side", "image_size", "shape") if name in fields]
    rows = ["train.pack"] if train.pack is not None else []
    now = "unset" if train.micro_batch is None else f"{train.micro_batch} now"
    return " or ".join([f"train.micro_batch ({now})", *rows, *sizes])


def load_recipe(train: Train) -> Recipe:
    """The recipe with its `train.model` checked; UsageError names the key and the fix."""
    options = check_recipe(train)
    recipe: Recipe = _imported(RECIPES[train.recipe].recipe)(options)
    return recipe


def _check_parts(train: Train, parts: Sequence[str]) -> None:
    trained = [part for part in parts if part not in train.frozen]
    for key, given in (("freeze", train.freeze), ("lr", train.lr), ("warmup", train.warmup)):
        if not isinstance(given, list | dict):
            continue
        for part in given:
            if part not in parts:
                raise UsageError(
                    f"train.{key}: a model of recipe {train.recipe} has no part {part!r}; "
                    f"{instead(part, parts)}"
                )
            if key != "freeze" and part in train.freeze:
                raise UsageError(f"train.{key}.{part}: has no effect, as train.freeze names {part} too")
            if key == "warmup" and part not in trained:
                raise UsageError(f"train.warmup.{part}: has no effect, as train.lr.{part} is 0")
        missing = [part for part in trained if part not in given]
        if key != "freeze" and missing:
            raise UsageError(f"train.{key}: names parts of the model, and lacks {', '.join(missing)}")


def _imported(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _worded(mistake: Mapping[str, Any], kind: type[Options]) -> str:
    """The rest of a line that begins with `train.model`."""
    fields = kind.model_fields
    key = "".join(f".{part}" for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        return f"{key}: unknown key; {instead(str(mistake['loc'][-1]), list(fields))}"
    if mistake["type"] == "missing":
        return f"{key}: is required: {fields[str(mistake['loc'][0])].description}"
    if mistake["type"] == "value_error":
        return f"{key}: {mistake['ctx']['error']}"
    return f"{key}: {str(mistake['msg']).replace('Input should', 'must')}, not {mistake['input']!r}"
