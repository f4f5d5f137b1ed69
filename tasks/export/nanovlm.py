"""Write vision-language models as a checkpoint of nanoVLM: `VisionLanguageModel.from_pretrained(PATH)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tasks.core.files import write_json
from tasks.export.chat import ask_chat, require_siglip, save_tokenizer
from tasks.export.formats import TrainedModel, Written, refuse
from tasks.models.vlm import vlm_layouts as layouts
from tasks.models.vlm.vlm import VlmRecipe
from tasks.models.vlm.vlm_options import VlmOptions

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer"


def write_nanovlm(trained: TrainedModel, folder: Path) -> Written:
    """Write the folder; UsageError for a model whose parts nanoVLM does not have."""
    recipe, options = trained.recipe, trained.options
    model: Any = trained.model
    if not isinstance(recipe, VlmRecipe) or not isinstance(options, VlmOptions):
        instead = "--to open_clip takes CLIP models, and --to hf others"
        raise refuse("nanovlm", f"a model of recipe {trained.name} is not a vision-language model", instead)
    require_siglip(model, "nanovlm")
    reason = layouts.why_no_nanovlm(model)
    if reason is not None:
        raise refuse("nanovlm", f"{reason}, which nanoVLM does not support", "--to hf takes it")
    weights = layouts.fold(layouts.weights_of(model), model.vision)
    config = layouts.nanovlm_config(model, options, recipe.chat)
    head_width = config["lm_hidden_dim"] // config["lm_n_heads"]
    turns = config["lm_re_base"] ** (torch.arange(0, head_width, 2).float() / head_width)
    tensors = {
        **layouts.store(layouts.nanovlm_layout(model), weights),
        "decoder.rotary_embd.inv_freq": 1 / turns,
    }
    copied = {name: value.detach().contiguous().clone() for name, value in tensors.items()}
    save_file(copied, folder / WEIGHTS, {"format": "pt"})
    write_json(folder / CONFIG, {**config, "lm_tokenizer": TOKENIZER})
    (folder / TOKENIZER).mkdir()
    save_tokenizer(recipe, folder / TOKENIZER)
    return Written(
        "VisionLanguageModel and tokenizer",
        "VisionLanguageModel.from_pretrained('{path}')",
        ask_chat(recipe, model),
        {CONFIG: {"lm_tokenizer": TOKENIZER}},
    )
