"""Scores of small CLIPs trained on quick crops, beside the same trainings on Pillow's exact pixels.

Handwritten digits as PNG of 32 pixels, and tiles of 128 pixels of eighteen photographs as JPEG, which are
decoded at a reduced size for the model's 32 pixels: the hardest case. Which photograph a tile is from is the
class; tiles of the right third of each are held out. Each pair of trainings has the same seed, so the same
model, samples and crops. The score is zero-shot accuracy on Pillow's pixels. A round is a seed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import skimage.data
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from torchvision.transforms.functional import resized_crop

from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version.index import INDEX
from tasks.dataset.version.layout import index_name, shard_name
from tasks.loader.decoders import image_of
from tasks.loader.feed import Data, Feed
from tasks.models.clip import clip
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_options import ClipOptions
from tasks.models.clip.pictures import RandomCrop
from tests.benchmarks.harness import Benchmark, Case, Column, Figures, Promise, Setup, call, round_number

STEPS, BATCH, LEARNING_RATE = 800, 64, 1e-3
PHOTOS = (
    *("astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "immunohistochemistry", "retina"),
    *("camera", "brick", "grass", "gravel", "coins", "page", "clock", "moon", "cell"),
)
TILE, TILES, HELD_OUT = 128, 300, 100
Sample = tuple[bytes, str, str]
"""A picture, its class, and its split."""


class ExactCrop(RandomCrop):
    """The same crops, cut and resized by Pillow."""

    def __call__(self, members: Mapping[str, bytes]) -> torch.Tensor:
        picture = image_of(members)
        box = self._draw(picture.size)
        return torch.from_numpy(
            np.array(resized_crop(picture, *box, self._cut.size, self._cut.interpolation))
        )


def digits() -> Iterator[Sample]:
    found = load_digits()
    for number, (image, digit) in enumerate(zip(found.images, found.target, strict=True)):
        picture = Image.fromarray((image * 15.9).astype(np.uint8)).resize((32, 32)).convert("RGB")
        yield encoded(picture, "PNG"), f"the digit {digit}", "val" if number % 7 == 0 else "train"


def tiles() -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    photos = {name: Image.fromarray(getattr(skimage.data, name)()).convert("RGB") for name in PHOTOS}
    photos |= dict(zip(("temple", "flower"), map(Image.fromarray, load_sample_images().images), strict=True))
    for name, photo in photos.items():
        border = photo.width * 2 // 3
        for split, left, right, count in (
            ("train", 0, border, TILES),
            ("val", border, photo.width, HELD_OUT),
        ):
            for _ in range(count):
                side = int(rng.integers(96, min(right - left, photo.height)))
                x, y = int(rng.integers(left, right - side + 1)), int(rng.integers(photo.height - side + 1))
                tile = photo.crop((x, y, x + side, y + side)).resize((TILE, TILE), Image.Resampling.BICUBIC)
                yield encoded(tile, "JPEG", quality=90), f"a photo of {name}", split


def encoded(picture: Image.Image, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def store(version: Path, samples: Iterator[Sample]) -> list[str]:
    """Write one shard a split, and return the captions of the classes."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample[2], []).append(sample)
    for split, listed in found.items():
        rows = []
        for folder in (version / split, (version / index_name(split)).parent):
            folder.mkdir(parents=True, exist_ok=True)
        with ShardWriter(version / shard_name(split, 0)) as writer:
            for number, (picture, caption, _) in enumerate(listed):
                kind = "png" if picture.startswith(b"\x89PNG") else "jpg"
                span = writer.add(f"s{number:06d}", {kind: picture, "txt": caption.encode()})
                rows.append((0, span.offset, span.length, span.crc32c))
            writer.finish()
        np.save(version / index_name(split), np.array(rows, INDEX))
        (version / split / "sizes.json").write_text(f'{{"000000.tar": {len(listed)}}}')
    return sorted({caption for listed in found.values() for _, caption, _ in listed})


def score(place: str, classes: list[str], crop: str, steps: int) -> dict[str, float]:
    """Train, and return the accuracy on the held-out split."""
    version, seed = Path(place), round_number()
    clip.RandomCrop = {"quick": RandomCrop, "exact": ExactCrop}[crop]  # type: ignore[misc]
    torch.manual_seed(seed)
    recipe = ClipRecipe(ClipOptions(name="tarmac/digits"))
    model = recipe.build_model()
    task = recipe.task(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps)
    feed = Feed((Data(version),), recipe, BATCH, seed=seed, judged_at_once=256)
    with feed.train() as batches:
        for _, batch in zip(range(steps), batches, strict=False):
            loss = task(batch)
            optimizer.zero_grad()
            (loss.sum / loss.weight).backward()
            optimizer.step()
            schedule.step()
            task.after_step()
    with torch.inference_mode(), feed.split("val") as batches:
        model.eval()
        texts = task.embed_texts(classes)
        right = [
            classes[place] == recipe_caption
            for batch in batches
            for place, recipe_caption in zip(
                (task.embed_images(batch) @ texts.T).argmax(1).tolist(),
                captions(version, batch["key"]),
                strict=True,
            )
        ]
    return {"accuracy": sum(right) / len(right)}


def captions(version: Path, keys: list[str]) -> list[str]:
    from tasks.loader.indexed import IndexedReader

    reader = IndexedReader(version, "val")
    return [reader.read(int(key[1:])).members["txt"].decode() for key in keys]


def cases(setup: Setup) -> Iterator[Case]:
    for name, samples in (("digits", digits()), ("photo tiles", tiles())):
        version = setup.new_folder()
        given = version, store(version, samples)
        steps = setup.sized(STEPS, 10)
        yield Case(name, {crop: call(score, *given, crop, steps) for crop in ("quick", "exact")})


def beyond_noise(figures: Figures) -> float:
    """How far both are apart, less what seeds differ by, or a hundredth."""
    one, other = (row["accuracy"] for row in figures.medians.values())
    noise = [high - low for low, high in (span["accuracy"] for span in figures.ranges.values())]
    return max(abs(one - other) - max([0.01, *noise]), 0.0)


BENCHMARKS = (
    Benchmark(
        "pixels",
        "What quick pixels cost",
        "Zero-shot accuracy of small CLIPs that trained on Tarmac's crops, and on the same crops by Pillow. The same "
        "seed gives both the same start, samples and crops; a round is a seed.",
        cases,
        (Column("accuracy", "accuracy", ".3f"),),
        promises=(Promise("apart by more than seeds differ", beyond_noise, "at most", 0.0),),
        packages=("torch", "pillow", "simplejpeg", "numpy"),
        is_warm=False,
        average="mean",
    ),
)
