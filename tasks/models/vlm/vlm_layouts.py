"""The names under which nanoVLM and transformers' Idefics3 save a vision-language model, for both directions.

A layout gives, by the other library's name of a tensor, the weights of Tarmac's model that it holds, one
below the other. An export writes by it and `train.model.pretrained` reads by it. nanoVLM gives its vision
tower unnormalised pixels between 0 and 1, so the normalisation is folded into the tower's first layer, and
unfolded again: the kernel is equal to the bit where the deviation is a power of two, as SigLIP's, and the
bias up to the rounding of its own type.

Source: nanoVLM (github.com/huggingface/nanoVLM, October 2025), models/: `config.json` is its VLMConfig, and
the weights have its modules' names; transformers' modeling_idefics3.py, whose SmolVLM differs by name alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tasks.models.vlm.chat_text import IMAGE, WHOLE
from tasks.models.vlm.vlm_options import VlmOptions

Layout = Mapping[str, tuple[str, ...]]
EMBEDDING, HEAD = "language.model.embed_tokens.weight", "language.lm_head.weight"
"""The tables with one row per token; a model that ties them has the first alone."""
PROJECTOR = "projector.linear.weight"
KERNEL, BIAS = "vision.embeddings.patch_embedding.weight", "vision.embeddings.patch_embedding.bias"
PLACES = "vision_encoder.patch_embedding.position_embedding"
"""nanoVLM's name of a table that has one dimension more there."""
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
IDEFICS3_VISION = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "image_size",
    "patch_size",
    "hidden_act",
    "layer_norm_eps",
)
"""The measures of Idefics3's vision tower, which is SigLIP's."""


def weights_of(model: Any) -> dict[str, Tensor]:
    """Return the model's weights by the names of layouts, without a pooling head; writing into them changes
    the model."""
    found = {}
    for name, value in model.state_dict().items():
        name = name.replace("vision.tower.", "vision.", 1).replace("vision.vision_model.", "vision.", 1)
        if not name.startswith("vision.head."):
            found[name] = value
    if model.language.config.tie_word_embeddings:
        found.pop(HEAD, None)
    return found


def vision_config(model: Any) -> Any:
    """Return the config of the vision tower as transformers has it; None for a tower of another library."""
    config = getattr(model.vision.tower, "config", None)
    return getattr(config, "vision_config", config)


def why_no_siglip(model: Any) -> str | None:
    """Return why both formats lack this vision tower; None for SigLIP's."""
    kind = getattr(vision_config(model), "model_type", None)
    if kind is None:
        return "the vision tower comes from open_clip"
    if "siglip" not in kind or kind.startswith("siglip2"):
        return f"the vision tower is a {kind}, but has to be SigLIP's"
    return None


def why_no_nanovlm(model: Any) -> str | None:
    """Return what nanoVLM does not have of a model with SigLIP's tower; None where it has everything."""
    language, vision = model.language.config, vision_config(model)
    rope = getattr(language, "rope_parameters", None) or {}
    if language.model_type != "llama":
        return f"the language model is a {language.model_type}"
    wrong = {
        f"positions are scaled by {rope.get('rope_type')}": rope.get("rope_type", "default") != "default",
        "the language model has biases": language.attention_bias or language.mlp_bias,
        f"the language model has {language.hidden_act}": language.hidden_act != "silu",
        "the language model's heads are not as wide together as its features": (
            language.head_dim * language.num_attention_heads != language.hidden_size
        ),
        f"the vision tower has {vision.hidden_act}": vision.hidden_act != "gelu_pytorch_tanh",
    }
    return next((reason for reason, applies in wrong.items() if applies), None)


def nanovlm_config(model: Any, options: VlmOptions, chat: Any) -> dict[str, Any]:
    """Return nanoVLM's VLMConfig without `lm_tokenizer`; keys that are not listed here, such as the chat
    template, keep its defaults."""
    language, vision = model.language.config, vision_config(model)
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
        "lm_re_base": float(language.rope_parameters["rope_theta"]),
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
        "mp_pixel_shuffle_factor": options.pixel_shuffle,
        "mp_image_token_length": chat.text.tokens_per_tile,
        "max_img_size": options.max_side,
        "resize_to_max_side_len": options.upscale,
        "vlm_extra_tokens": extra,
    }


