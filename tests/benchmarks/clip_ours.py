"""Prints the samples a second of batches that a CLIP takes: `clip_ours VERSION WORKERS BATCH MODEL`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from tasks.loader.batches import train_batches
from tasks.models.clip import ClipRecipe
from tasks.models.pictures import normalised
from tests.benchmarks.pace import measure


def batches(version: Path, workers: int, size: int, model: str) -> Iterator[Any]:
    """Normalised as well, which a training does on its GPU."""
    recipe = ClipRecipe(model)
    with train_batches(
        version,
        recipe.transform(is_train=True),
        batch_size=size,
        seed=0,
        shuffle="windows",
        workers=workers,
        prefetch=2,
    ) as source:
        for batch in source:
            yield {"image": normalised(batch["image"], recipe.preprocessing), "text": batch["text"]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, workers, size, model = sys.argv[1:]
    source = batches(Path(given), int(workers), int(size), model)
    print(measure(closing(source), skipped=2 * int(workers))[0])
