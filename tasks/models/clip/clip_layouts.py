"""The names of open_clip's weights in transformers' `CLIPModel`, for models that are plain transformers.

Each entry is a view of the model's own weight in the shape that transformers has, so that an export reads it
and a checkpoint is copied into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.core.errors import DataError, UsageError
from tasks.models.clip.clip import ClipRecipe
from tasks.models.state_dict import POSITIONS, first_misfit, weights_of

VISION = {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "patch_dropout"}
TEXT = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
WHOLE = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "init_logit_scale"}
"""The keys in open_clip's description of a model that transformers' `CLIPModel` can represent."""
BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
"""The parts of a layer by their names in open_clip and transformers, where `attn.in_proj` is three parts."""


def why_no_clip_model(model: Mapping[str, Any]) -> str | None:
    """Return the part of an open_clip description that `CLIPModel` lacks; None where it lacks nothing."""
    vision, text = model["vision_cfg"], model["text_cfg"]
    tables = ((model, WHOLE, ""), (vision, VISION, "vision_cfg."), (text, TEXT, "text_cfg."))
    for table, known, place in tables:
        for name, value in table.items():
            if name not in known and value not in (None, False):
                return f"{place}{name}: {value}"
    for name in ("layers", "image_size", "patch_size"):
        if not isinstance(vision.get(name, 1), int):
            return f"vision_cfg.{name}: {vision[name]}"
    return None


def clip_views(model: Any) -> dict[str, Tensor]:
    """Return views of open_clip's weights by transformers' names; open_clip multiplies its projections from
    the right."""
    mine: dict[str, Tensor] = model.state_dict()
    theirs = {
        "logit_scale": mine["logit_scale"].reshape(()),
        "visual_projection.weight": mine["visual.proj"].T,
        "text_projection.weight": mine["text_projection"].T,
        "vision_model.embeddings.class_embedding": mine["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": mine["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": mine["visual.positional_embedding"],
        "text_model.embeddings.token_embedding.weight": mine["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": mine["positional_embedding"],
    }
    parts = {
        "visual.ln_pre": "vision_model.pre_layrnorm",
        "visual.ln_post": "vision_model.post_layernorm",
        "ln_final": "text_model.final_layer_norm",
    }
    towers = (
        ("visual.transformer", model.visual.transformer, "vision_model"),
        ("transformer", model.transformer, "text_model"),
    )
    for name, tower, other in towers:
        for number in range(len(tower.resblocks)):
            here, there = f"{name}.resblocks.{number}", f"{other}.encoder.layers.{number}"
            parts |= {f"{here}.{part}": f"{there}.{part_there}" for part, part_there in BLOCK.items()}
            for kind in ("weight", "bias"):
                joined = mine[f"{here}.attn.in_proj_{kind}"].chunk(3)
                for letter, value in zip("qkv", joined, strict=True):
                    theirs[f"{there}.self_attn.{letter}_proj.{kind}"] = value
    for part, other in parts.items():
        theirs |= {f"{other}.{kind}": mine[f"{part}.{kind}"] for kind in ("weight", "bias")}
    return theirs


def load_clip_model(
    recipe: ClipRecipe, model: Any, files: Sequence[Path], config: Mapping[str, Any], where: str
) -> None:
    """Load a `CLIPModel` of transformers, which its `config` describes, into the recipe's model.

    DataError that begins with `where` and names the first weight that does not fit, and UsageError for a
    model that transformers does not have, or for another activation, which would give other figures silently.
    """
    described = recipe.options.described or {}
    if (lacks := why_no_clip_model(described)) is not None:
        raise UsageError(f"{where} is a CLIPModel of transformers, which has no {lacks}; look at train.model")
    mine = "quick_gelu" if described.get("quick_gelu") else "gelu"
    for tower in ("vision_config", "text_config"):
        theirs = (config.get(tower) or {}).get("hidden_act", "quick_gelu")
        if theirs != mine:
            raise UsageError(
                f"{where} has the activation {theirs}, and train.model {mine}; name a model with quick_gelu: "
                f"{str(theirs == 'quick_gelu').lower()}"
            )
    given: dict[str, Tensor] = {}
    for file in files:
        given |= weights_of(file)
    given = {name: value for name, value in given.items() if not POSITIONS.search(name)}
    views = clip_views(model)
    if problem := first_misfit(views, given):
        raise DataError(f"{where} is of another model than train.model: {problem}")
    with torch.no_grad():
        for name, view in views.items():
            view.copy_(given[name])
