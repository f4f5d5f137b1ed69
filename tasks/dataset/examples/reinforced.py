"""Scikit-learn's handwritten digits, reinforced by teachers, in the form of MobileCLIP's DataCompDR.

The teacher is made up, and its embeddings hold what they should: an image's is a fixed random projection of
the pixels that it sees, a caption's that of the mean image of its digit, moved a little by its words. All
sums are of whole numbers, so that embeddings do not depend on the machine.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.dataset.examples.digits import DARKEST, DIGITS, ENLARGED, TEMPLATES
from tasks.dataset.examples.draft import into_empty_folder
from tasks.dataset.formats import png
from tasks.dataset.tar.writer import ShardWriter

SAMPLES = 1797
SHARD = 300
AUGMENTATIONS = 4
CAPTIONS = 4
"""The real one, and synthetic ones."""
WIDTHS = (48, 32)
"""Two teachers, whose embeddings stand side by side, each of length one."""
SEEN = 8
"""The teacher looks at 8 x 8 pixels."""
BRIGHTNESS, CONTRAST = 6, 8
"""Operations by their numbers in MobileCLIP's `paug.json`."""
PERCENT = 100

Ints = NDArray[np.int64]
Augmentation = list[Any]


@into_empty_folder
def reinforced(folder: Path, samples: int = SAMPLES) -> int:
    """Write reinforced pairs as WebDataset tars; returns how many."""
    from sklearn.datasets import load_digits  # here, because it takes a second

    data = load_digits()
    grey = (data.images * (255 / DARKEST)).round().astype(np.uint8)
    images = grey.repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)
    teacher = Teacher(images, data.target)
    for shard, first in enumerate(range(0, samples, SHARD)):
        with ShardWriter(folder / f"{shard:05d}.tar") as writer:
            for number in range(first, min(first + SHARD, samples)):
                members = _members(number, images[number], int(data.target[number]), teacher)
                writer.add(f"{number:06d}", members)
            writer.finish()
    return samples


def _members(number: int, image: NDArray[np.uint8], digit: int, teacher: Teacher) -> dict[str, bytes]:
    turn = number // 10  # over blocks of ten, since the digits come nearly in turn themselves
    captions = [TEMPLATES[(turn + n) % len(TEMPLATES)].format(DIGITS[digit]) for n in range(CAPTIONS)]
    seen = [_augmentation(number, n, len(image)) for n in range(AUGMENTATIONS)]
    content = png.encode(Image.fromarray(image))
    described = {
        "uid": f"digit-{number:04d}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "label": DIGITS[digit],
    }
    embeddings = io.BytesIO()
    np.savez(
        embeddings,
        image_emb=np.stack([teacher.of_image(image, one) for one in seen]),
        text_emb=np.stack([teacher.of_text(digit, caption) for caption in captions]),
    )
    return {
        "png": content,
        "txt": captions[0].encode(),
        "json": json.dumps(described).encode(),
        "syn.json": json.dumps({"syn_text": captions[1:]}).encode(),
        "paug.json": json.dumps({"param_aug": seen}).encode(),
        "npz": embeddings.getvalue(),
    }


def _augmentation(number: int, turn: int, side: int) -> Augmentation:
    """Parameters drawn by the image's number: `[[top, left, height, width], [operation, operation]]`."""
    drawn = hashlib.blake2b(f"{number} {turn}".encode(), digest_size=8).digest()
    height, width = (side - drawn[n] % (side // 4) for n in (0, 1))
    crop = [drawn[2] % (side - height + 1), drawn[3] % (side - width + 1), height, width]
    operations = [
        [operation, (byte % 81 - 40) / PERCENT] if byte % 3 else None
        for operation, byte in ((BRIGHTNESS, drawn[4]), (CONTRAST, drawn[5]))
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
        words = np.frombuffer(hashlib.blake2b(caption.encode(), digest_size=SEEN * SEEN).digest(), np.uint8)
        step = max(int(np.abs(pixels).max()) // 5000, 1)
        return self._embed(pixels + step * (words.astype(np.int64) - 128))

    def _embed(self, pixels: Ints) -> NDArray[np.float32]:
        parts = np.split(pixels @ self._projection, np.cumsum(WIDTHS)[:-1])
        lengths = [max(float(np.sqrt(float((part * part).sum()))), 1.0) for part in parts]
        joined = np.concatenate([part / length for part, length in zip(parts, lengths, strict=True)])
        return joined.astype(np.float32)


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
