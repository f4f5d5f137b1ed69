"""What a config may say of a CLIP model that learns from teachers, checked without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.core.schema.block import Block
from tasks.models.clip.clip_options import ClipOptions, open_clip_needs, require_activation, trainable
from tasks.models.needs import Need
from tasks.models.recipes import Capability, Options

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TeacherOptions(Block):
    """One of those whose embeddings stand side by side in the data."""

    width: Annotated[int, Field(ge=1)]
    """Numbers of its embedding."""
    logit_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    """Its temperature, as a factor: that of OpenAI's models is 100."""


class LossWeights(Block):
    """Of the two losses in their sum."""

    contrastive: Weight = 0.0
    """Of CLIP's own, for which a sample's own caption alone is right."""
    distillation: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Of the cross entropy with what the teachers say."""


class ReinforcedOptions(Options):
    """`train.model` of recipe clip_reinforced."""

    modality: ClassVar[str] = "reinforced"
    capabilities: ClassVar[frozenset[Capability]] = ClipOptions.capabilities
    parts: ClassVar[tuple[str, ...]] = ClipOptions.parts

    name: str
    """`tarmac/digits`, or one of open_clip's models such as `ViT-B-16`."""
    pretrained: str | None = None
    """A tag that open_clip knows for that model, or a file of weights."""
    teachers: Annotated[list[TeacherOptions], Field(min_length=1)]
    """In the order in which their embeddings stand side by side, such as `[{width: 768}, {width: 768}]`."""
    loss_weights: LossWeights = LossWeights()
    """MobileCLIP trained with 0 and 1 on DataCompDR-12M, and with 0.25 and 0.75 on DataCompDR-1B."""
    synthetic_captions: Literal["add"] | Annotated[float, Field(ge=0, le=1)] = "add"
    """`add` has a second pair of each image with a synthetic caption, whose loss is added; a number is the
    share of the real captions that a synthetic one stands in for."""

    @field_validator("name")
    @classmethod
    def _is_trainable(cls, name: str) -> str:
        return trainable(name)

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if self.pretrained is not None:
            require_activation(self.name, self.pretrained)
        return self

    @property
    def needs(self) -> Sequence[Need]:
        return open_clip_needs("train.model", self.name, self.pretrained)

    @property
    def width(self) -> int:
        """Numbers of all teachers' embeddings."""
        return sum(teacher.width for teacher in self.teachers)
