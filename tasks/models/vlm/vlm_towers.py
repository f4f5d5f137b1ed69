"""The parts of a vision-language model: vision tower, projector, language model.

Each part is loaded by name from its library, or is a tiny one built here. The vision towers of open_clip and
transformers name and order their outputs differently, so each is wrapped into one that returns the features
of the patches and nothing else.
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
from tasks.models.vlm.vlm_layouts import IDEFICS3_VISION
from tasks.models.vlm.vlm_options import TINY, TINY_PATCH, TINY_TILE

TINY_WIDTH, TINY_LAYERS, TINY_HEADS, TINY_CONTEXT = 64, 2, 4, 2048
INITIAL_DEVIATION = 0.02
HALF = (0.5, 0.5, 0.5)
UNREADABLE = (OSError, ValueError, RuntimeError, KeyError)
"""The errors that both libraries raise where a model is missing or its weights do not fit."""
IDEFICS3 = ("idefics3", "smolvlm")
"""Kinds of whole models whose parts can be named; their weights come by `train.model.pretrained` alone."""


class VisionTower(nn.Module):
    """A tower for square tiles of `side` pixels: it maps [tiles, 3, side, side] in [0, 1] to the features of
    the patches, [tiles, patches, width], row by row."""

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
        return features[:, features.shape[1] - patches :]  # without the tokens before the patches

    def patches(self, pixels: Tensor) -> Tensor:
        """Return the tower's features, perhaps with tokens of its own before the patches."""
        found: Tensor = self.tower(pixel_values=pixels).last_hidden_state
        return found


class TrunkTower(VisionTower):
    """A tower of timm, which open_clip uses for SigLIP."""

    def patches(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.tower.forward_features(pixels)  # type: ignore[operator]
        return features


class OpenClipTower(VisionTower):
    """A vision transformer that open_clip implements."""

    def patches(self, pixels: Tensor) -> Tensor:
        tower: Any = self.tower
        features: Tensor = tower.forward_intermediates(
            pixels, indices=1, normalize_intermediates=True, intermediates_only=True, output_fmt="NLC"
        )["image_intermediates"][-1]
        return features


class Projector(nn.Module):
    """Turns each square of `factor` x `factor` patches into one token of the language model.

    Source: nanoVLM's models/modality_projector.py: the features of the square's patches are concatenated and
    projected by one linear layer without a bias.
    """

    def __init__(self, factor: int, width: int, language_width: int) -> None:
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(width * factor**2, language_width, bias=False)
        nn.init.normal_(self.linear.weight, std=INITIAL_DEVIATION)

    def forward(self, features: Tensor) -> Tensor:
        """Map [tiles, patches, width] to [tiles, patches / factor^2, language width]."""
        tiles, patches, width = features.shape
        side = math.isqrt(patches)
        squares = features.view(
            tiles, side // self.factor, self.factor, side // self.factor, self.factor, width
        )
        joined = squares.permute(0, 1, 3, 2, 4, 5).reshape(tiles, -1, width * self.factor**2)
        projected: Tensor = self.linear(joined)
        return projected


def vision_side(name: str) -> tuple[int, int]:
    """Return the side of a tile in pixels and in patches; UsageError for a tower without such a grid."""
    if name == TINY:
        return TINY_TILE, TINY_TILE // TINY_PATCH
    described = model_config(name)
    if described is not None:
        vision = described["vision_cfg"]
        side, patch = vision["image_size"], vision.get("patch_size", 16)
    else:
        whole = _whole_config(name)
        config = getattr(whole, "vision_config", whole)
        side, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if not isinstance(side, int) or not isinstance(patch, int) or side % patch:
        raise UsageError(f"train.model.vision: {name} does not take square tiles with square patches")
    return side, side // patch


def build_vision(name: str, weights: str | None, *, pretrained: bool) -> VisionTower:
    """Build the tower by its name, with its weights unless `pretrained` is false."""
    if name == TINY:
        return _tiny_vision()
    try:
        if model_config(name) is not None:
            return _of_open_clip(name, weights if pretrained else None)
        return _of_transformers(name, pretrained=pretrained)
    except UNREADABLE as error:
        raise DataError(f"train.model.vision: {name} cannot be loaded: {first_line(error)}") from error


def measure_width(tower: VisionTower) -> int:
    """Return the number of features per patch, and freeze parameters that they do not depend on, such as a
    pooling layer: ranks wait for the gradients of all trained parameters."""
    features = tower(torch.zeros(1, 3, tower.side, tower.side))
    features.sum().backward()
    for parameter in tower.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    width: int = features.shape[-1]
    return width


def build_language(name: str, vocabulary: int, *, pretrained: bool) -> Any:
    """Build a causal language model with room for at least `vocabulary` tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any
    try:
        config = _tiny_language(vocabulary) if name == TINY else AutoConfig.from_pretrained(name)
        if config.model_type in IDEFICS3:
            _require_whole("language", name, pretrained)
            config.text_config.tie_word_embeddings = config.tie_word_embeddings
            config = config.text_config
        if getattr(config, "final_logit_softcapping", None):
            raise UsageError(
                f"train.model.language: {name} caps its logits, which recipe vlm does not support"
            )
        if pretrained and name != TINY:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    except UNREADABLE as error:
        raise DataError(f"train.model.language: {name} cannot be loaded: {first_line(error)}") from error
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
        raise UsageError(f"train.model.vision: {name} has no features per patch; take a vision transformer")
    return OpenClipTower(visual, side, mean, deviation)


def _of_transformers(name: str, *, pretrained: bool) -> VisionTower:
    from transformers import AutoModel

    whole = _whole_config(name)
    if whole.model_type in IDEFICS3:
        _require_whole("vision", name, pretrained)
        model = _siglip_of(whole.vision_config)
    elif pretrained:
        model = AutoModel.from_pretrained(name, dtype=torch.float32)
    else:
        model = AutoModel.from_config(whole, dtype=torch.float32)  # type: ignore[no-untyped-call]
    tower = getattr(model, "vision_model", model)
    if hasattr(tower, "head"):
        tower.head = nn.Identity()  # a contrastive model's pooling is never used
        tower.use_head = False
    pictures = read_json(file_of(name, "preprocessor_config.json"))
    side, _ = vision_side(name)
    return VisionTower(tower, side, pictures["image_mean"], pictures["image_std"])


def _siglip_of(vision: Any) -> Any:
    """Build the tower of an Idefics3 as SigLIP, which it is for square tiles, without waiting for a mask."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    measures = {name: getattr(vision, name) for name in IDEFICS3_VISION}
    return SiglipVisionModel(SiglipVisionConfig(**measures, vision_use_head=False))


def _require_whole(option: str, name: str, is_start: bool) -> None:
    if is_start:
        raise UsageError(
            f"train.model.{option}: {name} is a whole vision-language model, of which no part is loaded "
            f"alone; set train.model.pretrained: {name} as well"
        )


def _whole_config(name: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except UNREADABLE as error:
        raise UsageError(f"train.model.vision: no model {name} can be found: {first_line(error)}") from None