def nanovlm_layout(model: Any) -> dict[str, tuple[str, ...]]:
    """Return the layout of nanoVLM for this model's layers; queries, keys and values of its vision tower are
    one matrix."""
    found: dict[str, tuple[str, ...]] = {
        "vision_encoder.patch_embedding.conv.weight": (KERNEL,),
        "vision_encoder.patch_embedding.conv.bias": (BIAS,),
        PLACES: ("vision.embeddings.position_embedding.weight",),
        "MP.proj.weight": (PROJECTOR,),
        "decoder.token_embedding.weight": (EMBEDDING,),
        "decoder.norm.weight": ("language.model.norm.weight",),
    }
    if not model.language.config.tie_word_embeddings:
        found["decoder.head.weight"] = (HEAD,)
    for kind in ("weight", "bias"):
        found[f"vision_encoder.layer_norm.{kind}"] = (f"vision.post_layernorm.{kind}",)
        for number in range(vision_config(model).num_hidden_layers):
            here, there = f"vision.encoder.layers.{number}", f"vision_encoder.blocks.{number}"
            for part, other in VISION_BLOCK.items():
                found[f"{there}.{other}.{kind}"] = (f"{here}.{part}.{kind}",)
            joined = tuple(f"{here}.self_attn.{letter}_proj.{kind}" for letter in "qkv")
            found[f"{there}.attn.qkv_proj.{kind}"] = joined
    for number in range(model.language.config.num_hidden_layers):
        for part, other in LANGUAGE_BLOCK.items():
            name = f"language.model.layers.{number}.{part}.weight"
            found[f"decoder.blocks.{number}.{other}.weight"] = (name,)
    return found


def idefics3_layout(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the layout of Idefics3 for the weights of these names."""
    prefixes = {
        "vision.": "model.vision_model.",
        "language.model.": "model.text_model.",
        "language.": "",
        PROJECTOR: "model.connector.modality_projection.proj.weight",
    }
    return {
        next(other + name.removeprefix(mine) for mine, other in prefixes.items() if name.startswith(mine)): (
            name,
        )
        for name in names
    }


def store(layout: Layout, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the layout, made of the weights."""
    found = {}
    for name, mine in layout.items():
        value = weights[mine[0]] if len(mine) == 1 else torch.cat([weights[one] for one in mine])
        found[name] = value[None] if name == PLACES else value
    return found


def restore(layout: Layout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that the tensors of the layout hold: the inverse of `store`."""
    found: dict[str, Tensor] = {}
    for name, mine in layout.items():
        value = tensors[name][0] if name == PLACES else tensors[name]
        parts = value.chunk(len(mine)) if len(mine) > 1 else (value,)
        found.update(zip(mine, parts, strict=True))
    return found


def shapes(layout: Layout, like: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each tensor of the layout with the shape that it has for these weights."""
    for name, mine in layout.items():
        rows, *others = like[mine[0]].shape
        whole = (rows * len(mine), *others)
        yield name, (1, *whole) if name == PLACES else whole


def fold(weights: Mapping[str, Tensor], vision: Any) -> dict[str, Tensor]:
    """Return the weights with a first layer for unnormalised pixels."""
    mean, deviation = _normalisation(vision)
    kernel = weights[KERNEL].double() / deviation
    bias = weights[BIAS].double() - (kernel * mean).sum((1, 2, 3))
    return {**weights, KERNEL: kernel.to(weights[KERNEL].dtype), BIAS: bias.to(weights[BIAS].dtype)}


def unfold(weights: Mapping[str, Tensor], vision: Any) -> dict[str, Tensor]:
    """Return the weights with a first layer for normalised pixels: the inverse of `fold`."""
    mean, deviation = _normalisation(vision)
    kernel = weights[KERNEL].double()
    return {
        **weights,
        KERNEL: kernel * deviation,
        BIAS: weights[BIAS].double() + (kernel * mean).sum((1, 2, 3)),
    }


def _normalisation(vision: Any) -> tuple[Tensor, Tensor]:
    return vision.mean.view(1, 3, 1, 1).double(), vision.deviation.view(1, 3, 1, 1).double()
