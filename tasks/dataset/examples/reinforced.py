"""Scikit-learn's handwritten digits, reinforced by teachers, in the format of MobileCLIP's DataCompDR.

There are two simple teachers. Each finds the other images that are nearest to the pixels that it gets, embeds
an image by the digits of these, and embeds a caption by its digit, shifted a little by its words. Half of the
captions name no digit or a wrong one, like captions from the web, which is what reinforcement corrects:
synthetic captions name the digit that the first teacher recognises. All sums are of whole numbers, so that
embeddings do not depend on the machine.
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
from tasks.dataset.formats import png
from tasks.dataset.tar.writer import ShardWriter

SAMPLES = 1797
SHARD = 300
AUGMENTATIONS = 4
CAPTIONS = 4
"""Captions per image: the real one and synthetic ones."""
WIDTHS = (48, 32)
"""The widths of the teachers' embeddings, which are concatenated, each with length one."""
KNOWN = ([0, 0, 32, 32], *([top, left, 26, 26] for top in (0, 3, 6) for left in (0, 3, 6)))
"""The crops in which the teachers know each image."""
NEIGHBOURS = (8, 4)
"""The number of nearest images that each teacher uses."""
DIGIT_WEIGHT = 1 << 10
"""The weight of the digit in a caption's embedding, where its words weigh up to 128."""
LOOK_SIDE = 8
"""The teachers look at 8 x 8 pixels."""
IDENTITY, BRIGHTNESS, CONTRAST = 0, 6, 8
"""Operations by their numbers in MobileCLIP's `paug.json`."""
PERCENT = 100

Ints = NDArray[np.int64]
Rows = NDArray[np.float32]
Augmentation = list[Any]


def reinforced(folder: Path, samples: int = SAMPLES) -> int:
    """Write reinforced pairs as WebDataset tars, and return their number."""
    from sklearn.datasets import load_digits  # here, because it takes a second

    data = load_digits()
    grey = (data.images * (255 / DARKEST)).round().astype(np.uint8)
    images = grey.repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)
    teachers = Teachers(images, data.target)
    for shard, first in enumerate(range(0, samples, SHARD)):
        with ShardWriter(folder / f"{shard:05d}.tar") as writer:
            for number in range(first, min(first + SHARD, samples)):
                members = _members(number, images[number], int(data.target[number]), teachers)
                writer.add(f"{number:06d}", members)
            writer.finish()
    return samples


def _members(number: int, image: NDArray[np.uint8], digit: int, teachers: Teachers) -> dict[str, bytes]:
    captions = [_caption(number, digit), *_described(number, teachers.digit_of(number, image))]
    augmentations = [_augmentation(number, n, len(image)) for n in range(AUGMENTATIONS)]
    content = png.encode(Image.fromarray(image))
    described = {
        "uid": f"digit-{number:04d}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "label": DIGITS[digit],
    }
    embeddings = io.BytesIO()
    np.savez(
        embeddings,
        image_emb=teachers.of_images(number, image, augmentations),
        text_emb=teachers.of_texts(captions),
    )
    return {
        "png": content,
        "txt": captions[0][0].encode(),
        "json": json.dumps(described).encode(),
        "syn.json": json.dumps({"syn_text": [caption for caption, _ in captions[1:]]}).encode(),
        "paug.json": json.dumps({"param_aug": augmentations}).encode(),
        "npz": embeddings.getvalue(),
    }


Caption = tuple[str, int | None]
"""A text, and the digit that it names."""


def _caption(number: int, digit: int) -> Caption:
    """Return a caption as on the web: three of ten are the name of a file, and two name another digit."""
    kind, other = hashlib.blake2b(f"caption {number}".encode(), digest_size=2).digest()
    if kind % 10 < 3:
        return f"IMG_{number:04d}", None
    named = (digit + 1 + other % 9) % len(DIGITS) if kind % 10 < 5 else digit
    return _described(number, named)[0]


def _described(number: int, digit: int) -> list[Caption]:
    turn = number // 10  # the template changes after ten digits, because the digits come nearly in turn
    texts = (TEMPLATES[(turn + n) % len(TEMPLATES)] for n in range(CAPTIONS - 1))
    return [(text.format(DIGITS[digit]), digit) for text in texts]


