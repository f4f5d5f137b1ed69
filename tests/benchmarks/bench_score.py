"""Samples per second of `tarmac score` beside a plain open_clip loop over the same tars with the same batch.

The plain loop is what one writes: webdataset decodes pictures, open_clip's transform and tokenizer prepare
them, one process, and the cosine of each batch is kept in memory. Ours compares every sample's CRC32C, embeds
each distinct caption of a batch once, and writes a file per shard. Both take turns, with the page cache warm;
loading the model is not counted.

    .venv/bin/python -m tests.benchmarks.bench_score [BATCH]
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import webdataset
from safetensors.torch import save_model

from tasks.core.schema import Config
from tasks.core.screen import no_progress
from tasks.dataset import examples
from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tasks.models import recipes
from tasks.models.clip.openclip import open_clip
from tasks.models.scoring import scorer
from tests.conftest import digits_config
from tests.models.examples import train_block

ROUNDS = 5


def ours(config: Config) -> float:
    """Samples per second."""
    shutil.rmtree(config.dataset.output / "scores", ignore_errors=True)
    done = scorer.score(config, no_progress)
    return done.computed / done.seconds


def theirs(version: Path, weights: Path, batch_size: int) -> float:
    """Samples per second."""
    model = open_clip.create_model("tarmac-digits", pretrained=str(weights)).eval()
    transform = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(size=32), is_train=False
    )
    tokenize = open_clip.get_tokenizer("tarmac-digits")
    tars = sorted(map(str, version.glob("*/*.tar")))
    samples = webdataset.WebDataset(tars, shardshuffle=False).decode("pilrgb").to_tuple("png", "txt")
    pairs = samples.map_tuple(transform, lambda text: tokenize([text])[0]).batched(batch_size)
    scores: list[float] = []
    began = time.perf_counter()
    with torch.inference_mode():
        for images, texts in pairs:
            both = model.encode_image(images, normalize=True), model.encode_text(texts, normalize=True)
            scores += (both[0] * both[1]).sum(dim=1).tolist()
    return len(scores) / (time.perf_counter() - began)


def main() -> None:
    batch_size = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        examples.write_example("digits", folder / "raw")
        weights = folder / "judge.safetensors"
        save_model(recipes.load_recipe(train_block("clip", name="tarmac/digits")).build_model(), str(weights))
        config = digits_config(folder / "raw", folder)
        version = build(config).version
        versions.publish(config.dataset.output, version, keep=1)
        model = {"name": "tarmac/digits", "pretrained": str(weights)}
        given = config.model_dump(mode="json", by_alias=True)
        config = Config.model_validate({**given, "score": {"model": model, "batch_size": batch_size}})
        rounds = [(ours(config), theirs(version, weights, batch_size)) for _ in range(ROUNDS + 1)][1:]
    mine, plain = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(one / other for one, other in rounds)
    print(
        json.dumps(
            {"ours": round(mine), "plain": round(plain), "ratio": round(ratio, 2), "batch": batch_size}
        )
    )


if __name__ == "__main__":
    main()
