"""Real photographs cut into tiles with a caption each, and kinds of bad data that are planted among them."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageDraw, ImageFilter
from skimage import data as photos
from sklearn.datasets import load_sample_image

SIDE = 160
NAMES = (
    "astronaut",
    "chelsea",
    "coffee",
    "rocket",
    "hubble_deep_field",
    "retina",
    "immunohistochemistry",
    "brick",
    "gravel",
    "grass",
    "coins",
)
PLACES = (
    "on the left",
    "in the middle",
    "on the right",
    "near the upper edge",
    "close to the lower edge",
    "far away",
)
OPENINGS = (
    "",
    "",
    "",
    "close view of",
    "detail with",
    "we see",
    "part of",
    "look at",
    "here:",
    "the scene shows",
)
MOODS = (
    "",
    "",
    "in soft light",
    "on a calm day",
    "with strong shadows",
    "as seen by a visitor",
    "in early spring",
    "at noon",
    "before the rain",
    "and nothing else",
    "from above",
    "while nobody watches",
)
THINGS = {
    "astronaut": "a smiling woman in an orange space suit",
    "chelsea": "a tabby cat with green eyes looking up",
    "coffee": "a cup of espresso with a spoon on a saucer",
    "rocket": "a rocket that stands on its launch pad",
    "hubble_deep_field": "galaxies in front of a black sky",
    "retina": "blood vessels of the human retina",
    "immunohistochemistry": "stained tissue under a microscope",
    "brick": "a wall made of red bricks",
    "gravel": "small grey stones on the ground",
    "grass": "green blades of grass in a meadow",
    "coins": "old coins lying on a dark table",
    "china": "a temple with curved roofs in china",
    "flower": "the orange blossom of a dahlia",
}


@dataclass
class Sample:
    """A raw sample: its file's name, bytes and caption, and its class if it has one."""

    name: str
    content: bytes
    caption: str
    label: str = ""


def tiles() -> Iterator[tuple[str, Image.Image]]:
    """Yield distinct pictures of SIDE pixels: windows of photographs that do not overlap."""
    pictures = [(name, getattr(photos, name)()) for name in NAMES]
    pictures += [(name, load_sample_image(f"{name}.jpg")) for name in ("china", "flower")]
    for name, pixels in pictures:
        height, width = pixels.shape[:2]
        for top in range(0, height - SIDE + 1, SIDE):
            for left in range(0, width - SIDE + 1, SIDE):
                window = Image.fromarray(pixels[top : top + SIDE, left : left + SIDE]).convert("RGB")
                if np.asarray(window.convert("L")).std() > 8:
                    yield name, window


