"""What nanoVLM computes from a checkpoint of its own, read from the description of its modules, in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm, linear, scaled_dot_product_attention, silu

from tasks.models.vlm.chat_text import IMAGE


def logits(folder: Path, tokens: Tensor, tiles: Tensor, image: int) -> Tensor:
    """[1, length, vocabulary] of `tokens` [1, length] and `tiles` [tiles, side, side, 3] uint8."""
    config = json.loads((folder / "config.json").read_text())
    assert config["vlm_extra_tokens"]["image_token"] == IMAGE
    weights = {name: value.double() for name, value in load_file(folder / "model.safetensors").items()}
    projected = project(config, weights, see(config, weights, tiles.permute(0, 3, 1, 2).double() / 255))
    table = weights["decoder.token_embedding.weight"]
    embedded = table[tokens[0]]
    embedded[tokens[0] == image] = projected.reshape(-1, projected.shape[-1])
    head = table if config["lm_tie_weights"] else weights["decoder.head.weight"]
    return linear(read(config, weights, embedded), head)[None]


def split(rows: Tensor, heads: int) -> Tensor:
    return rows.unflatten(-1, (heads, -1)).transpose(-2, -3)


def see(config: dict[str, Any], weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """A transformer that norms before each part; pixels stay between 0 and 1."""

    def of(name: str) -> tuple[Tensor, Tensor]:
        return weights[f"vision_encoder.{name}.weight"], weights[f"vision_encoder.{name}.bias"]

    def normed(rows: Tensor, name: str) -> Tensor:
        return layer_norm(rows, rows.shape[-1:], *of(name), config["vit_ln_eps"])

    found = conv2d(pixels, *of("patch_embedding.conv"), stride=config["vit_patch_size"]).flatten(2).mT
    found = found + weights["vision_encoder.patch_embedding.position_embedding"]
    for number in range(config["vit_n_blocks"]):
        block = f"blocks.{number}"
        joined = linear(normed(found, f"{block}.ln1"), *of(f"{block}.attn.qkv_proj")).chunk(3, -1)
        mixed = scaled_dot_product_attention(*(split(one, config["vit_n_heads"]) for one in joined))
        found = found + linear(mixed.transpose(-2, -3).flatten(-2), *of(f"{block}.attn.out_proj"))
        wide = gelu(linear(normed(found, f"{block}.ln2"), *of(f"{block}.mlp.fc1")), approximate="tanh")
        found = found + linear(wide, *of(f"{block}.mlp.fc2"))
    return normed(found, "layer_norm")


def project(config: dict[str, Any], weights: dict[str, Tensor], seen: Tensor) -> Tensor:
    factor, side = config["mp_pixel_shuffle_factor"], math.isqrt(seen.shape[1])
    rows = [
        seen[:, [(y + dy) * side + x + dx for dy in range(factor) for dx in range(factor)]].flatten(1)
        for y in range(0, side, factor)
        for x in range(0, side, factor)
    ]
    assert len(rows) == config["mp_image_token_length"]
    return linear(torch.stack(rows, 1), weights["MP.proj.weight"])


def read(config: dict[str, Any], weights: dict[str, Tensor], found: Tensor) -> Tensor:
    """Llama: rotated halves, grouped queries, a gate; no biases."""

    def normed(rows: Tensor, name: str) -> Tensor:
        root = (rows.square().mean(-1, keepdim=True) + config["lm_rms_eps"]).sqrt()
        return rows / root * weights[f"decoder.{name}.weight"]

    heads, groups = config["lm_n_heads"], config["lm_n_heads"] // config["lm_n_kv_heads"]
    width = config["lm_hidden_dim"] // heads
    turns = config["lm_re_base"] ** (-torch.arange(0, width, 2).double() / width)
    torch.testing.assert_close(turns.float(), weights["decoder.rotary_embd.inv_freq"].float())
    angles = (torch.arange(len(found)).double()[:, None] * turns).repeat(1, 2)

    def turned(rows: Tensor) -> Tensor:
        first, second = rows.chunk(2, -1)
        return rows * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    for number in range(config["lm_n_blocks"]):
        given = normed(found, f"blocks.{number}.norm1")

        def of(part: str, rows: Tensor, number: int = number) -> Tensor:
            return linear(rows, weights[f"decoder.blocks.{number}.{part}.weight"])

        asked = turned(split(of("attn.q_proj", given), heads))
        keys = turned(split(of("attn.k_proj", given), heads // groups)).repeat_interleave(groups, 0)
        values = split(of("attn.v_proj", given), heads // groups).repeat_interleave(groups, 0)
        mixed = scaled_dot_product_attention(asked, keys, values, is_causal=True)
        found = found + of("attn.out_proj", mixed.transpose(-2, -3).flatten(-2))
        given = normed(found, f"blocks.{number}.norm2")
        found = found + of("mlp.down_proj", silu(of("mlp.gate_proj", given)) * of("mlp.up_proj", given))
    return normed(found, "norm")
