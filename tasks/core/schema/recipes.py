"""The recipes there are. A new one is a file and a line in this table.

The table holds names and not classes, so that whoever only asks what there is imports neither torch nor a
recipe. It stands beside the schema, which refuses every other name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class RecipeClasses(NamedTuple):
    """Where a recipe's two classes stand, each as `module:Class`."""

    options: str
    """What a config's `train.model` may say, and what is known of the recipe without torch: importing its
    module must not import torch."""
    recipe: str
    """Builds models; a `tasks.models.recipes.Recipe`."""
    judged_at_once: int = 256
    """Samples per pass of evaluations and of the validation loss, unless the config says how many. No more
    are judged at once than are trained on: in a batch where the loss compares samples, else in a pass."""
    compares_samples: bool = True
    """Whether the loss compares the samples of a batch, as contrastive ones do, and grows with it."""


RECIPES: dict[str, RecipeClasses] = {
    "clip": RecipeClasses("tasks.models.clip.clip_options:ClipOptions", "tasks.models.clip.clip:ClipRecipe"),
    "clip_reinforced": RecipeClasses(
        "tasks.models.reinforced.clip_reinforced_options:ReinforcedOptions",
        "tasks.models.reinforced.clip_reinforced:ReinforcedRecipe",
    ),
    "vlm": RecipeClasses(
        "tasks.models.vlm.vlm_options:VlmOptions",
        "tasks.models.vlm.vlm:VlmRecipe",
        judged_at_once=8,
        compares_samples=False,
    ),
    "ct_clip": RecipeClasses(
        "tasks.models.ct.ct_clip_options:CtClipOptions",
        "tasks.models.ct.ct_clip:CtClipRecipe",
        judged_at_once=8,
    ),
    "external": RecipeClasses(
        "tasks.models.external_options:ExternalOptions", "tasks.models.clip.clip:ClipRecipe"
    ),
}


def known(name: str) -> str:
    """The name, if a recipe has it; ValueError names those there are."""
    if name not in RECIPES:
        raise ValueError(f"should be {' or '.join(map(repr, RECIPES))}")
    return name


def name_choices(schema: dict[str, Any]) -> None:
    """Write the names into a JSON Schema, for editors."""
    schema["enum"] = list(RECIPES)


def modules() -> Mapping[str, str]:
    """The module of each recipe, which loader processes import."""
    return {name: row.recipe.partition(":")[0] for name, row in RECIPES.items()}
