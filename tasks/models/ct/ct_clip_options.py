"""The options of a model of CT volumes and reports, checked without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.models.clip import clip_options
from tasks.models.needs import CONFIG, TOKENIZER, WEIGHTS, Need, PathNeed, of_open_clip_text, of_transformers
from tasks.models.recipes import Capability, Options

REPORTS = "tarmac/reports"
"""A small text tower whose tokenizer needs no vocabulary."""
LONGEST = 512
"""How many tokens of a report are read, as in CT-CLIP."""
CTVIT, PHANTOMS = "ctvit", "tarmac/phantoms"
Sides = tuple[int, int, int]
Kind = Literal["tarmac", "open_clip", "transformers"]


@dataclass(frozen=True)
class Tower:
    """The sizes of a CTViT; `shape` and `patch` are (depth, height, width) in voxels.

    `space` is the width of the embedding space that it shares with the reports, and `codebook` the number of
    entries of its codebook, 0 for a tower without one.
    """

    shape: Sides
    patch: Sides
    width: int
    spatial_layers: int
    temporal_layers: int
    heads: int
    head_width: int
    space: int
    codebook: int = 0

    @property
    def grid(self) -> Sides:
        """The number of patches along each side."""
        depth, height, width = (side // part for side, part in zip(self.shape, self.patch, strict=True))
        return depth, height, width


VISION: Mapping[str, Tower] = {
    CTVIT: Tower((240, 480, 480), (10, 20, 20), 512, 4, 4, 8, 32, 512),
    PHANTOMS: Tower((32, 64, 64), (8, 16, 16), 48, 1, 1, 4, 16, 64),
}


class CtClipOptions(Options):
    """`train.model` of recipe ct_clip."""

    modality: ClassVar[str] = "volume_report"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({"loss", "embed"})
    parts: ClassVar[tuple[str, ...]] = ("vision", "text", "temperature")

    vision: Literal["ctvit", "tarmac/phantoms"]
    """`ctvit`, CT-CLIP's tower, or `tarmac/phantoms`, a small version of it."""
    text: str = REPORTS
    """`tarmac/reports`, an open_clip model, of which the text tower is taken, or a model of transformers by
    name or path, such as `microsoft/BiomedVLP-CXR-BERT-specialized`."""
    text_weights: str | None = None
    """For a text tower of open_clip: a tag that open_clip knows, or a file of weights. A model of
    transformers brings its own weights."""
    pretrained: str | None = None
    """A file of weights of the whole model, in CT-CLIP's layout or a `model.safetensors` of Tarmac's."""
    codebook: Annotated[int, Field(ge=0)] = 0
    """The number of codebook entries that replace the tower's tokens, 0 for none. CT-CLIP's published weights
    have 8192. Training does not change them."""
    shape: Sides | None = None
    """(depth, height, width) in voxels that the model reads: cropped at random in training, from the middle
    otherwise. The default is the vision tower's own: 240 x 480 x 480 for ctvit."""
    window: tuple[int, int] = (-1000, 1000)
    """HU are clipped to this window and divided by 1000."""
    flip: bool = False
    """Whether half of the training volumes are mirrored, left to right, which makes reports that name a side
    wrong."""
    jitter: Annotated[int, Field(ge=0)] = 0
    """In training, all voxels of a volume are raised or lowered together by up to this many HU."""
    logit_scale: float = 1.0
    """The initial logarithm of the factor that similarities are multiplied by: 1 as in CT-CLIP; CLIP has
    2.66."""

    @property
    def input_shape(self) -> Sides:
        return self.shape or VISION[self.vision].shape

    @property
    def tower(self) -> Tower:
        """The vision tower for the volumes and the codebook of these options."""
        return replace(VISION[self.vision], shape=self.input_shape, codebook=self.codebook)

    @property
    def text_kind(self) -> Kind:
        """The library that the text tower comes from."""
        if self.text == REPORTS:
            return "tarmac"
        return "open_clip" if clip_options.model_config(self.text) else "transformers"

    @property
    def needs(self) -> Sequence[Need]:
        key, weights_key = "train.model.text", "train.model.text_weights"
        found: list[Need] = []
        if self.pretrained is not None:
            found.append(PathNeed("train.model.pretrained", self.pretrained))
        if self.text_kind == "transformers":
            weights = [WEIGHTS] if self.pretrained is None else []
            found.append(of_transformers(key, self.text, CONFIG, TOKENIZER, *weights))
        if self.text_kind == "open_clip":
            if self.text_weights is not None:
                found.append(clip_options.weights_need(weights_key, self.text, self.text_weights))
            described = clip_options.model_config(self.text) or {}
            found += of_open_clip_text(key, described.get("text_cfg", {}), weights=True)
        return found

    @field_validator("text")
    @classmethod
    def _is_known(cls, text: str) -> str:
        if text.startswith("tarmac/") and text != REPORTS:
            raise ValueError(f"there is no {text}; Tarmac's own text tower is {REPORTS}")
        return text

    @field_validator("window")
    @classmethod
    def _rises(cls, window: tuple[int, int]) -> tuple[int, int]:
        if window[0] >= window[1]:
            raise ValueError(f"{list(window)} does not rise; CT-CLIP uses [-1000, 1000]")
        return window

    @model_validator(mode="after")
    def _fits(self) -> Self:
        patch = self.tower.patch
        if any(side < part or side % part for side, part in zip(self.input_shape, patch, strict=True)):
            raise ValueError(
                f"shape {list(self.input_shape)} does not divide into patches of {list(patch)}, which "
                f"{self.vision} has"
            )
        if self.codebook and self.pretrained is None:
            raise ValueError("codebook has no effect without pretrained, because no training here fills it")
        if self.text_weights is not None and self.text_kind != "open_clip":
            raise ValueError(
                f"text_weights only has an effect for a text tower of open_clip, not for {self.text}"
            )
        if self.text_kind == "transformers" and find_spec("transformers") is None:
            raise ValueError(
                f"text {self.text!r} is read by transformers, which is not installed: "
                "pip install 'tarmac[vlm]', or take tarmac/reports"
            )
        return self
