"""Scikit-learn's handwritten digits, as image files with captions."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from PIL import Image

from tasks.dataset.formats import png

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = (
    "a photo of a {}",
    "a handwritten {}",
    "the digit {}",
    "an image of the number {}",
    "a scan of the digit {}",
    "{}",
)
ENLARGED = 4
"""Each of the 8 x 8 pixels is shown as 4 x 4, so that a person can see the digit; nothing is added."""
DARKEST = 16


def digits(folder: Path) -> int:
    """Write scikit-learn's 1,797 handwritten digits as PNG files beside `captions.csv`; returns how many.

    The table's columns are file, caption and label.
    """
    from sklearn.datasets import load_digits  # here, because it takes a second

    data = load_digits()
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("file", "caption", "label"))
        for number, (pixels, digit) in enumerate(zip(data.images, data.target, strict=True)):
            name = f"digit_{number:04d}.png"
            (folder / name).write_bytes(picture(pixels))
            # the templates in turn over blocks of ten, since the digits come nearly in turn themselves
            caption = TEMPLATES[number // 10 % len(TEMPLATES)].format(DIGITS[digit])
            table.writerow((name, caption, DIGITS[digit]))
    return len(data.target)


def picture(pixels: Any) -> bytes:
    """The 8 x 8 pixels as a PNG of 32 x 32, of the same bytes everywhere."""
    grey = (pixels * (255 / DARKEST)).round().astype("uint8")
    return png.encode(Image.fromarray(grey.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)))
