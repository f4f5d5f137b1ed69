"""The table of recipes. A new recipe is a file and a line in this table.

The table holds names and not classes, so that listing the recipes imports neither torch nor a recipe. It is
in the schema package because the schema rejects every other name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class RecipeClasses(NamedTuple):
    """The names of a recipe's two classes, each as `module:Class`."""

    options: str
    """The keys that `train.model` accepts, and what can be known about the recipe without torch: importing
    the class must not import torch."""
    recipe: str
    """Builds the models; a subclass of `tasks.models.recipes.Recipe`."""
    judged_at_once: int = 256
    """Default number of samples per pass of evaluations and of the validation loss. It is capped at the
    number that is trained on at once: a batch where the loss compares samples, else a pass."""
    compares_samples: bool = True
    """Whether the loss compares the samples of a batch, as contrastive losses do, and grows with the
    batch."""


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
    """Return the name if a recipe has it; otherwise the ValueError lists the known names."""
    if name not in RECIPES:
        raise ValueError(f"must be {' or '.join(map(repr, RECIPES))}, not {name!r}")
    return name


def name_choices(schema: dict[str, Any]) -> None:
    """Write the names into a JSON Schema, for editors."""
    schema["enum"] = list(RECIPES)


def modules() -> Mapping[str, str]:
    """Return the module of each recipe, which loader processes import."""
    return {name: row.recipe.partition(":")[0] for name, row in RECIPES.items()}
