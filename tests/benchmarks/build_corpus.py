"""Raw files for the benchmarks of building: photographs as far as size and cost of decoding go, and a table.

Smoothed noise over gradients, 256 x 256 pixels, about 29 KB a JPEG, all different. Made once in a folder that
lasts, because making them takes longer than building shards of them.
"""

from __future__ import annotations

import csv
import os
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from tests.benchmarks.harness import Setup

TABLE = "captions.csv"
SIDE, SHEET, QUALITY, PER_FOLDER = 256, 1024, 88, 1000


@lru_cache(maxsize=1)
def sheet() -> np.ndarray:
    """A large picture of three scales of noise, from which every image takes a window of its own."""
    rng = np.random.default_rng(0)
    total = np.zeros((SHEET, SHEET, 3))
    for radius, weight in ((24, 2.2), (6, 1.0), (0.9, 0.55)):
        noise = Image.fromarray(rng.integers(0, 256, (SHEET, SHEET, 3), dtype=np.uint8))
        layer = np.asarray(noise.filter(ImageFilter.GaussianBlur(radius)), float)
        total += weight * 50 * (layer - layer.mean()) / layer.std()
    return total


def picture(number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    top, left = rng.integers(0, SHEET - SIDE, 2)
    ramp = np.linspace(*rng.uniform(60, 200, 2), SIDE)[:, None, None]
    return Image.fromarray(
        (ramp + sheet()[top : top + SIDE, left : left + SIDE]).clip(0, 255).astype(np.uint8)
    )


def name_of(number: int) -> str:
    return f"images/{number // PER_FOLDER:03d}/{number:06d}.jpg"


def write_folder(folder: Path, start: int, stop: int) -> None:
    (folder / name_of(start)).parent.mkdir(parents=True, exist_ok=True)
    for number in range(start, stop):
        picture(number).save(folder / name_of(number), "JPEG", quality=QUALITY)


def make(folder: Path, count: int) -> None:
    """Write the files, and the table last."""
    table = folder / TABLE
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, count, PER_FOLDER)
        stops = [min(start + PER_FOLDER, count) for start in starts]
        list(pool.map(write_folder, [folder] * len(starts), starts, stops))
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "caption", "width"])
        writer.writerows(
            [name_of(number), f"a landscape of smooth noise, the {number}th of its kind", SIDE]
            for number in range(count)
        )


def lasting(setup: Setup, usual: int = 20_000, quick: int = 1_000) -> tuple[Path, int]:
    """The folder of a corpus that is made once, and the number of its pictures."""
    samples = setup.sized(usual, quick)
    return setup.lasting(f"corpus-{samples}", partial(make, count=samples)), samples
