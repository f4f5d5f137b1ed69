"""CTViT: the vision tower of CT-CLIP, which attends within slabs of a volume and then across them.

A volume is cut into patches; one transformer attends over the patches of a slab, another over the patches at
one place in all slabs. Attention uses cosines, positions enter by a bias that a small network computes from
distances and by a convolution, and layers are GEGLU. All follows CT-CLIP, including its oddities, because its
published weights were trained that way, and parameters keep CT-CLIP's names. Only the encoder is here; the
decoder, which learns to reconstruct volumes, plays no part in comparing them with reports.

Source: I. E. Hamamci et al., "Developing generalist foundation models from a multimodal dataset for 3D
computed tomography" (2024), and transformer_maskgit/{ctvit,attention}.py of its code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.models.ct.ct_clip_options import Tower

SHARPNESS = 8.0
"""The factor of cosines before the softmax of an attention."""
COMPARED = 4096
"""How many tokens are compared with a codebook at once: 128 MB for 8192 entries."""


class CTViT(nn.Module):
    """Maps volumes [samples, depth, height, width] to tokens [samples, *grid, width]."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        depth, height, width = tower.patch
        voxels = depth * height * width
        self.to_patch_emb = nn.Sequential(
            Patches(tower), nn.LayerNorm(voxels), nn.Linear(voxels, tower.width), nn.LayerNorm(tower.width)
        )
        self.spatial_rel_pos_bias = PositionBias(tower)
        self.enc_spatial_transformer = Transformer(tower, tower.spatial_layers)
        self.enc_temporal_transformer = Transformer(tower, tower.temporal_layers)
        self.vq = Codebook(tower.codebook, tower.width) if tower.codebook else nn.Identity()

    def forward(self, volumes: Tensor) -> Tensor:
        tokens: Tensor = self.to_patch_emb(volumes)
        samples, slabs, height, width, size = tokens.shape
        grid = (samples, slabs, height, width)
        tokens = tokens.reshape(samples * slabs, height * width, size)
        tokens = self.enc_spatial_transformer(tokens, grid, self.spatial_rel_pos_bias())
        tokens = tokens.view(samples, slabs, height * width, size).transpose(1, 2)
        tokens = tokens.reshape(samples * height * width, slabs, size)
        tokens = self.enc_temporal_transformer(tokens, grid)
        tokens = tokens.view(samples, height * width, slabs, size).transpose(1, 2)
        found: Tensor = self.vq(tokens).reshape(samples, slabs, height, width, size)
        return found


class Patches(nn.Module):
    """Maps [samples, depth, height, width] to [samples, *grid, voxels of a patch]."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, volumes: Tensor) -> Tensor:
        sides = [size for pair in zip(self.tower.grid, self.tower.patch, strict=True) for size in pair]
        split = volumes.reshape(len(volumes), *sides).permute(0, 1, 3, 5, 2, 4, 6)
        return split.flatten(4)


class PositionBias(nn.Module):
    """A network's bias for the distance of two patches of a slab: [heads, patches, patches], float32."""

    distances: Tensor

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        _, height, width = tower.grid
        sides = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        places = torch.stack(sides).flatten(1).T.float()
        apart = places[:, None] - places[None]
        self.register_buffer("distances", apart.sign() * apart.abs().log1p(), persistent=False)
        layers = [
            nn.Sequential(nn.Linear(entering, tower.width), nn.LeakyReLU(0.1))
            for entering in (2, tower.width)
        ]
        self.net = nn.Sequential(*layers, nn.Linear(tower.width, tower.heads))

    def forward(self) -> Tensor:
        bias: Tensor = self.net(self.distances)
        return bias.permute(2, 0, 1)


class Layer(nn.ModuleList):
    """Convolution, attention and GEGLU, each added to what enters it."""

    def forward(self, tokens: Tensor, grid: Sequence[int], bias: Tensor | None) -> Tensor:
        mixed: Tensor = self[0](tokens, grid) + tokens
        attended: Tensor = self[1](mixed, bias) + mixed
        found: Tensor = self[3](attended) + attended
        return found


