"""Steps a second of a CLIP that learns from teachers, beside a plain PyTorch loop over webdataset.

The plain loop is put together as MobileCLIP's trainer is: webdataset shuffles, decodes and hands samples to a
function that draws an augmentation, replays it by torchvision, and picks rows of the embeddings; a DataLoader
batches them; the loss multiplies out every pair of features in both directions. Model, batch, optimizer,
shards and number of workers are the same; ours compares every sample's CRC32C besides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from torch.nn import functional
from torchvision.transforms import InterpolationMode, Normalize
from torchvision.transforms import functional as images
from torchvision.transforms.autoaugment import _apply_op

from tasks.core.config import load_config
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.examples.reinforced import reinforced
from tasks.loader.feed import Data, Feed
from tasks.models import recipes
from tasks.models.clip.openclip import open_clip
from tasks.training.devices import Device
from tasks.training.step import Step
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, times
from tests.conftest import ROOT

SKIPPED, BATCH, WORKERS = 5, 64, 1
NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color"),
    *("Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def ours(config: Config, version: Path, workers: int) -> Iterator[None]:
    """A step each time."""
    assert config.train is not None
    recipe = recipes.load_recipe(config.train)
    torch.manual_seed(0)
    step = Step(recipe, recipe.build_model(), config.train, Device(torch.device("cpu"), "fp32"))
    with Feed.of(config, [Data(version)], recipe, workers=workers).train() as batches:
        for number, batch in enumerate(batches):
            step(number, batch)
            yield


def prepared(sample: dict[str, Any], size: int, tokenize: Any, normalise: Normalize) -> tuple[Any, ...]:
    """As MobileCLIP's trainer prepares a sample."""
    views = sample["paug.json"]["param_aug"]
    view = np.random.randint(len(views))
    (top, left, height, width), operations = views[view]
    picture = sample["png"].convert("RGB")
    picture = images.resized_crop(picture, top, left, height, width, [size, size], InterpolationMode.BICUBIC)
    for number, magnitude in [operation for operation in operations or () if operation is not None]:
        picture = _apply_op(picture, NAMES[number], magnitude, InterpolationMode.NEAREST, None)
    captions = sample["syn.json"]["syn_text"]
    caption = np.random.randint(len(captions))
    known = {name: torch.tensor(rows) for name, rows in sample["npz"].items()}
    return (
        normalise(images.to_tensor(picture)),
        tokenize(sample["txt"])[0],
        tokenize(captions[caption])[0],
        known["image_emb"][view],
        known["text_emb"][0],
        known["text_emb"][1 + caption],
    )


def theirs(config: Config, version: Path, workers: int) -> Iterator[None]:
    """A step each time."""
    assert config.train is not None
    train, described = config.train, recipes.load_recipe(config.train)
    settings: Any = described.preprocessing  # type: ignore[attr-defined]
    name = train.model["name"].replace("/", "-")
    normalise = Normalize(settings.mean, settings.std)
    size = settings.size if isinstance(settings.size, int) else settings.size[0]
    prepare = partial(prepared, size=size, tokenize=open_clip.get_tokenizer(name), normalise=normalise)
    tars = sorted(map(str, (version / "train").glob("*.tar")))
    shards = webdataset.WebDataset(tars, resampled=True, shardshuffle=False, nodesplitter=None)
    samples = shards.shuffle(500).decode("pilrgb").map(prepare).batched(train.batch_size, partial=False)
    loader = webdataset.WebLoader(samples, batch_size=None, num_workers=workers)
    torch.manual_seed(0)
    model = described.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.2, betas=(0.9, 0.95), eps=1e-6)
    for image, text, synthetic, known_image, known_text, known_synthetic in loader:
        optimizer.zero_grad()
        features = model.encode_image(image, normalize=True)  # type: ignore[operator]
        both = model.encode_text(torch.cat([text, synthetic]), normalize=True)  # type: ignore[operator]
        scale = model.logit_scale.exp()  # type: ignore[union-attr, operator]
        pairs = zip(both.chunk(2), (known_text, known_synthetic), strict=True)
        losses = [plain_loss(train.model, scale, features, one, known_image, known) for one, known in pairs]
        torch.stack(losses).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, np.log(100))  # type: ignore[union-attr, operator]
        yield


def plain_loss(options: Any, scale: Any, image: Any, text: Any, known_image: Any, known_text: Any) -> Any:
    weights, total = options["loss_weights"], 0.0
    labels = torch.arange(len(image))
    widths = [teacher["width"] for teacher in options["teachers"]]
    for one, other, knows, known in (
        (image, text, known_image, known_text),
        (text, image, known_text, known_image),
    ):
        logits = scale * one @ other.T
        parts = zip(options["teachers"], knows.split(widths, 1), known.split(widths, 1), strict=True)
        taught = [(teacher["logit_scale"] * a @ b.T).softmax(dim=1) for teacher, a, b in parts]
        target = torch.stack(taught).sum(dim=0) / len(widths)
        distilled = -(target * logits.log_softmax(dim=1)).sum(dim=1).mean()
        contrasted = functional.cross_entropy(logits, labels)
        total += (weights["contrastive"] * contrasted + weights["distillation"] * distilled) / 2
    return total


def given(folder: Path) -> Config:
    """The example's config, its raw data and its dataset in the folder."""
    changes = [
        f"dataset.output={folder}/data",
        f"dataset.source.path={folder}/raw",
        f"train.batch_size={BATCH}",
    ]
    return load_config(ROOT / "configs/reinforced-clip.yaml", [*changes, "train.model.name=tarmac/digits"])


def trained(way: str, folder: str, steps: int) -> Row:
    torch.set_num_threads(1)
    config = given(Path(folder))
    loop = ours if way == "tarmac" else theirs
    with closing(loop(config, build(config).version, WORKERS)) as taken:  # type: ignore[type-var]
        for _ in range(SKIPPED):
            next(taken)
        began = time.perf_counter()
        for _ in range(steps):
            next(taken)
        return {"samples_per_s": steps * BATCH / (time.perf_counter() - began)}


def cases(setup: Setup) -> Iterator[Case]:
    folder = setup.new_folder()
    (folder / "raw").mkdir()
    reinforced(folder / "raw")
    build(given(folder))
    ways = ("tarmac", "plain loop")
    yield Case("digits", {way: call(trained, way, folder, setup.sized(50, 5)) for way in ways})


BENCHMARKS = (
    Benchmark(
        "reinforced",
        "Training on reinforced data",
        "Steps of a small CLIP that learns from teachers, with loading, one worker and one thread, beside a plain PyTorch "
        "loop over webdataset that is put together as MobileCLIP's trainer is, with the same model, shards and batch of 64.",
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
        packages=("torch", "torchvision", "webdataset", "open_clip_torch"),
        ratio="samples_per_s",
    ),
)