def jpeg(picture: Image.Image, quality: int = 92, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def clean() -> list[Sample]:
    """Return a set without any fault: about two hundred pictures, each with a caption of its own."""
    rng = random.Random(0)
    samples: list[Sample] = []
    written: set[str] = set()
    for number, (name, window) in enumerate(tiles()):
        caption = ""
        while not caption or caption in written:
            words = [rng.choice(OPENINGS), THINGS[name], rng.choice(PLACES), rng.choice(MOODS)]
            caption = " ".join(filter(None, words))
        written.add(caption)
        samples.append(Sample(f"{number:04d}.jpg", jpeg(window), caption))
    return samples


def write(samples: list[Sample], folder: Path) -> Path:
    """Write the raw files and their table, in an order that is not that of the pictures; return the table."""
    folder.mkdir(parents=True)
    shuffled = random.Random(1).sample(samples, len(samples))
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        has_labels = any(sample.label for sample in samples)
        rows.writerow(["file", "caption", *(["label"] if has_labels else [])])
        for sample in shuffled:
            (folder / sample.name).write_bytes(sample.content)
            rows.writerow([sample.name, sample.caption, *([sample.label] if has_labels else [])])
    return folder / "captions.csv"


@dataclass
class Plant:
    """A kind of bad data: how it changes some samples, and the code that names it. `adds` says whether the
    changed samples come beside the good ones instead of in their place."""

    code: str
    change: Callable[[Image.Image, Sample, int], Sample]
    adds: bool = False
    count: int = 8
    also: frozenset[str] = field(default_factory=frozenset)


def opened(sample: Sample) -> Image.Image:
    return Image.open(io.BytesIO(sample.content)).convert("RGB")


def _picture(made: Callable[[Image.Image], bytes], suffix: str = "jpg") -> Callable[..., Sample]:
    def change(picture: Image.Image, sample: Sample, number: int) -> Sample:
        return Sample(f"{sample.name[:4]}b.{suffix}", made(picture), sample.caption)

    return change


def _copy(made: Callable[[Image.Image, Sample], bytes]) -> Callable[..., Sample]:
    def change(picture: Image.Image, sample: Sample, number: int) -> Sample:
        return Sample(f"copy{number}.jpg", made(picture, sample), f"{sample.caption}, taken again")

    return change


def _caption(made: Callable[[Sample, int], str]) -> Callable[..., Sample]:
    return lambda picture, sample, number: Sample(sample.name, sample.content, made(sample, number))


def _framed(picture: Image.Image) -> bytes:
    framed = Image.new("RGB", (SIDE, SIDE), "white")
    framed.paste(picture.resize((SIDE, SIDE * 5 // 8)), (0, SIDE // 8))
    ImageDraw.Draw(framed).text((40, SIDE - 22), "stock.example", fill="black")
    return jpeg(framed)


def _animated(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "WEBP", save_all=True, append_images=[picture.rotate(90)], duration=200)
    return file.getvalue()


def _other_profile(picture: Image.Image) -> bytes:
    return jpeg(picture, icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes())


def _enlarged(picture: Image.Image) -> bytes:
    return jpeg(
        picture.resize((20, 20), Image.Resampling.LANCZOS).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    )


GERMAN = (
    "ein alter Mann sitzt auf einer Bank im Park und liest die Zeitung",
    "zwei Kinder spielen am Strand mit einem roten Ball in der Sonne",
    "der Hund läuft über die nasse Straße und bellt laut den Postboten an",
    "eine Frau schneidet in der Küche frisches Gemüse für das Abendessen",
)
PLANTS: dict[str, Plant] = {
    "exact copies": Plant("samples.duplicated", _copy(lambda _, sample: sample.content), adds=True),
    "near copies": Plant(
        "samples.duplicated", _copy(lambda picture, _: jpeg(picture.resize((128, 128)), 75)), adds=True
    ),
    "one colour": Plant(
        "images.constant",
        _picture(lambda picture: jpeg(Image.new("RGB", picture.size, (200, 30, 30)))),
    ),
    "blurred": Plant("images.blurred", _picture(lambda one: jpeg(one.filter(ImageFilter.GaussianBlur(5))))),
    "enlarged": Plant("images.blurred", _picture(_enlarged)),
    "bars with a watermark": Plant("images.bordered", _picture(_framed)),
    "CMYK": Plant("images.colour", _picture(lambda picture: jpeg(picture.convert("CMYK")))),
    "another colour profile": Plant("images.colour", _picture(_other_profile)),
    "animations": Plant("images.animated", _picture(_animated, "webp")),
    "names of files": Plant("captions.meaningless", _caption(lambda _, number: f"IMG_{2000 + number}.JPG")),
    "boilerplate": Plant(
        "captions.boilerplate",
        _caption(lambda sample, _: f"{sample.caption} | Buy this stock photo at example.com"),
        count=20,
    ),
    "one caption for many": Plant(
        "captions.repeated", _caption(lambda *_: "a nice view of the scenery"), count=30
    ),
    "another language": Plant(
        "captions.language", _caption(lambda _, number: f"{GERMAN[number % 4]} {number}")
    ),
    "long captions": Plant(
        "text.truncated", _caption(lambda sample, _: f"{sample.caption} and then some more " * 12)
    ),
}
"""Each kind by its name."""


def planted(kind: str, seed: int = 0) -> tuple[list[Sample], list[str]]:
    """Return the clean set with a kind planted in it, and the names of the planted samples."""
    plant, samples = PLANTS[kind], clean()
    chosen = random.Random(seed).sample(range(len(samples)), plant.count)
    names = []
    for number, place in enumerate(chosen):
        made = plant.change(opened(samples[place]), samples[place], number)
        names.append(made.name)
        if plant.adds:
            samples.append(made)
        else:
            samples[place] = made
    return samples, names