def _augmentation(number: int, turn: int, side: int) -> Augmentation:
    """Draw parameters from the image's number: `[[top, left, height, width], [operation, operation]]`."""
    drawn = hashlib.blake2b(f"{number} {turn}".encode(), digest_size=8).digest()
    height, width = (side - drawn[n] % (side // 6) for n in (0, 1))
    crop = [drawn[2] % (side - height + 1), drawn[3] % (side - width + 1), height, width]
    operations = [
        [operation, (byte % 81 - 40) / PERCENT] if byte % 3 else [IDENTITY, 0.0]
        for operation, byte in ((BRIGHTNESS, drawn[4]), (CONTRAST, drawn[5]))
    ]
    return [crop, operations]


class Teachers:
    """Two teachers that know all images, grey as (count, side, side), and the digit that each shows."""

    def __init__(self, images: NDArray[np.uint8], digits: Sequence[int]) -> None:
        looks = np.stack([[_look(image, [crop, None]) for crop in KNOWN] for image in images])
        self._looks, self._squares = looks.astype(np.float64), (looks * looks).sum(axis=2)
        self._is_digit = np.equal.outer(digits, np.arange(len(DIGITS))).astype(np.int64)
        random = np.random.default_rng(0)
        self._directions = [random.integers(-64, 65, (len(DIGITS), width)) for width in WIDTHS]

    def of_images(self, number: int, image: NDArray[np.uint8], augmentations: Sequence[Augmentation]) -> Rows:
        """Return the embeddings of an image, one row per augmentation."""
        return self._embed(self._votes(number, image, augmentations))

    def digit_of(self, number: int, image: NDArray[np.uint8]) -> int:
        """Return the digit that the first teacher recognises in the whole image."""
        return int(self._votes(number, image, [[[0, 0, *image.shape], None]])[0].argmax())

    def _votes(
        self, number: int, image: NDArray[np.uint8], augmentations: Sequence[Augmentation]
    ) -> list[Ints]:
        """Return each teacher's votes [augmentations, digits]; the image is not compared with itself."""
        looks = np.stack([_look(image, one) for one in augmentations])
        # exact, because all numbers are whole
        products = looks.astype(np.float64) @ self._looks.reshape(-1, LOOK_SIDE * LOOK_SIDE).T
        products = products.reshape(len(looks), *self._squares.shape).astype(np.int64)
        distances = (self._squares - 2 * products).min(axis=2)
        distances[:, number] = np.iinfo(np.int64).max
        nearest = np.argsort(distances, axis=1, kind="stable")
        votes = (self._is_digit[nearest[:, :count]].sum(axis=1) for count in NEIGHBOURS)
        return [vote * (DIGIT_WEIGHT // count) for vote, count in zip(votes, NEIGHBOURS, strict=True)]

    def of_texts(self, captions: Sequence[Caption]) -> Rows:
        """Return the embeddings of captions: their digits, shifted a little by a hash of their words."""
        known = np.zeros((len(captions), len(DIGITS)), np.int64)
        for row, (text, digit) in zip(known, captions, strict=True):
            drawn = hashlib.blake2b(text.encode(), digest_size=len(DIGITS)).digest()
            row[:] = np.frombuffer(drawn, np.uint8).astype(np.int64) - 128
            if digit is not None:
                row[digit] += DIGIT_WEIGHT
        return self._embed([known for _ in WIDTHS])

    def _embed(self, knowledge: Sequence[Ints]) -> Rows:
        """Map each teacher's [rows, digits] to embeddings [rows, sum of WIDTHS]."""
        joined = []
        for known, directions in zip(knowledge, self._directions, strict=True):
            part = known @ directions
            joined.append(part / np.sqrt((part * part).sum(axis=1, keepdims=True).astype(np.float64)))
        return np.concatenate(joined, axis=1).astype(np.float32)


def _look(image: NDArray[np.uint8], augmentation: Augmentation) -> Ints:
    """Return the pixels of the crop, after its operations, as a vector."""
    (top, left, height, width), operations = augmentation
    middles = 2 * np.arange(LOOK_SIDE) + 1
    rows = top + middles * height // (2 * LOOK_SIDE)
    columns = left + middles * width // (2 * LOOK_SIDE)
    pixels = image[np.ix_(rows, columns)].astype(np.int64).ravel()
    for operation in operations or ():
        if operation[0] != IDENTITY:
            around = 0 if operation[0] == BRIGHTNESS else int(pixels.sum()) // pixels.size
            factor = PERCENT + round(operation[1] * PERCENT)
            pixels = np.clip(around + (pixels - around) * factor // PERCENT, 0, 255)
    return pixels
