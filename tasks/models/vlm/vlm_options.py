"""The options of a vision-language model, checked without torch or transformers.

Names of models are looked up where they are loaded: only Hugging Face's hub knows its names, and a config
must be checked on machines without a network.
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
    whole_need,
)
from tasks.models.recipes import Capability, Options

TINY = "tarmac/chat"
"""A vision tower, a language model and a byte tokenizer that Tarmac defines: together 0.2 M parameters."""
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
    """For an open_clip model: a tag that open_clip knows, or a file of weights."""
    language: str
    """`tarmac/chat`, or a causal language model of transformers with its tokenizer, by name or folder."""
    pretrained: str | None = None
    """The weights of a whole model of these parts, so that the parts' own are not needed: another run's
    `checkpoints/best/model.safetensors`, or a checkpoint of nanoVLM or of transformers' Idefics3 (SmolVLM) by
    its folder or its repository on the hub."""
    pixel_shuffle: Annotated[int, Field(ge=1)] = 4
    """Patches per side that become one token of the language model: 4 turns 1,024 patches into 64 tokens."""
    max_side: Annotated[int, Field(ge=1)] = 2048
    """The longest side of a picture in pixels; pictures are cut into tiles of the vision tower's size."""
    upscale: bool = False
    """Whether smaller pictures are enlarged to `max_side`, as nanoVLM's `resize_to_max_side_len` does.
    Otherwise a picture takes as few tiles as hold it."""

    @property
    def needs(self) -> Sequence[Need]:
        key, found = "train.model.vision", list[Need]()
        weights = (WEIGHTS,) if self.pretrained is None else ()
        if self.pretrained is not None:
            found.append(whole_need("train.model.pretrained", self.pretrained))
        described = model_config(self.vision)
        if described is not None:
            if self.vision_pretrained is not None:
                found.append(weights_need(f"{key}_pretrained", self.vision, self.vision_pretrained))
            # open_clip makes the text tower as well, but no tokenizer is needed for it
            text = {"hf_model_name": described["text_cfg"].get("hf_model_name")}
            found += of_open_clip_text(key, text, weights=True)
        elif self.vision != TINY:
            found.append(of_transformers(key, self.vision, CONFIG, *weights, PICTURES))
        if self.language != TINY:
            key = "train.model.language"
            found.append(of_transformers(key, self.language, CONFIG, *weights, FAST_TOKENIZER))
        return found

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        if self.vision_pretrained is not None and self.pretrained is not None:
            raise ValueError("vision_pretrained: has no effect, because pretrained has all weights")
        if self.vision_pretrained is not None and (self.vision == TINY or "/" in self.vision):
            raise ValueError("vision_pretrained: only has an effect with an open_clip model as vision")
        if self.vision == TINY and (TINY_TILE // TINY_PATCH) % self.pixel_shuffle:
            raise ValueError(
                f"pixel_shuffle: {TINY} has {TINY_TILE // TINY_PATCH} patches per side, which "
                f"{self.pixel_shuffle} does not divide; take 2"
            )
        return self
