"""Scikit-learn's handwritten digits, reinforced by teachers, in the form of MobileCLIP's DataCompDR."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.dataset.examples.digits import DARKEST, DIGITS, ENLARGED, TEMPLATES
from tasks.dataset.examples.draft import is_taken, whole
from tasks.dataset.examples.teacher import Teacher, augmentation
from tasks.dataset.examples.torch_zip import to_pth_gz
from tasks.dataset.formats import png
from tasks.dataset.tar.writer import ShardWriter

SHARD = 300
AUGMENTATIONS = 4
CAPTIONS = 4
"""The real one, and synthetic ones."""


def reinforced(path: Path) -> int:
    """Write 1,797 reinforced pairs as WebDataset tars, by turns with `npz` and `pth.gz`; returns how many.

    A folder with anything in it is left alone, and 0 is returned. The folder appears whole or not at all.
    """
    if is_taken(path):
        return 0
    from sklearn.datasets import load_digits  # here, because it takes a second that the check above saves

    data = load_digits()
    grey = (data.images * (255 / DARKEST)).round().astype(np.uint8)
    images = grey.repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)
    teacher = Teacher(images, data.target)
    with whole(path) as draft:
        for shard, first in enumerate(range(0, len(images), SHARD)):
            with ShardWriter(draft / f"{shard:05d}.tar") as writer:
                for number in range(first, min(first + SHARD, len(images))):
                    members = _members(number, images[number], int(data.target[number]), teacher)
                    arrays = members.pop("arrays")
                    stored = {"npz": _npz(arrays)} if shard % 2 == 0 else {"pth.gz": to_pth_gz(arrays)}
                    writer.add(f"{number:06d}", {**members, **stored})
                writer.finish()
    return len(images)


def _members(number: int, image: NDArray[np.uint8], digit: int, teacher: Teacher) -> dict[str, Any]:
    """The sample's members, its embeddings still as `arrays`."""
    turn = number // 10  # over blocks of ten, since the digits come nearly in turn themselves
    captions = [TEMPLATES[(turn + n) % len(TEMPLATES)].format(DIGITS[digit]) for n in range(CAPTIONS)]
    seen = [augmentation(number, n, len(image)) for n in range(AUGMENTATIONS)]
    content = png.encode(Image.fromarray(image))
    described = {
        "uid": f"digit-{number:04d}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "label": DIGITS[digit],
    }
    return {
        "png": content,
        "txt": captions[0].encode(),
        "json": _json(described),
        "syn.json": _json({"syn_text": captions[1:]}),
        "paug.json": _json({"param_aug": seen}),
        "arrays": {
            "image_emb": np.stack([teacher.of_image(image, one) for one in seen]),
            "text_emb": np.stack([teacher.of_text(digit, caption) for caption in captions]),
        },
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _npz(arrays: dict[str, NDArray[np.float32]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()
