"""Prints the pace of batches that a CLIP takes: `clip_ours VERSION WORKERS BATCH MODEL`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tasks.loader import forkserver
from tasks.loader.feed import Data, Feed
from tasks.models.clip.clip import ClipRecipe, ClipTransform
from tasks.models.clip.clip_options import ClipOptions
from tasks.models.clip.pictures import normalised
from tests.benchmarks.pace import measure

PARTS = 4
"""In which a batch comes, as by `train.micro_batch`."""


def batches(feed: Feed, recipe: ClipRecipe) -> Iterator[Any]:
    """Normalised as well, which a training does on its GPU."""
    with feed.train() as source:
        for batch in source:
            yield {"image": normalised(batch["image"], recipe.preprocessing), "text": batch["text"]}


def main(version: Path, workers: int, size: int, model: str) -> None:
    forkserver.start_forkserver(ClipTransform.__module__)
    recipe = ClipRecipe(ClipOptions(name=model))
    ahead = 2 * PARTS  # as many samples as the peer has
    feed = Feed((Data(version),), recipe, size, micro_batch=size // PARTS, workers=workers, prefetch=ahead)
    with replace(feed, workers=1).train() as warm:
        next(warm)  # the forkserver's imports, as those of the peer do not count
    pace = measure(closing(batches(feed, recipe)), skipped=2 * workers, parts=PARTS)
    print(*pace)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
