"""What a config may say of a vision-language model, checked without torch or transformers.

Names of models are looked up where they are loaded: a name of Hugging Face's is known to its hub alone, and a
config must be checked on machines without a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from tasks.models.clip.clip_options import model_config, weights_need
from tasks.models.needs import (
    CONFIG,
    FAST_TOKENIZER,
    PICTURES,
    WEIGHTS,
    Need,
    of_open_clip_text,
    of_transformers,
)
from tasks.models.recipes import Capability, Options

TINY = "tarmac/chat"
"""A vision tower, a language model and a tokenizer of bytes, made here: together 0.2 M parameters."""
TINY_TILE, TINY_PATCH = 16, 4


class VlmOptions(Options):
    """`train.model` of recipe vlm."""

    modality: ClassVar[str] = "chat"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({"loss", "generate"})
    parts: ClassVar[tuple[str, ...]] = ("projector", "vision", "language")
    packs: ClassVar[bool] = True

    vision: str
    """`tarmac/chat`, an open_clip model such as `ViT-B-16`, or a model of transformers by name or folder."""
    vision_pretrained: str | None = None
    """For an open_clip model: a tag that open_clip knows for it, or a file of weights."""
    language: str
    """`tarmac/chat`, or a causal language model of transformers by name or folder; so is its tokenizer."""
    pixel_shuffle: Annotated[int, Field(ge=1)] = 4
    """Patches a side that become one token of the language model: 4 makes 64 of 1,024 patches."""
    max_side: Annotated[int, Field(ge=1)] = 2048
    """The longest side of a picture in pixels, which is cut into tiles of the vision tower's size."""
    upscale: bool = False
    """Whether smaller pictures are enlarged to `max_side`, as nanoVLM's `resize_to_max_side_len` does. Else
    one takes as few tiles as hold it."""

    @property
    def needs(self) -> Sequence[Need]:
        return [*self._vision_needs(), *self._language_needs()]

    def _vision_needs(self) -> Sequence[Need]:
        key, described = "train.model.vision", model_config(self.vision)
        if self.vision == TINY:
            return []
        if described is None:
            return [of_transformers(key, self.vision, CONFIG, WEIGHTS, PICTURES)]
        text = {name: value for name, value in described["text_cfg"].items() if name == "hf_model_name"}
        given = self.vision_pretrained  # open_clip makes the text tower as well
        weights = [] if given is None else [weights_need(f"{key}_pretrained", self.vision, given)]
        return [*weights, *of_open_clip_text(key, text, weights=True)]

    def _language_needs(self) -> Sequence[Need]:
        if self.language == TINY:
            return []
        return [of_transformers("train.model.language", self.language, CONFIG, WEIGHTS, FAST_TOKENIZER)]

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        if self.vision_pretrained is not None and (self.vision == TINY or "/" in self.vision):
            raise ValueError("vision_pretrained: has an effect with an open_clip model as vision only")
        if self.vision == TINY and (TINY_TILE // TINY_PATCH) % self.pixel_shuffle:
            raise ValueError(
                f"pixel_shuffle: {TINY} sees {TINY_TILE // TINY_PATCH} patches a side, which do not divide "
                f"by {self.pixel_shuffle}; take 2"
            )
        return self
