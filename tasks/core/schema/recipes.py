"""The table of recipes. A new recipe is a file and a line in this table.

The table holds names and not classes, so that listing the recipes imports neither torch nor a recipe. It is
in the schema package because the schema rejects every other name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Precision = Literal["auto", "fp32", "bf16", "fp16"]


class Defaults(NamedTuple):
    """What a recipe trains with where the config does not say: the values of its original, by the keys of
    the train block. None stands for what open_clip's trainer chooses by the model."""

    weight_decay: float
    decay: Literal["matrices", "all"]
    grad_clip: float
    warmup: int | float
    schedule: Literal["cosine", "constant"]
    lr_floor: float
    betas: tuple[float, float] | None
    eps: float | None
    precision: Precision


OPEN_CLIP = Defaults(0.2, "matrices", 0, 10_000, "cosine", 0, None, None, "auto")
"""Source: open_clip_train/params.py of open_clip 3.3, whose precision is fp16."""
MOBILECLIP = Defaults(0.2, "matrices", 1.0, 1000, "cosine", 0, (0.9, 0.95), None, "auto")
"""Source: training/configs/run_datacompdr12m.sh of ml-mobileclip 4144bb1, whose precision is fp16."""
CT_CLIP = Defaults(0, "matrices", 0.5, 0, "constant", 0, (0.9, 0.99), 1e-8, "fp32")
"""Source: scripts/CTCLIPTrainer.py and transformer_maskgit/optimizer.py of CT-CLIP a2a155c."""
NANO_VLM = Defaults(0.01, "all", 1.0, 0.03, "cosine", 0.1, (0.9, 0.999), 1e-8, "auto")
"""Source: train.py and models/config.py of nanoVLM 4e0c096."""
LONGEST_WARMUP = 0.1
"""The largest share of the steps that a default warm-up takes: open_clip's 10,000 steps would be all of a
short training."""


class RecipeClasses(NamedTuple):
    """The names of a recipe's two classes, each as `module:Class`."""

    options: str
    """The keys that `train.model` accepts, and what can be known about the recipe without torch: importing
    the class must not import torch."""
    recipe: str
    """Builds the models; a subclass of `tasks.models.recipes.Recipe`."""
    defaults: Defaults
    judged_at_once: int = 256
    """Default number of samples per pass of evaluations and of the validation loss. It is capped at the
    number that is trained on at once: a batch where the loss compares samples, else a pass."""
    compares_samples: bool = True
    """Whether the loss compares the samples of a batch, as contrastive losses do, and grows with the
    batch."""


EXTERNAL = "external"
"""The recipe of trainings by another trainer's command."""
RECIPES: dict[str, RecipeClasses] = {
    "clip": RecipeClasses(
        "tasks.models.clip.clip_options:ClipOptions", "tasks.models.clip.clip:ClipRecipe", OPEN_CLIP
    ),
    "clip_reinforced": RecipeClasses(
        "tasks.models.reinforced.clip_reinforced_options:ReinforcedOptions",
        "tasks.models.reinforced.clip_reinforced:ReinforcedRecipe",
        MOBILECLIP,
    ),
    "vlm": RecipeClasses(
        "tasks.models.vlm.vlm_options:VlmOptions",
        "tasks.models.vlm.vlm:VlmRecipe",
        NANO_VLM,
        judged_at_once=8,
        compares_samples=False,
    ),
    "ct_clip": RecipeClasses(
        "tasks.models.ct.ct_clip_options:CtClipOptions",
        "tasks.models.ct.ct_clip:CtClipRecipe",
        CT_CLIP,
        judged_at_once=8,
    ),
    EXTERNAL: RecipeClasses(
        "tasks.models.external_options:ExternalOptions", "tasks.models.clip.clip:ClipRecipe", OPEN_CLIP
    ),
}


def defaults_of(name: str, model: Any, steps: Any) -> dict[str, Any]:
    """Return the defaults of a recipe for the train block's `model` and `steps`, by key. The warm-up is None
    where it needs steps that are not known yet."""
    found = RECIPES[name].defaults._asdict()
    for key, value in adam_of_open_clip(model).items():
        if found[key] is None:
            found[key] = value
    if isinstance(found["warmup"], int) and found["warmup"]:
        found["warmup"] = (
            min(found["warmup"], int(LONGEST_WARMUP * steps)) if isinstance(steps, int) else None
        )
    return found


def adam_of_open_clip(model: Any) -> dict[str, Any]:
    """Return AdamW's betas and eps for a model: those of vision transformers, or the others'.

    Source: get_default_params in open_clip_train/params.py, which goes by the model's name.
    """
    given = model if isinstance(model, dict) else {}
    name, config = str(given.get("name") or "").lower(), given.get("config")
    vision = config.get("vision_cfg") if isinstance(config, dict) else None
    has_patches = isinstance(vision, dict) and "patch_size" in vision
    if "vit" in name or name == "tarmac/digits" or has_patches:
        return {"betas": [0.9, 0.98], "eps": 1e-6}
    return {"betas": [0.9, 0.999], "eps": 1e-8}


def earlier_adam(name: str, model: Any) -> dict[str, Any]:
    """Return AdamW's betas and eps of trainings from before the config had keys for them."""
    row = RECIPES[name].defaults
    if row.betas is None or row.eps is None:
        return adam_of_open_clip(model)
    return {"betas": list(row.betas), "eps": row.eps}


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
