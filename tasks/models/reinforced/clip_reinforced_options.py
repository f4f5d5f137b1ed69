"""The options of a CLIP model that learns from teachers, checked without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.core.schema.block import Block
from tasks.models.clip.clip_options import (
    ClipOptions,
    known_model,
    model_config,
    open_clip_needs,
    require_activation,
    require_no_bias,
    require_parts,
)
from tasks.models.needs import Need
from tasks.models.recipes import Capability, Options

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TeacherOptions(Block):
    """A teacher, whose embeddings stand beside those of the others in the data."""

    width: Annotated[int, Field(ge=1)]
    """The length of its embeddings."""
    logit_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    """The factor of its similarities, the inverse of its temperature: 100 for OpenAI's models."""


class LossWeights(Block):
    """The weights of the two losses in their sum."""

    contrastive: Weight = 0.0
    """The weight of CLIP's loss, for which only a sample's own caption is right."""
    distillation: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The weight of the cross entropy with the teachers."""


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
    """The teachers in the order of their embeddings, such as `[{width: 768}, {width: 768}]`."""
    loss_weights: LossWeights = LossWeights()
    """MobileCLIP trained with 0 and 1 on DataCompDR-12M, and with 0.25 and 0.75 on DataCompDR-1B."""
    synthetic_captions: Literal["add"] | Annotated[float, Field(ge=0, le=1)] = "add"
    """`add` pairs each image also with a synthetic caption and adds the loss of that pair; a number is the
    share of real captions that a synthetic one replaces."""

    @field_validator("name")
    @classmethod
    def _is_trainable(cls, name: str) -> str:
        described = model_config(known_model(name))
        if described is not None:
            require_parts(name, described)
            require_no_bias(name, described)
        return name

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
        """The length of all teachers' embeddings together."""
        return sum(teacher.width for teacher in self.teachers)
