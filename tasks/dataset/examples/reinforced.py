"""Scikit-learn's handwritten digits, reinforced by teachers, in the form of MobileCLIP's DataCompDR.

The teachers are two and simple: each looks up which of all other images are nearest to the pixels that it
sees, and embeds an image as the digits that these show, and a caption as its digit, moved a little by its
words. Half of the captions name no digit or another one, as a web's do, which is what reinforcement mends:
the synthetic ones name the digit that the first teacher takes the image for. All sums are of whole numbers,
so that embeddings do not depend on the machine.
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
"""The real one, and synthetic ones."""
WIDTHS = (48, 32)
"""Of the teachers' embeddings, which stand side by side, each of length one."""
KNOWN = ([0, 0, 32, 32], *([top, left, 26, 26] for top in (0, 3, 6) for left in (0, 3, 6)))
"""The crops under which the teachers know each image."""
NEIGHBOURS = (8, 4)
"""How many of the nearest images each teacher asks."""
WORDS = 1 << 10
"""How much the digit counts, where a word counts up to 128."""
SEEN = 8
"""The teachers look at 8 x 8 pixels."""
IDENTITY, BRIGHTNESS, CONTRAST = 0, 6, 8
"""Operations by their numbers in MobileCLIP's `paug.json`."""
PERCENT = 100

Ints = NDArray[np.int64]
Rows = NDArray[np.float32]
Augmentation = list[Any]


def reinforced(folder: Path, samples: int = SAMPLES) -> int:
    """Write reinforced pairs as WebDataset tars; returns how many."""
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
        image_emb=teachers.of_images(number, image, seen),
        text_emb=teachers.of_texts([caption for caption, _ in captions], [said for _, said in captions]),
    )
    return {
        "png": content,
        "txt": captions[0][0].encode(),
        "json": json.dumps(described).encode(),
        "syn.json": json.dumps({"syn_text": [caption for caption, _ in captions[1:]]}).encode(),
        "paug.json": json.dumps({"param_aug": seen}).encode(),
        "npz": embeddings.getvalue(),
    }


Caption = tuple[str, int | None]
"""A text, and the digit that it names."""


def _caption(number: int, digit: int) -> Caption:
    """As captions of the web are: of ten, three are the name of a file, and two name another digit."""
    kind, other = hashlib.blake2b(f"caption {number}".encode(), digest_size=2).digest()
    if kind % 10 < 3:
        return f"IMG_{number:04d}", None
    named = (digit + 1 + other % 9) % len(DIGITS) if kind % 10 < 5 else digit
    return _described(number, named)[0]


def _described(number: int, digit: int) -> list[Caption]:
    turn = number // 10  # over blocks of ten, since the digits come nearly in turn themselves
    texts = (TEMPLATES[(turn + n) % len(TEMPLATES)] for n in range(CAPTIONS - 1))
    return [(text.format(DIGITS[digit]), digit) for text in texts]


def _augmentation(number: int, turn: int, side: int) -> Augmentation:
    """Parameters drawn by the image's number: `[[top, left, height, width], [operation, operation]]`."""
    drawn = hashlib.blake2b(f"{number} {turn}".encode(), digest_size=8).digest()
    height, width = (side - drawn[n] % (side // 6) for n in (0, 1))
    crop = [drawn[2] % (side - height + 1), drawn[3] % (side - width + 1), height, width]
    operations = [
        [operation, (byte % 81 - 40) / PERCENT] if byte % 3 else [IDENTITY, 0.0]
        for operation, byte in ((BRIGHTNESS, drawn[4]), (CONTRAST, drawn[5]))
    ]
    return [crop, operations]


class Teachers:
    """Know the images of every digit, grey, as (count, side, side), and which digit each shows."""

    def __init__(self, images: NDArray[np.uint8], digits: Sequence[int]) -> None:
        seen = np.stack([[_look(image, [crop, None]) for crop in KNOWN] for image in images])
        self._seen, self._squares = seen.astype(np.float64), (seen * seen).sum(axis=2)
        self._is_digit = np.equal.outer(digits, np.arange(len(DIGITS))).astype(np.int64)
        random = np.random.default_rng(0)
        self._directions = [random.integers(-64, 65, (len(DIGITS), width)) for width in WIDTHS]

    def of_images(self, number: int, image: NDArray[np.uint8], seen: Sequence[Augmentation]) -> Rows:
        """A row for each augmentation of the image of that number."""
        return self._embed(self._votes(number, image, seen))

    def digit_of(self, number: int, image: NDArray[np.uint8]) -> int:
        """What the first teacher takes the whole image for."""
        return int(self._votes(number, image, [[[0, 0, *image.shape], None]])[0].argmax())

    def _votes(self, number: int, image: NDArray[np.uint8], seen: Sequence[Augmentation]) -> list[Ints]:
        """[augmentations, digits] of each teacher; the image is not compared with itself."""
        looks = np.stack([_look(image, one) for one in seen])
        products = looks.astype(np.float64) @ self._seen.reshape(-1, SEEN * SEEN).T  # exact: of whole numbers
        products = products.reshape(len(looks), *self._squares.shape).astype(np.int64)
        distances = (self._squares - 2 * products).min(axis=2)
        distances[:, number] = np.iinfo(np.int64).max
        nearest = np.argsort(distances, axis=1, kind="stable")
        return [self._is_digit[nearest[:, :count]].sum(axis=1) * (WORDS // count) for count in NEIGHBOURS]

    def of_texts(self, captions: Sequence[str], digits: Sequence[int | None]) -> Rows:
        """What a caption says beside the digit that it names moves its embedding a little."""
        known = np.zeros((len(captions), len(DIGITS)), np.int64)
        for row, digit in zip(known, digits, strict=True):
            if digit is not None:
                row[digit] = WORDS
        moved = np.stack([_hashed(caption) for caption in captions])
        return self._embed([known + moved for _ in WIDTHS])

    def _embed(self, knowledge: Sequence[Ints]) -> Rows:
        """[rows, digits] of each teacher to [rows, width of all]."""
        joined = []
        for known, directions in zip(knowledge, self._directions, strict=True):
            part = known @ directions
            joined.append(part / np.sqrt((part * part).sum(axis=1, keepdims=True).astype(np.float64)))
        return np.concatenate(joined, axis=1).astype(np.float32)


def _hashed(caption: str) -> Ints:
    drawn = hashlib.blake2b(caption.encode(), digest_size=len(DIGITS)).digest()
    return np.frombuffer(drawn, np.uint8).astype(np.int64) - 128


def _look(image: NDArray[np.uint8], seen_as: Augmentation) -> Ints:
    """The pixels that the crop shows, after its operations, in a row."""
    (top, left, height, width), operations = seen_as
    middles = 2 * np.arange(SEEN) + 1
    rows = top + middles * height // (2 * SEEN)
    columns = left + middles * width // (2 * SEEN)
    pixels = image[np.ix_(rows, columns)].astype(np.int64).ravel()
    for operation in operations or ():
        if operation[0] != IDENTITY:
            around = 0 if operation[0] == BRIGHTNESS else int(pixels.sum()) // pixels.size
            factor = PERCENT + round(operation[1] * PERCENT)
            pixels = np.clip(around + (pixels - around) * factor // PERCENT, 0, 255)
    return pixels
