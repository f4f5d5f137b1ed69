"""CT-CLIP's encoder, read anew from its description and written out in float64, token by token.

`weights` has its published names. Nothing here is taken from the model under test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]
SQRT2 = math.sqrt(2)


def normed(rows: Array, gain: Array, shift: Array) -> Array:
    centred = rows - rows.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + shift


def unit(rows: Array) -> Array:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def gelu(values: Array) -> Array:
    return values * 0.5 * (1 + np.vectorize(math.erf)(values / SQRT2))


def tokens(volume: Array, patch: tuple[int, int, int], heads: int, weights: Weights) -> Array:
    """[slabs, rows, columns, width] of one volume (depth, height, width) in HU / 1000."""
    slabs, rows, columns = (side // part for side, part in zip(volume.shape, patch, strict=True))
    cut = np.empty((slabs, rows, columns, math.prod(patch)))
    for z, y, x in product(range(slabs), range(rows), range(columns)):
        block = volume[
            z * patch[0] : (z + 1) * patch[0],
            y * patch[1] : (y + 1) * patch[1],
            x * patch[2] : (x + 1) * patch[2],
        ]
        cut[z, y, x] = block.ravel()
    one, two, three = (f"to_patch_emb.{number}" for number in (1, 2, 3))
    found = normed(cut, weights[f"{one}.weight"], weights[f"{one}.bias"])
    found = found @ weights[f"{two}.weight"].T + weights[f"{two}.bias"]
    found = normed(found, weights[f"{three}.weight"], weights[f"{three}.bias"])
    grid, bias = (slabs, rows, columns), position_bias(rows, columns, weights)
    within = found.reshape(slabs, rows * columns, -1)
    within = transformer(within, grid, heads, "enc_spatial_transformer", weights, bias)
    along = within.transpose(1, 0, 2)  # [places, slabs, width]
    along = transformer(along, grid, heads, "enc_temporal_transformer", weights, None)
    found = along.transpose(1, 0, 2).reshape(slabs, rows, columns, -1)
    if "vq._codebook.embed" in weights:
        entries = weights["vq._codebook.embed"][0]
        found = entries[(unit(found) @ unit(entries).T).argmax(-1)]
    return found


def position_bias(rows: int, columns: int, weights: Weights) -> Array:
    places = list(product(range(rows), range(columns)))
    bias = np.empty((len(weights["spatial_rel_pos_bias.net.2.bias"]), len(places), len(places)))
    for (i, one), (j, other) in product(enumerate(places), enumerate(places)):
        apart = np.subtract(one, other)
        value = np.sign(apart) * np.log(np.abs(apart) + 1)
        for number in (0, 1):
            name = f"spatial_rel_pos_bias.net.{number}.0"
            value = weights[f"{name}.weight"] @ value + weights[f"{name}.bias"]
            value = np.where(value > 0, value, 0.1 * value)
        bias[:, i, j] = (
            weights["spatial_rel_pos_bias.net.2.weight"] @ value + weights["spatial_rel_pos_bias.net.2.bias"]
        )
    return bias


def transformer(
    sequences: Array,
    grid: tuple[int, int, int],
    heads: int,
    name: str,
    weights: Weights,
    bias: Array | None,
) -> Array:
    for number in range(100):
        own = {
            key.removeprefix(f"{name}.layers.{number}."): value
            for key, value in weights.items()
            if key.startswith(f"{name}.layers.{number}.")
        }
        if not own:
            break
        sequences = sequences + convolved(sequences, grid, own)
        sequences = sequences + np.stack([attended(one, heads, own, bias) for one in sequences])
        hidden = normed(sequences, own["3.0.weight"], own["3.0.bias"]) @ own["3.1.weight"].T
        values, gate = np.split(hidden, 2, axis=-1)
        sequences = sequences + (gelu(gate) * values) @ own["3.4.weight"].T
    return normed(sequences, weights[f"{name}.norm_out.gamma"], weights[f"{name}.norm_out.beta"])


def convolved(sequences: Array, grid: tuple[int, int, int], own: Weights) -> Array:
    """Of each channel by itself, over three slabs of which none is later, taking tokens in memory's order."""
    volume = np.ascontiguousarray(sequences).reshape(*grid, -1)
    padded = np.pad(volume, ((2, 0), (1, 1), (1, 1), (0, 0)))
    out = np.zeros_like(volume) + own["0.dsconv.bias"]
    for z, y, x in product(range(3), repeat=3):
        part = padded[z : z + grid[0], y : y + grid[1], x : x + grid[2]]
        out += part * own["0.dsconv.weight"][:, 0, z, y, x]
    return out.reshape(sequences.shape)


def attended(tokens: Array, heads: int, own: Weights, bias: Array | None) -> Array:
    """Queries of the normed tokens, keys and values of the tokens as they are."""
    queries = normed(tokens, own["1.norm.gamma"], own["1.norm.beta"]) @ own["1.to_q.weight"].T
    keys, values = np.split(tokens @ own["1.to_kv.weight"].T, 2, axis=-1)
    by_head = [np.split(part, heads, axis=-1) for part in (queries, keys, values)]
    out = []
    for number, (query, key, value) in enumerate(zip(*by_head, strict=True)):
        query, key = unit(query) * own["1.q_scale"], unit(key) * own["1.k_scale"]
        scores = 8 * query @ key.T + (0 if bias is None else bias[number])
        share = np.exp(scores - scores.max(-1, keepdims=True))
        out.append(share / share.sum(-1, keepdims=True) @ value)
    return np.concatenate(out, axis=-1) @ own["1.to_out.weight"].T


def loss(volumes: Array, texts: Array, temperature: float) -> float:
    """Mean of both directions over unit rows."""
    similar = math.exp(temperature) * texts @ volumes.T
    both = [np.mean(np.log(np.exp(rows).sum(1)) - rows.diagonal()) for rows in (similar, similar.T)]
    return float(sum(both) / 2)
