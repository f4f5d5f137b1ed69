"""Samples per second of `tarmac score` beside a plain open_clip loop over the same tars with the same batch.

The plain loop is what one writes: webdataset decodes pictures, open_clip's transform and tokenizer prepare
them, one process, and the cosine of each batch is kept in memory. Ours compares every sample's CRC32C, embeds
each distinct caption of a batch once, and writes a file per shard. Loading the model is not counted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
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
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, times
from tests.conftest import digits_config
from tests.models.examples import train_block

BATCH = 64


def ours(config: str) -> Row:
    torch.set_num_threads(1)
    given = Config.model_validate_json(config)
    shutil.rmtree(given.dataset.output / "scores", ignore_errors=True)
    done = scorer.score(given, no_progress)
    return {"samples_per_s": done.computed / done.seconds}


def theirs(version: str, weights: str) -> Row:
    torch.set_num_threads(1)
    model = open_clip.create_model("tarmac-digits", pretrained=weights).eval()
    transform = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(size=32), is_train=False
    )
    tokenize = open_clip.get_tokenizer("tarmac-digits")
    tars = sorted(map(str, Path(version).glob("*/*.tar")))
    samples = webdataset.WebDataset(tars, shardshuffle=False).decode("pilrgb").to_tuple("png", "txt")
    pairs = samples.map_tuple(transform, lambda text: tokenize([text])[0]).batched(BATCH)
    scores: list[float] = []
    began = time.perf_counter()
    with torch.inference_mode():
        for images, texts in pairs:
            both = model.encode_image(images, normalize=True), model.encode_text(texts, normalize=True)
            scores += (both[0] * both[1]).sum(dim=1).tolist()
    return {"samples_per_s": len(scores) / (time.perf_counter() - began)}


def cases(setup: Setup) -> Iterator[Case]:
    folder = setup.new_folder()
    examples.write_example("digits", folder / "raw")
    weights = folder / "judge.safetensors"
    save_model(recipes.load_recipe(train_block("clip", name="tarmac/digits")).build_model(), str(weights))
    config = digits_config(folder / "raw", folder)
    version = build(config).version
    versions.publish(config.dataset.output, version, keep=1)
    model = {"name": "tarmac/digits", "pretrained": str(weights)}
    given = config.model_dump(mode="json", by_alias=True)
    config = Config.model_validate({**given, "score": {"model": model, "batch_size": BATCH}})
    yield Case(
        "1,797 digits",
        {
            "tarmac": call(ours, config.model_dump_json(by_alias=True)),
            "plain loop": call(theirs, version, weights),
        },
    )


BENCHMARKS = (
    Benchmark(
        "score",
        "Scoring pairs with a model",
        "`tarmac score` of the digits with a small CLIP on one thread, beside the loop that one writes with webdataset and "
        "open_clip. Loading the model does not count.",
        cases,
        (Column("samples_per_s", "samples/s"),),
        promises=(
            Promise(
                "samples/s over the plain loop's",
                times("samples_per_s", "tarmac", "plain loop"),
                "at least",
                1.0,
            ),
        ),
        packages=("torch", "open_clip_torch", "webdataset"),
        ratio="samples_per_s",
    ),
)
