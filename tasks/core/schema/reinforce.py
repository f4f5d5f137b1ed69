"""The block `reinforce`: what `tarmac reinforce` adds to the pairs of a dataset."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.core.schema.block import Block, Folder
from tasks.core.schema.score import ClipWeights


class Reinforce(Block):
    """Teacher embeddings, augmentations and synthetic captions for a dataset of image-text pairs. The
    resulting tars are written into the folder that `dataset.source.path` names."""

    dataset: Folder
    """The folder of a built dataset of modality image_text."""
    teachers: Annotated[list[ClipWeights], Field(min_length=1)]
    """The teachers. Their embeddings are concatenated in this order; `train.model.teachers` lists their
    widths."""
    captions: Folder
    """A JSONL file with one line per sample, `{"key": …, "captions": […]}`: the synthetic captions of the
    sample with this key in its shard."""
    augmentations: Annotated[int, Field(ge=1)] = 10
    """Augmented views stored per image; MobileCLIP stored 10 for a billion images, and 30 for 12 million."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the crops and augmentations that the teachers see."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Samples that the teachers embed at once."""
