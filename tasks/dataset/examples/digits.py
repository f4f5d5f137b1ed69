"""Scikit-learn's handwritten digits as image files with captions."""

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
"""Each of the 8 x 8 pixels becomes 4 x 4 pixels, so that a person can see the digit; nothing is added."""
DARKEST = 16


def digits(folder: Path) -> int:
    """Write scikit-learn's 1,797 handwritten digits as PNG files next to `captions.csv`, and return their
    number.

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
            # the template changes after ten digits, because the digits come nearly in turn
            caption = TEMPLATES[number // 10 % len(TEMPLATES)].format(DIGITS[digit])
            table.writerow((name, caption, DIGITS[digit]))
    return len(data.target)


def picture(pixels: Any) -> bytes:
    """Return the 8 x 8 pixels as a PNG of 32 x 32 pixels, with the same bytes on every machine."""
    grey = (pixels * (255 / DARKEST)).round().astype("uint8")
    return png.encode(Image.fromarray(grey.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)))
