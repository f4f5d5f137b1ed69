"""Raw files for the benchmarks of building: photographs as far as size and cost of decoding go, and a table.

Smoothed noise over gradients, 256 x 256 pixels, about 29 KB a JPEG, all different. Made once in a folder that
is given, because making them takes longer than building shards of them.
"""

from __future__ import annotations

import csv
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

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
    """Write the files that are not there yet; the table last, so that it says that all are."""
    table = folder / TABLE
    if table.exists() and sum(1 for _ in table.open()) == count + 1:
        return
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, count, PER_FOLDER)
        stops = [min(start + PER_FOLDER, count) for start in starts]
        for _ in pool.map(write_folder, [folder] * len(starts), starts, stops):
            print(".", end="", file=sys.stderr, flush=True)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "caption", "width"])
        writer.writerows(
            [name_of(number), f"a landscape of smooth noise, the {number}th of its kind", SIDE]
            for number in range(count)
        )


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
