"""The block `reinforce`: what `tarmac reinforce` adds to the pairs of a dataset."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.core.schema.block import Block, Folder


class TeachingModel(Block):
    """A CLIP model whose embeddings are written into shards."""

    name: str
    """`tarmac/digits`, or one of open_clip's models such as `ViT-L-14`."""
    pretrained: str
    """A tag that open_clip knows for that model, or a file of weights: a run's are in
    `checkpoints/best/model.safetensors`."""


class Reinforce(Block):
    """Teacher embeddings, augmentations and synthetic captions for a dataset of image-text pairs. The tars
    with them are written into the folder that `dataset.source.path` names."""

    dataset: Folder
    """The folder of a built dataset of modality image_text."""
    teachers: Annotated[list[TeachingModel], Field(min_length=1)]
    """Their embeddings stand side by side in this order; `train.model.teachers` then has their widths."""
    captions: Folder
    """A file of JSON lines, `{"key": …, "captions": […]}`: the synthetic captions of each sample, by the key
    that it has in its shard."""
    augmentations: Annotated[int, Field(ge=1)] = 10
    """Views of each image; MobileCLIP stored 10 of each of a billion images, and 30 of 12 million."""
    seed: Annotated[int, Field(ge=0)] = 0
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Samples that the teachers embed at once."""
