"""Loads a checkpoint of any trainer into the model that a config describes.

Weights by the recipe's own names have to fit one by one. Folders of nanoVLM and transformers, and CT-CLIP's
files, have other names and are read as `train.model.pretrained` reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.schema import Train
from tasks.core.units import near
from tasks.models import recipes
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_layouts import load_clip_model
from tasks.models.state_dict import load_strictly
from tasks.runs.followed import Origin
from tasks.trainers.saved import files_of_weights, lack_of

CONFIG = "config.json"
"""What transformers and nanoVLM write beside the weights of a whole model."""


def load_origin(train: Train, origin: Origin) -> tuple[Any, nn.Module]:
    """Return the recipe and the model with the weights of a checkpoint, on the CPU.

    DataError where the checkpoint is gone or was written again since the run took it, and as `load_weights`.
    """
    if lack := origin.unusable or origin.lack():
        raise DataError(lack)
    loaded = load_whole_model(train, origin.path)
    if lack := origin.lack():
        raise DataError(f"{lack} while it was read")
    return loaded


def load_whole_model(train: Train, path: Path) -> tuple[Any, nn.Module]:
    """Return the recipe and the model with the weights in a file or folder.

    DataError for weights that cannot be read, and for those of another model, with the first that does not
    fit; UsageError where the config describes another model than the checkpoint's own description.
    """
    where, own = f"CHECKPOINT: {near(path)}", path / CONFIG
    files = files_of_weights(path)
    if train.recipe == "ct_clip" or (train.recipe == "vlm" and own.is_file()):
        place = path if own.is_file() and train.recipe == "vlm" else files[0]
        model_options = {**train.model, "pretrained": str(place)}
        recipe = recipes.load_recipe(train.model_copy(update={"model": model_options}))
        return recipe, recipe.build_model()
    recipe = recipes.load_recipe(train)
    model = recipe.build_model(pretrained=False)
    if isinstance(recipe, ClipRecipe) and own.is_file() and read_json(own).get("model_type") == "clip":
        load_clip_model(recipe, model, files, read_json(own), where)
    else:
        load_strictly(model, files, where)
    return recipe, model


def require_loadable(train: dict[str, Any], path: str) -> None:
    """Raise what `load_whole_model` does, and DataError for a checkpoint that is not whole.

    It is called in a process of its own; `train` is the train block.
    """
    if lack := lack_of(Path(path)):
        raise DataError(f"CHECKPOINT: {near(Path(path))}: {lack}")
    load_whole_model(Train.model_validate(train), Path(path))