class Transformer(nn.Module):
    """Residual layers of convolution, attention and GEGLU on [rows, tokens, width]."""

    def __init__(self, tower: Tower, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            # CT-CLIP's third part is an attention to other tokens, which its encoder does not use
            Layer([Convolution(tower.width), Attention(tower), nn.Identity(), feed_forward(tower.width)])
            for _ in range(depth)
        )
        self.norm_out = Norm(tower.width)

    def forward(self, tokens: Tensor, grid: Sequence[int], bias: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            tokens = layer(tokens, grid, bias)
        normed: Tensor = self.norm_out(tokens)
        return normed


class Convolution(nn.Module):
    """A depthwise convolution that encodes positions; it reads no later slab.

    It takes the tokens as a grid in the order of memory. In attention across slabs they are not in that
    order: there CT-CLIP mixes tokens of one sample that are no neighbours, and its weights were trained with
    that.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dsconv = nn.Conv3d(width, width, 3, groups=width)

    def forward(self, tokens: Tensor, grid: Sequence[int]) -> Tensor:
        volume = tokens.reshape(*grid, -1).movedim(-1, 1).contiguous()
        found: Tensor = self.dsconv(functional.pad(volume, (1, 1, 1, 1, 2, 0)))
        return found.movedim(1, -1).reshape(tokens.shape)


class Attention(nn.Module):
    """Cosine attention; keys and values come from the raw tokens, queries from the normed ones."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        inner = tower.heads * tower.head_width
        self.heads = tower.heads
        self.norm = Norm(tower.width)
        self.to_q = nn.Linear(tower.width, inner, bias=False)
        self.to_kv = nn.Linear(tower.width, 2 * inner, bias=False)
        self.q_scale = nn.Parameter(torch.ones(tower.head_width))
        self.k_scale = nn.Parameter(torch.ones(tower.head_width))
        self.to_out = nn.Linear(inner, tower.width, bias=False)

    def forward(self, tokens: Tensor, bias: Tensor | None) -> Tensor:
        queries = self._by_head(self.to_q(self.norm(tokens)))
        keys, values = map(self._by_head, self.to_kv(tokens).chunk(2, dim=-1))
        queries = functional.normalize(queries, dim=-1) * self.q_scale
        keys = functional.normalize(keys, dim=-1) * self.k_scale
        attended = functional.scaled_dot_product_attention(
            queries.to(values.dtype),
            keys.to(values.dtype),
            values,
            attn_mask=None if bias is None else bias.to(values.dtype),
            scale=SHARPNESS,
        )
        found: Tensor = self.to_out(attended.transpose(1, 2).flatten(2))
        return found

    def _by_head(self, vectors: Tensor) -> Tensor:
        rows, count, _ = vectors.shape
        return vectors.view(rows, count, self.heads, -1).transpose(1, 2)


class Norm(nn.Module):
    """A layer norm whose shift is not trained."""

    beta: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.register_buffer("beta", torch.zeros(width))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.layer_norm(tokens, tokens.shape[-1:], self.gamma, self.beta)


class Gate(nn.Module):
    """GEGLU, whose second half is the gate."""

    def forward(self, tokens: Tensor) -> Tensor:
        values, gate = tokens.chunk(2, dim=-1)
        return functional.gelu(gate) * values


def feed_forward(width: int) -> nn.Sequential:
    inner = int(4 * (2 / 3) * width)
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 2 * inner, bias=False),
        Gate(),
        nn.Identity(),  # CT-CLIP has a dropout of 0 here
        nn.Linear(inner, width, bias=False),
    )


class Codebook(nn.Module):
    """Replaces each token by the entry of the nearest direction; gradients pass straight through.

    The entries stay as loaded; CT-CLIP updates them in training, on each GPU from the data of that GPU.
    """

    embed: Tensor

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.register_buffer("embed", torch.zeros(1, entries, width))

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
            entries = self.embed[0].float()
            directions = functional.normalize(entries, dim=-1)
            parts = torch.split(tokens.detach().flatten(0, -2).float(), COMPARED)
            nearest = torch.cat([(part @ directions.T).argmax(-1) for part in parts])
            found = entries[nearest].view(tokens.shape)
        return tokens + (found - tokens).detach()
