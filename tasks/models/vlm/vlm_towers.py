"""The parts that a vision-language model is made of: vision tower, projector, language model.

Each comes by its name from the library that has it, or is a tiny one made here. The vision towers of
open_clip and transformers name and order their outputs differently, so each is wrapped into one that gives
the features of the patches and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tasks.core.errors import DataError, UsageError, first_line
from tasks.core.files import read_json
from tasks.models.clip.clip_options import model_config
from tasks.models.vlm.chat_text import file_of
from tasks.models.vlm.vlm_options import TINY, TINY_PATCH, TINY_TILE

TINY_WIDTH, TINY_LAYERS, TINY_HEADS, TINY_CONTEXT = 64, 2, 4, 2048
INITIAL_DEVIATION = 0.02
HALF = (0.5, 0.5, 0.5)
UNREADABLE = (OSError, ValueError, RuntimeError, KeyError)
"""What both libraries let through when a model is not there, or its weights do not fit it."""


class VisionTower(nn.Module):
    """A tower that sees square tiles of `side` pixels: [tiles, 3, side, side] in [0, 1] to the features of
    its patches, [tiles, patches, width], row by row."""

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, tower: nn.Module, side: int, mean: Sequence[float], deviation: Sequence[float]
    ) -> None:
        super().__init__()
        self.tower, self.side = tower, side
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        features = self.patches((pixels - self.mean) / self.deviation)
        patches = math.isqrt(features.shape[1]) ** 2
        return features[:, features.shape[1] - patches :]  # without the tokens that stand before the patches

    def patches(self, pixels: Tensor) -> Tensor:
        """Those of the tower, perhaps with tokens of its own before them."""
        found: Tensor = self.tower(pixel_values=pixels).last_hidden_state
        return found


class TrunkTower(VisionTower):
    """A tower of timm's, as open_clip has those of SigLIP."""

    def patches(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.tower.forward_features(pixels)  # type: ignore[operator]
        return features


class OpenClipTower(VisionTower):
    """A vision transformer of open_clip's own."""

    def patches(self, pixels: Tensor) -> Tensor:
        tower: Any = self.tower
        features: Tensor = tower.forward_intermediates(
            pixels, indices=1, normalize_intermediates=True, intermediates_only=True, output_fmt="NLC"
        )["image_intermediates"][-1]
        return features


class Projector(nn.Module):
    """Each square of `factor` x `factor` patches becomes one token of the language model.

    Source: nanoVLM's models/modality_projector.py: the features of the square's patches side by side, then
    one linear layer without a bias.
    """

    def __init__(self, factor: int, width: int, language_width: int) -> None:
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(width * factor**2, language_width, bias=False)
        nn.init.normal_(self.linear.weight, std=INITIAL_DEVIATION)

    def forward(self, features: Tensor) -> Tensor:
        """[tiles, patches, width] to [tiles, patches / factor^2, language width]."""
        tiles, patches, width = features.shape
        side = math.isqrt(patches)
        squares = features.view(
            tiles, side // self.factor, self.factor, side // self.factor, self.factor, width
        )
        joined = squares.permute(0, 1, 3, 2, 4, 5).reshape(tiles, -1, width * self.factor**2)
        projected: Tensor = self.linear(joined)
        return projected


def vision_side(name: str) -> tuple[int, int]:
    """The side of a tile in pixels, and the patches along it; UsageError for a tower without such a grid."""
    if name == TINY:
        return TINY_TILE, TINY_TILE // TINY_PATCH
    described = model_config(name)
    if described is not None:
        vision = described["vision_cfg"]
        side, patch = vision["image_size"], vision.get("patch_size", 16)
    else:
        config = _vision_config(name)
        side, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if not isinstance(side, int) or not isinstance(patch, int) or side % patch:
        raise UsageError(f"train.model.vision: {name} does not see square tiles cut into square patches")
    return side, side // patch


def build_vision(name: str, weights: str | None, *, pretrained: bool) -> VisionTower:
    """The tower by its name; with its weights unless `pretrained` is false."""
    if name == TINY:
        return _tiny_vision()
    try:
        if model_config(name) is not None:
            return _of_open_clip(name, weights if pretrained else None)
        return _of_transformers(name, pretrained=pretrained)
    except UNREADABLE as error:
        says = first_line(error)
        raise DataError(f"train.model.vision: {name} cannot be loaded: {says}") from error


def measure_width(tower: VisionTower) -> int:
    """The features of a patch. What they do not hang on, such as a layer that pools them, is set to be
    trained no more: ranks wait for the gradient of everything that is."""
    features = tower(torch.zeros(1, 3, tower.side, tower.side))
    features.sum().backward()
    for parameter in tower.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    width: int = features.shape[-1]
    return width


def build_language(name: str, vocabulary: int, *, pretrained: bool) -> Any:
    """A causal language model with room for `vocabulary` tokens; one that has more keeps them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any
    try:
        config = _tiny_language(vocabulary) if name == TINY else AutoConfig.from_pretrained(name)
        if getattr(config, "final_logit_softcapping", None):
            raise UsageError(f"train.model.language: {name} bounds its logits, which recipe vlm does not")
        if pretrained and name != TINY:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    except UNREADABLE as error:
        says = first_line(error)
        raise DataError(f"train.model.language: {name} cannot be loaded: {says}") from error
    if model.get_input_embeddings().num_embeddings < vocabulary:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return model


def _tiny_vision() -> VisionTower:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=TINY_WIDTH,
        intermediate_size=2 * TINY_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=TINY_HEADS,
        image_size=TINY_TILE,
        patch_size=TINY_PATCH,
        vision_use_head=False,
    )
    return VisionTower(SiglipVisionModel(config), TINY_TILE, HALF, HALF)


def _tiny_language(vocabulary: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=TINY_WIDTH,
        intermediate_size=3 * TINY_WIDTH,
        num_hidden_layers=TINY_LAYERS,
        num_attention_heads=TINY_HEADS,
        num_key_value_heads=TINY_HEADS // 2,
        max_position_embeddings=TINY_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _of_open_clip(name: str, weights: str | None) -> VisionTower:
    from tasks.models.clip.openclip import open_clip

    model: Any = open_clip.create_model(name, pretrained=weights)
    visual = model.visual
    side, _ = vision_side(name)
    mean, deviation = visual.preprocess_cfg["mean"], visual.preprocess_cfg["std"]
    if hasattr(visual, "trunk"):
        return TrunkTower(visual.trunk, side, mean, deviation)
    if not hasattr(visual, "forward_intermediates"):
        raise UsageError(
            f"train.model.vision: {name} gives no features of patches; take a vision transformer"
        )
    return OpenClipTower(visual, side, mean, deviation)


def _of_transformers(name: str, *, pretrained: bool) -> VisionTower:
    from transformers import AutoModel

    if pretrained:
        model = AutoModel.from_pretrained(name, dtype=torch.float32)
    else:
        config = _whole_config(name)
        model = AutoModel.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    tower = getattr(model, "vision_model", model)
    if hasattr(tower, "head"):
        tower.head = nn.Identity()  # what a contrastive model pools its patches with is never used
        tower.use_head = False
    pictures = read_json(file_of(name, "preprocessor_config.json"))
    side, _ = vision_side(name)
    return VisionTower(tower, side, pictures["image_mean"], pictures["image_std"])


def _whole_config(name: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except UNREADABLE as error:
        says = first_line(error)
        raise UsageError(f"train.model.vision: {name} is no model that can be found: {says}") from None


def _vision_config(name: str) -> Any:
    config = _whole_config(name)
    return getattr(config, "vision_config", config)
