"""The block `score`: the model that judges pictures and captions of a dataset by `tarmac score`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.core.schema.block import Block, Folder


class ClipWeights(Block):
    """A CLIP model and its weights."""

    name: str
    """`tarmac/digits`, or one of open_clip's models such as `ViT-L-14`."""
    pretrained: str
    """A pretrained tag of open_clip for this model, or a file of weights, such as a run's
    `checkpoints/best/model.safetensors`."""


class SemDeDup(Block):
    """Finds samples whose pictures show the same thing, by their embeddings."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """The cosine similarity from which a sample counts as a duplicate in the report; `dataset.filter` has a
    limit of its own, such as `duplicate_similarity: {max: 0.95}`."""


class Scoring(Block):
    """How well each caption fits its picture, by a CLIP model; `dataset.filter: {clip_score: 0.28}` then
    leaves out the others."""

    model: ClipWeights
    """The model, such as `{name: ViT-B-32, pretrained: laion2b_s34b_b79k}`."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Samples that the model embeds at once; a batch ends with its shard."""
    embeddings: bool = False
    """Whether the embedding of each picture is kept, too, as float16."""
    aesthetic: Folder | None = None
    """A file with a linear head over the pictures' embeddings (`weight` and `bias`, as .pth or .safetensors),
    which gives `aesthetic_score`."""
    semdedup: SemDeDup | None = None
    """Gives `duplicate_similarity`, for which the embeddings are kept."""

    @property
    def keeps_embeddings(self) -> bool:
        return self.embeddings or self.semdedup is not None
