"""Write CLIP models as a folder for open_clip: `open_clip.create_model_and_transforms("local-dir:PATH")`.

Source: open_clip 3.3, factory.py: `open_clip_config.json` holds `model_cfg` and `preprocess_cfg`, and the
weights lie beside it under open_clip's own names. open_clip looks for a transformers tokenizer in the folder
itself.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.core.files import write_json
from tasks.export.formats import TEXTS, ProofQuestion, TrainedModel, Written, picture, refuse
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_options import SIGMOID
from tasks.models.clip.pictures import Crop, normalised

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
OF_PICTURES = ("mean", "std", "interpolation", "resize_mode", "fill_color")
USAGE = "open_clip.create_model_and_transforms('local-dir:{path}')"


def write_open_clip(trained: TrainedModel, folder: Path) -> Written:
    """Write the folder; UsageError for a model that open_clip does not have."""
    recipe = trained.recipe
    if not isinstance(recipe, ClipRecipe):
        reason = f"a model of recipe {trained.name} is not one of open_clip's"
        raise refuse("open_clip", reason, "--to hf takes it")
    pictures = {name: asdict(recipe.preprocessing)[name] for name in OF_PICTURES}
    write_json(folder / CONFIG, {"model_cfg": described(recipe), "preprocess_cfg": pictures})
    weights = {name: value.contiguous().clone() for name, value in trained.model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    if hasattr(recipe.tokenize, "save_pretrained"):
        recipe.tokenize.save_pretrained(folder)
    sides = ((48, 40), (640, 427), (333, 500), (64, 64))
    shown = [picture(number, *size) for number, size in enumerate(sides)]
    answers = features(recipe, trained.model, shown)
    return Written("image and text towers, temperature", USAGE, ProofQuestion(answers, shown, TEXTS))


def described(recipe: ClipRecipe) -> dict[str, Any]:
    """Return the model as open_clip describes it, with the changes of the config."""
    found = dict(recipe.options.described or {})
    initial = SIGMOID if recipe.options.is_sigmoid and found.get("init_logit_bias") is None else {}
    return {**found, **initial}


def features(recipe: ClipRecipe, model: Any, pictures: list[Any]) -> dict[str, Tensor]:
    """Compute `image features` and `text features` of length 1, and the `temperature` as a factor,
    in float64."""
    model = model.double()
    crop = Crop(recipe.preprocessing)
    crops = torch.stack([crop(one) for one in pictures])
    with torch.inference_mode():
        pixels = normalised(crops, recipe.preprocessing).double()
        return {
            "image features": model.encode_image(pixels, normalize=True),
            "text features": model.encode_text(recipe.tokenize(list(TEXTS)), normalize=True),
            "temperature": model.logit_scale.exp().reshape(1),
        }
