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
from PIL import Image, ImageCms, ImageDraw, ImageEnhance, ImageFilter, ImageOps
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
    width, height = picture.size
    framed = Image.new("RGB", picture.size, "white")
    framed.paste(picture.resize((width, height * 5 // 8)), (0, height // 8))
    ImageDraw.Draw(framed).text((width // 4, height - height // 7), "stock.example", fill="black")
    return jpeg(framed)


def _animated(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "WEBP", save_all=True, append_images=[picture.rotate(90)], duration=200)
    return file.getvalue()


def _other_profile(picture: Image.Image) -> bytes:
    return jpeg(picture, icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes())


def _smaller(picture: Image.Image, part: int, of: int) -> Image.Image:
    width, height = (max(side * part // of, 1) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _enlarged(picture: Image.Image) -> bytes:
    return jpeg(_smaller(picture, 1, 8).resize(picture.size, Image.Resampling.BICUBIC))


def _blurred(picture: Image.Image) -> bytes:
    """Blur as far as it shows at the size that models look at: by the 32nd part of the shorter side."""
    return jpeg(picture.filter(ImageFilter.GaussianBlur(min(picture.size) / 32)))


GERMAN = (
    "ein alter Mann sitzt auf einer Bank im Park und liest die Zeitung",
    "zwei Kinder spielen am Strand mit einem roten Ball in der Sonne",
    "der Hund läuft über die nasse Straße und bellt laut den Postboten an",
    "eine Frau schneidet in der Küche frisches Gemüse für das Abendessen",
)
PLANTS: dict[str, Plant] = {
    "exact copies": Plant("samples.duplicated", _copy(lambda _, sample: sample.content), adds=True),
    "near copies": Plant(
        "samples.duplicated", _copy(lambda picture, _: jpeg(_smaller(picture, 4, 5), 75)), adds=True
    ),
    "one colour": Plant(
        "images.constant",
        _picture(lambda picture: jpeg(Image.new("RGB", picture.size, (200, 30, 30)))),
    ),
    "blurred": Plant("images.blurred", _picture(_blurred)),
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
        "captions.repeated",
        _caption(lambda *_: "a nice view of the scenery"),
        count=30,
        also=frozenset({"captions.boilerplate"}),  # of the few other captions, which are made by a pattern
    ),
    "another language": Plant(
        "captions.language", _caption(lambda _, number: f"{GERMAN[number % 4]} {number}")
    ),
    "long captions": Plant(
        "text.truncated", _caption(lambda sample, _: f"{sample.caption} and then some more " * 12)
    ),
}
"""Each kind by its name."""


FOUND_AS = {
    "one colour": ("pictures", "constant"),
    "blurred": ("pictures", "blurred"),
    "enlarged": ("pictures", "blurred"),
    "bars with a watermark": ("pictures", "bordered"),
    "CMYK": ("pictures", "cmyk"),
    "another colour profile": ("pictures", "profile"),
    "animations": ("pictures", "animated"),
    "names of files": ("captions", "empty"),
    "boilerplate": ("captions", "boilerplate"),
    "another language": ("captions", "language"),
    "long captions": ("captions", "truncated"),
}
"""Where the assessment holds the samples of a kind; it does not name those with one caption for many."""


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


def all_planted(
    samples: list[Sample], count: int, seed: int
) -> tuple[list[Sample], dict[str, list[str]], dict[str, str]]:
    """Plant every kind in `count` samples of its own; return them all, the names of the planted ones by kind,
    and of each copy the name of its original."""
    samples = random.Random(seed).sample(samples, len(samples))
    names: dict[str, list[str]] = {}
    originals: dict[str, str] = {}
    for place, (kind, plant) in enumerate(PLANTS.items()):
        names[kind] = []
        for number in range(count):
            sample = samples[place * count + number]
            made = plant.change(opened(sample), sample, number)
            if plant.adds:
                made.name = f"{kind.split()[0]}-{made.name}"
                originals[made.name] = sample.name
                samples.append(made)
            else:
                samples[place * count + number] = made
            names[kind].append(made.name)
    return samples, names, originals


def _cut(picture: Image.Image, share: float) -> Image.Image:
    across, down = (round(side * share) for side in picture.size)
    return picture.crop((across, down, picture.width - across, picture.height - down))


def _scaled(picture: Image.Image, share: float) -> Image.Image:
    return picture.resize((max(1, int(picture.width * share)), max(1, int(picture.height * share))))


def _marked(picture: Image.Image) -> Image.Image:
    picture = picture.copy()
    size = picture.width / 12
    text = "stock.example"
    ImageDraw.Draw(picture).text((picture.width / 5, picture.height * 0.8), text, "white", font_size=size)
    return picture


CHANGES: dict[str, Callable[[Image.Image], bytes]] = {
    **{f"JPEG quality {q}": (lambda one, q=q: jpeg(one, q)) for q in (90, 70, 50, 30, 10)},
    **{f"scaled to {s}": (lambda one, s=s: jpeg(_scaled(one, s))) for s in (0.75, 0.5, 0.25)},
    "grey": lambda one: jpeg(one.convert("L")),
    "brighter by 20 %": lambda one: jpeg(ImageEnhance.Brightness(one).enhance(1.2)),
    "contrast + 20 %": lambda one: jpeg(ImageEnhance.Contrast(one).enhance(1.2)),
    "blurred by 2 pixels": lambda one: jpeg(one.filter(ImageFilter.GaussianBlur(2))),
    "watermark": lambda one: jpeg(_marked(one)),
    **{f"each side cut by {s:.0%}": (lambda one, s=s: jpeg(_cut(one, s))) for s in (0.01, 0.02, 0.05, 0.1)},
    **{
        f"border of {s:.0%}": (lambda one, s=s: jpeg(ImageOps.expand(one, round(min(one.size) * s), "white")))
        for s in (0.01, 0.02, 0.05)
    },
    "turned by 1 degree": lambda one: jpeg(one.rotate(1, Image.Resampling.BICUBIC)),
    "mirrored": lambda one: jpeg(ImageOps.mirror(one)),
}
"""What may be done to a copy, from little to much."""
