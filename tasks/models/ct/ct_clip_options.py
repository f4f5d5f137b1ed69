"""What a config may say of a model of CT volumes and reports, checked without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from tasks.models.clip import clip_options
from tasks.models.needs import CONFIG, TOKENIZER, WEIGHTS, Need, PathNeed, of_open_clip_text, of_transformers
from tasks.models.recipes import Capability, Options

REPORTS = "tarmac/reports"
"""A small text tower whose tokenizer needs no vocabulary."""
LONGEST = 512
"""Tokens of a report that are read, as in CT-CLIP."""
CTVIT, PHANTOMS = "ctvit", "tarmac/phantoms"
Sides = tuple[int, int, int]
Kind = Literal["tarmac", "open_clip", "transformers"]


class Measures(NamedTuple):
    """Of a vision tower: the volume that it reads, unless told otherwise, and its patches, both (depth,
    height, width) in voxels; its transformers; and the width of the space in which it meets the reports."""

    shape: Sides
    patch: Sides
    width: int
    spatial_layers: int
    temporal_layers: int
    heads: int
    head_width: int
    space: int


VISION: Mapping[str, Measures] = {
    CTVIT: Measures((240, 480, 480), (10, 20, 20), 512, 4, 4, 8, 32, 512),
    PHANTOMS: Measures((32, 64, 64), (8, 16, 16), 48, 1, 1, 4, 16, 64),
}


class CtClipOptions(Options):
    """`train.model` of recipe ct_clip."""

    modality: ClassVar[str] = "volume_report"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({"loss", "embed"})
    parts: ClassVar[tuple[str, ...]] = ("vision", "text", "temperature")

    vision: Literal["ctvit", "tarmac/phantoms"]
    """`ctvit`, CT-CLIP's tower, or `tarmac/phantoms`, the same in small."""
    text: str = REPORTS
    """`tarmac/reports`, one of open_clip's models, whose text tower it is, or a model of transformers by name
    or path, such as `microsoft/BiomedVLP-CXR-BERT-specialized`."""
    text_weights: str | None = None
    """For a text tower of open_clip: a tag that it knows, or a file of weights. A model of transformers comes
    with its weights."""
    pretrained: str | None = None
    """A file of weights of the whole model, in CT-CLIP's layout or a `model.safetensors` of Tarmac's."""
    codebook: Annotated[int, Field(ge=0)] = 0
    """Entries of the codebook that takes the place of the tower's tokens, 0 for none. CT-CLIP's published
    weights have 8192. They stay as they are loaded."""
    shape: Sides | None = None
    """(depth, height, width) in voxels that the model reads: cut out at random in training, from the middle
    otherwise. The vision tower's own unless given: 240 x 480 x 480 of ctvit."""
    window: tuple[int, int] = (-1000, 1000)
    """HU beyond it are taken for its ends; what is left is divided by 1000."""
    flip: bool = False
    """Whether half of the training's volumes are mirrored, left for right. Reports that name a side become
    wrong by it."""
    jitter: Annotated[int, Field(ge=0)] = 0
    """In training, all voxels of a volume are raised or lowered together by up to so many HU."""
    logit_scale: float = 1.0
    """Where the temperature's logarithm starts, by which similarities are sharpened: 1 as in CT-CLIP; CLIP
    has 2.66."""

    @property
    def measures(self) -> Measures:
        return VISION[self.vision]

    @property
    def input_shape(self) -> Sides:
        return self.shape or self.measures.shape

    @property
    def text_kind(self) -> Kind:
        """Whose the text tower is."""
        if self.text == REPORTS:
            return "tarmac"
        known = clip_options.model_config(self.text)
        return "open_clip" if known else "transformers"

    @property
    def needs(self) -> Sequence[Need]:
        whole = [] if self.pretrained is None else [PathNeed("train.model.pretrained", self.pretrained)]
        return [*whole, *self._text_needs()]

    def _text_needs(self) -> Sequence[Need]:
        if self.text_kind == "tarmac":
            return []
        if self.text_kind == "transformers":
            weights = [WEIGHTS] if self.pretrained is None else []
            return [of_transformers("train.model.text", self.text, CONFIG, TOKENIZER, *weights)]
        given, described = self.text_weights, clip_options.model_config(self.text) or {}
        tag = (
            [] if given is None else [clip_options.weights_need("train.model.text_weights", self.text, given)]
        )
        return [*tag, *of_open_clip_text("train.model.text", described.get("text_cfg", {}), weights=True)]

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
            raise ValueError(f"{list(window)} does not rise; CT-CLIP has [-1000, 1000]")
        return window

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for side, part in zip(self.input_shape, self.measures.patch, strict=True):
            if side < part or side % part:
                raise ValueError(
                    f"shape {list(self.input_shape)} does not divide into patches of "
                    f"{list(self.measures.patch)}, which {self.vision} has"
                )
        if self.codebook and self.pretrained is None:
            raise ValueError("codebook has no effect without pretrained, as no training here fills it")
        if self.text_weights is not None and self.text_kind != "open_clip":
            raise ValueError(
                f"text_weights has an effect for a text tower of open_clip only, not {self.text}"
            )
        if self.text_kind == "transformers" and find_spec("transformers") is None:
            raise ValueError(
                f"text {self.text!r} is read by transformers, which is not installed: "
                "pip install 'tarmac[vlm]', or take tarmac/reports"
            )
        return self


def is_file(name: str) -> bool:
    """Whether weights are named by a path."""
    return Path(name).is_file()
