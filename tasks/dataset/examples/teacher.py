"""A made-up teacher of handwritten digits, whose embeddings hold what they should.

An image's embedding is a fixed random projection of the pixels that it sees; a caption's is that of the mean
image of its digit, moved a little by its words. All sums are of whole numbers, so that embeddings do not
depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTHS = (48, 32)
"""Two teachers, whose embeddings stand side by side, each of length one."""
SEEN = 8
"""It looks at 8 x 8 pixels."""
BRIGHTNESS, CONTRAST = 6, 8
"""Operations by their numbers in MobileCLIP's `paug.json`."""
PERCENT = 100

Ints = NDArray[np.int64]
Augmentation = list[Any]


def augmentation(number: int, turn: int, side: int) -> Augmentation:
    """Parameters drawn by the image's number: `[[top, left, height, width], [operation, operation]]`."""
    drawn = blake2b(f"{number} {turn}".encode(), digest_size=8).digest()
    height, width = (side - drawn[n] % (side // 4) for n in (0, 1))
    crop = [drawn[2] % (side - height + 1), drawn[3] % (side - width + 1), height, width]
    operations = [
        [number_of, (byte % 81 - 40) / PERCENT] if byte % 3 else None
        for number_of, byte in ((BRIGHTNESS, drawn[4]), (CONTRAST, drawn[5]))
    ]
    return [crop, operations]


class Teacher:
    """Knows the images of every digit, grey, as (count, side, side)."""

    def __init__(self, images: NDArray[np.uint8], digits: Sequence[int]) -> None:
        seen = np.stack([_look(image, [[0, 0, *image.shape], None]) for image in images])
        self._mean = seen.sum(axis=0) // len(seen)
        random = np.random.default_rng(0)
        self._projection: Ints = random.integers(-64, 65, (SEEN * SEEN, sum(WIDTHS)))
        self._of_digit = {
            int(digit): (seen[np.equal(digits, digit)] - self._mean).sum(axis=0) for digit in set(digits)
        }

    def of_image(self, image: NDArray[np.uint8], seen_as: Augmentation) -> NDArray[np.float32]:
        return self._embed(_look(image, seen_as) - self._mean)

    def of_text(self, digit: int, caption: str) -> NDArray[np.float32]:
        pixels = self._of_digit[digit]
        words = np.frombuffer(blake2b(caption.encode(), digest_size=SEEN * SEEN).digest(), np.uint8)
        step = max(int(np.abs(pixels).max()) // 5000, 1)
        return self._embed(pixels + step * (words.astype(np.int64) - 128))

    def _embed(self, pixels: Ints) -> NDArray[np.float32]:
        projected = pixels @ self._projection
        parts = np.split(projected, np.cumsum(WIDTHS)[:-1])
        lengths = [max(float(np.sqrt(float((part * part).sum()))), 1.0) for part in parts]
        return np.concatenate([part / length for part, length in zip(parts, lengths, strict=True)]).astype(
            "f4"
        )


def _look(image: NDArray[np.uint8], seen_as: Augmentation) -> Ints:
    """The pixels that the crop shows, after its operations, in a row."""
    (top, left, height, width), operations = seen_as
    middles = 2 * np.arange(SEEN) + 1
    rows = top + middles * height // (2 * SEEN)
    columns = left + middles * width // (2 * SEEN)
    pixels = image[np.ix_(rows, columns)].astype(np.int64).ravel()
    for operation in operations or ():
        if operation is not None:
            around = 0 if operation[0] == BRIGHTNESS else int(pixels.sum()) // pixels.size
            factor = PERCENT + round(operation[1] * PERCENT)
            pixels = np.clip(around + (pixels - around) * factor // PERCENT, 0, 255)
    return pixels
