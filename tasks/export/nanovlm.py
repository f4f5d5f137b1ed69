"""Write vision-language models as a checkpoint of nanoVLM: `VisionLanguageModel.from_pretrained(PATH)`.

Source: nanoVLM (github.com/huggingface/nanoVLM, October 2025), models/: `config.json` is its VLMConfig, and
the weights have its modules' names. nanoVLM gives its vision tower unnormalised pixels between 0 and 1, so
the normalisation of a tower that was trained on normalised pixels is folded into the weights of its first
layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.core.files import write_json
from tasks.export.chat import ask_chat, save_tokenizer, siglip_of
from tasks.export.formats import TrainedModel, Written, refuse
from tasks.models.vlm.chat_text import IMAGE, WHOLE
from tasks.models.vlm.vlm import VlmRecipe
from tasks.models.vlm.vlm_options import VlmOptions

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer"
VISION_BLOCK = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
LANGUAGE_BLOCK = {
    "self_attn.q_proj": "attn.q_proj",
    "self_attn.k_proj": "attn.k_proj",
    "self_attn.v_proj": "attn.v_proj",
    "self_attn.o_proj": "attn.out_proj",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
}
"""The parts of a layer by their names in transformers and in nanoVLM."""


def write_nanovlm(trained: TrainedModel, folder: Path) -> Written:
    """Write the folder; UsageError for a model whose parts nanoVLM does not have."""
    recipe, options = trained.recipe, trained.options
    model: Any = trained.model
    if not isinstance(recipe, VlmRecipe) or not isinstance(options, VlmOptions):
        instead = "--to open_clip takes CLIP models, and --to hf others"
        raise refuse("nanovlm", f"a model of recipe {trained.name} is not a vision-language model", instead)
    tower, vision = siglip_of(model, "nanovlm")
    language: Any = model.language
    _require_llama(language.config, vision)
    base = float(language.config.rope_parameters["rope_theta"])
    weights = {
        **_vision_weights(tower, vision.num_hidden_layers, model.vision),
        **_language_weights(language, base),
        "MP.proj.weight": model.projector.linear.weight,
    }
    copied = {name: value.detach().contiguous().clone() for name, value in weights.items()}
    save_file(copied, folder / WEIGHTS, {"format": "pt"})
    write_json(folder / CONFIG, _config(recipe, options, language.config, vision, base))
    (folder / TOKENIZER).mkdir()
    save_tokenizer(recipe, folder / TOKENIZER)
    return Written(
        "VisionLanguageModel and tokenizer",
        "VisionLanguageModel.from_pretrained('{path}')",
        ask_chat(recipe, model),
        {CONFIG: {"lm_tokenizer": TOKENIZER}},
    )


def _require_llama(language: Any, vision: Any) -> None:
    rope = language.rope_parameters or {}
    wrong = {
        f"the language model is a {language.model_type}": language.model_type != "llama",
        f"positions are scaled by {rope.get('rope_type')}": rope.get("rope_type", "default") != "default",
        "the language model has biases": language.attention_bias or language.mlp_bias,
        f"the language model has {language.hidden_act}": language.hidden_act != "silu",
        "the language model's heads are not as wide together as its features": (
            language.head_dim * language.num_attention_heads != language.hidden_size
        ),
        f"the vision tower has {vision.hidden_act}": vision.hidden_act != "gelu_pytorch_tanh",
    }
    for reason, applies in wrong.items():
        if applies:
            raise refuse("nanovlm", f"{reason}, which nanoVLM does not support", "--to hf takes it")


def _config(
    recipe: VlmRecipe, options: VlmOptions, language: Any, vision: Any, base: float
) -> dict[str, Any]:
    """Return nanoVLM's VLMConfig; keys that are not listed here, such as the chat template, keep
    its defaults."""
    chat = recipe.chat
    places = range(1, chat.text.grid + 1)
    extra = {
        "image_token": IMAGE,
        "global_image_token": WHOLE,
        **{f"r{row}c{column}": f"<row_{row}_col_{column}>" for row in places for column in places},
    }
    return {
        "vit_hidden_dim": vision.hidden_size,
        "vit_inter_dim": vision.intermediate_size,
        "vit_patch_size": vision.patch_size,
        "vit_img_size": vision.image_size,
        "vit_n_heads": vision.num_attention_heads,
        "vit_dropout": 0.0,
        "vit_n_blocks": vision.num_hidden_layers,
        "vit_ln_eps": vision.layer_norm_eps,
        "vit_cls_flag": False,
        "vit_model_type": options.vision,
        "lm_hidden_dim": language.hidden_size,
        "lm_inter_dim": language.intermediate_size,
        "lm_rms_eps": language.rms_norm_eps,
        "lm_re_base": base,
        "lm_max_position_embeddings": language.max_position_embeddings,
        "lm_base_vocab_size": language.vocab_size - len(extra),
        "extra_token_amount": len(extra),
        "lm_vocab_size": language.vocab_size,
        "lm_n_heads": language.num_attention_heads,
        "lm_n_kv_heads": language.num_key_value_heads,
        "lm_dropout": 0.0,
        "lm_n_blocks": language.num_hidden_layers,
        "lm_use_tokens": False,
        "lm_tie_weights": bool(language.tie_word_embeddings),
        "lm_model_type": options.language,
        "lm_tokenizer": TOKENIZER,
        "mp_pixel_shuffle_factor": options.pixel_shuffle,
        "mp_image_token_length": chat.text.tokens_per_tile,
        "max_img_size": options.max_side,
        "resize_to_max_side_len": options.upscale,
        "vlm_extra_tokens": extra,
    }


def _vision_weights(tower: dict[str, Tensor], layers: int, vision: Any) -> dict[str, Tensor]:
    """Return the weights of nanoVLM's ViT, which keeps queries, keys and values in one matrix."""
    kernel, bias = _normalising(tower, vision)
    weights = {
        "patch_embedding.conv.weight": kernel,
        "patch_embedding.conv.bias": bias,
        "patch_embedding.position_embedding": tower["embeddings.position_embedding.weight"][None],
    }
    for kind in ("weight", "bias"):
        weights[f"layer_norm.{kind}"] = tower[f"post_layernorm.{kind}"]
        for number in range(layers):
            here, there = f"encoder.layers.{number}", f"blocks.{number}"
            for part, other in VISION_BLOCK.items():
                weights[f"{there}.{other}.{kind}"] = tower[f"{here}.{part}.{kind}"]
            joined = [tower[f"{here}.self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
            weights[f"{there}.attn.qkv_proj.{kind}"] = torch.cat(joined)
    return {f"vision_encoder.{name}": value for name, value in weights.items()}


def _normalising(tower: dict[str, Tensor], vision: Any) -> tuple[Tensor, Tensor]:
    """Return the first layer's kernel and bias for unnormalised pixels."""
    mean, deviation = (value.view(1, 3, 1, 1).double() for value in (vision.mean, vision.deviation))
    given = tower["embeddings.patch_embedding.weight"]
    kernel = given.double() / deviation
    bias = tower["embeddings.patch_embedding.bias"].double() - (kernel * mean).sum((1, 2, 3))
    return kernel.to(given.dtype), bias.to(given.dtype)


def _language_weights(language: Any, base: float) -> dict[str, Tensor]:
    config, given = language.config, language.state_dict()
    places = torch.arange(0, config.head_dim, 2).float()
    weights = {
        "token_embedding.weight": given["model.embed_tokens.weight"],
        "norm.weight": given["model.norm.weight"],
        "rotary_embd.inv_freq": 1 / base ** (places / config.head_dim),
    }
    if not config.tie_word_embeddings:
        weights["head.weight"] = given["lm_head.weight"]
    for number in range(config.num_hidden_layers):
        for part, other in LANGUAGE_BLOCK.items():
            weights[f"blocks.{number}.{other}.weight"] = given[f"model.layers.{number}.{part}.weight"]
    return {f"decoder.{name}": value for name, value in weights.items()}
