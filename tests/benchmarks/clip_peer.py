"""Prints the pace of open_clip's trainer's own loader: `clip_peer FOLDER WORKERS BATCH MODEL`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip_train.data import get_wds_dataset

from tests.benchmarks.pace import measure


def loader(folder: Path, workers: int, size: int, model: str) -> Any:
    files = sorted(folder.glob("*.tar"))
    arguments = Namespace(
        train_data=f"{folder}/{{{files[0].stem}..{files[-1].stem}}}.tar",
        train_data_upsampling_factors=None,
        train_num_samples=10_000 * size * workers,  # an epoch never ends while it is measured
        dataset_resampled=True,
        seed=0,
        batch_size=size,
        workers=workers,
        world_size=1,
    )
    side = open_clip.get_model_config(model)["vision_cfg"]["image_size"]
    preprocess = open_clip.image_transform(side, is_train=True)
    return get_wds_dataset(arguments, preprocess, True, tokenizer=open_clip.get_tokenizer(model)).dataloader


def batches(loader: Any) -> Iterator[Any]:
    for images, texts in loader:
        yield {"image": images, "text": texts}


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, workers, size, model = sys.argv[1:]
    source = closing(batches(loader(Path(given), int(workers), int(size), model)))
    pace = measure(source, skipped=2 * int(workers))
    print(*pace)
