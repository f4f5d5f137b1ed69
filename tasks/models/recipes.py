"""The contract of a recipe: how a model family is configured, built, fed and trained.

A recipe consists of two classes, which the table in `tasks.core.schema.recipes` names. Its options are the
config's `train.model`, checked without torch, because a wrong name should cost neither seconds nor a build.
The recipe itself is made from its options and holds all that training and evaluation need to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pydantic import ValidationError

from tasks.core.errors import UsageError, instead, list_mistakes
from tasks.core.mistakes import describe_mistakes
from tasks.core.schema import Train
from tasks.core.schema.block import Block
from tasks.core.schema.recipes import RECIPES
from tasks.core.schema.training import Pack
from tasks.models.needs import Need

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.loader.collate import Batch, Collate
    from tasks.loader.workers import Transform
    from tasks.models.task import Task

Capability = Literal["loss", "embed", "generate"]
"""What a trained model can compute: the loss of held-out samples, embeddings (`task.Embedder`), texts
(`task.Answerer`)."""
MORE_THAN: Mapping[str, Sequence[str]] = {"image_text": ("reinforced",)}
"""By modality: others whose samples have all of its members, and more."""


class Options(Block):
    """The keys of a config's `train.model` for one recipe; pydantic's errors name the key."""

    modality: ClassVar[str]
    """The modality of the datasets that the recipe takes; empty where it takes any."""
    capabilities: ClassVar[frozenset[Capability]]
    parts: ClassVar[tuple[str, ...]] = ("model",)
    """The model's parts, as `train.lr`, `train.warmup` and `train.freeze` name them."""
    packs: ClassVar[bool] = False
    """Whether it can train on several samples in one row, by `train.pack`."""
    is_external: ClassVar[bool] = False
    """Whether another trainer's command does the training; see `tasks.training.external`."""

    @classmethod
    def takes(cls, modality: str) -> bool:
        """Whether the recipe trains on datasets of that modality."""
        return not cls.modality or modality in (cls.modality, *MORE_THAN.get(cls.modality, ()))

    @property
    def gives(self) -> frozenset[Capability]:
        """The capabilities of a model of these options."""
        return self.capabilities

    @property
    def input_shape(self) -> tuple[int, int, int] | None:
        """(depth, height, width) of the volumes that the model reads; None where it reads no volumes."""
        return None

    @property
    def needs(self) -> Sequence[Need]:
        """The files that a model of these options needs and no package brings."""
        return ()

    def require(self, train: Train) -> None:
        """Raise ValueError for another key of the train block that these options do not go with."""
        return


class Recipe(Protocol):
    """A model family, made from its options: all that training and evaluation need to know about it."""

    collate: Collate
    """Makes a batch of transformed samples; `tasks.loader.collate.stack` where all have the same shapes."""

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        """Build a new model on the CPU; random weights come from torch's global generator.

        Use `pretrained=False` for a model whose weights a checkpoint will replace.
        """

    def task(self, model: nn.Module) -> Task:
        """Wrap the model with its loss; the task is also an `Embedder` where the options have `embed`."""

    def transform(self, is_train: bool) -> Transform:
        """Return the function from a sample's members to its tensors, with augmentation for training."""

    def example(self, samples: int, pack: Pack | None = None) -> Batch:
        """Return a batch of zeros with the shapes that so many of the training's samples have, or its rows
        where it packs them, as large as they come; no data is read for it."""

    def counts(self, batch: Batch) -> Mapping[str, float]:
        """Return what a batch of rows holds, known to the host: `rows`, `places` for tokens, `tokens` and
        `pictures`; nothing of samples that are no rows."""
        return {}

    def part_of(self, name: str) -> str:
        """Return the part of the model, one of the options' `parts`, that holds this parameter or module."""

    def is_decayed(self, name: str, parameter: Tensor) -> bool:
        """Whether weight decay acts on the parameter: on matrices, unless a recipe decides otherwise."""
        return parameter.ndim >= 2


def module_of(train: Train) -> str:
    """Return the module that loader processes import for this training."""
    return RECIPES[train.recipe].recipe.partition(":")[0]


def options_type(name: str) -> type[Options]:
    """Return the options class of the recipe of this name, without importing torch."""
    found: type[Options] = resolve_name(RECIPES[name].options)
    return found


def check_recipe(train: Train) -> Options:
    """Validate `train.model`, and the parts of the model that other keys name, without importing torch.

    UsageError names the key and the fix.
    """
    kind = options_type(train.recipe)
    try:
        options = kind.model_validate(train.model)
    except ValidationError as error:
        raise UsageError(list_mistakes(describe_mistakes(error, kind, ("train", "model")))) from None
    _check_parts(train, kind.parts)
    if train.pack is not None and not kind.packs:
        raise UsageError(f"train.pack: has no effect with recipe {train.recipe}; take it out")
    try:
        options.require(train)
    except ValueError as error:
        raise UsageError(f"train.{error}") from None
    return options


def levers(train: Train) -> str:
    """Return the keys that lower the memory of a training step, for messages."""
    fields = options_type(train.recipe).model_fields
    sizes = [f"train.model.{name}" for name in ("max_side", "image_size", "shape") if name in fields]
    rows = ["train.pack"] if train.pack is not None else []
    now = "unset" if train.micro_batch is None else f"{train.micro_batch} now"
    return " or ".join([f"train.micro_batch ({now})", *rows, *sizes])


def load_recipe(train: Train) -> Recipe:
    """Return the recipe after checking `train.model`; UsageError names the key and the fix."""
    options = check_recipe(train)
    recipe: Recipe = resolve_name(RECIPES[train.recipe].recipe)(options)
    return recipe


def _check_parts(train: Train, parts: Sequence[str]) -> None:
    trained = [part for part in parts if part not in train.frozen]
    named = {"freeze": train.freeze, "unlocked": train.unlocked, "lr": train.lr, "warmup": train.warmup}
    for key, given in named.items():
        if not isinstance(given, list | dict):
            continue
        for part in given:
            if part not in parts:
                raise UsageError(
                    f"train.{key}: a model of recipe {train.recipe} has no part {part!r}; "
                    f"{instead(part, parts)}"
                )
            if key != "freeze" and part in train.freeze:
                raise UsageError(f"train.{key}.{part}: has no effect, because train.freeze names {part} too")
            if key == "warmup" and part not in trained:
                raise UsageError(f"train.warmup.{part}: has no effect, because train.lr.{part} is 0")
        missing = [part for part in trained if part not in given]
        if key in ("lr", "warmup") and missing:
            raise UsageError(f"train.{key}: names parts of the model but lacks {', '.join(missing)}")
