"""What a teacher has added to a sample: augmentations, synthetic captions, embeddings of both.

MobileCLIP's format (https://github.com/apple/ml-mobileclip-dr): `paug.json` lists the parameters of the
augmentations that the teacher saw, `syn.json` the synthetic captions, `npz` (or `pth.gz` with bfloat16) a
row of `image_emb` an augmentation and a row of `text_emb` a caption, the real one first. A version 2 file may
hold further lists of captions, each with an array `<list>_emb` of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.dataset.modalities.arrays import Arrays, read_npz
from tasks.dataset.modalities.tensors import read_pth_gz
from tasks.dataset.rejects import Reject
from tasks.dataset.texts import is_blank

OPERATIONS = 14
"""Identity, ShearX, ShearY, TranslateX, TranslateY, Rotate, Brightness, Color, Contrast, Sharpness,
Posterize, Solarize, AutoContrast, Equalize."""
FARTHEST = 1 << 30
"""Pixels; no image has a side of as many."""
EMBEDDINGS = {"npz": read_npz, "pth.gz": read_pth_gz}


class Crop(NamedTuple):
    """In pixels of the image as it is stored."""

    top: int
    left: int
    height: int
    width: int


def check(members: Mapping[str, bytes], width: int, height: int) -> dict[str, int]:
    """Counts of augmentations and synthetic captions, and the embeddings' width; Reject for what does not
    fit together, or not the image of `width` x `height` pixels."""
    stored = [suffix for suffix in EMBEDDINGS if suffix in members]
    lacking = [suffix for suffix in ("syn.json", "paug.json") if suffix not in members]
    if lacking or len(stored) != 1:
        fault = f"no {lacking[0]}" if lacking else "needs npz or pth.gz, one of them"
        raise Reject("reinforcement.members", fault)
    of_image = augmentations(members["paug.json"])
    for number, augmentation in enumerate(of_image):
        _check_augmentation(number, augmentation, width, height)
    texts_by_name = captions(members["syn.json"])
    arrays = EMBEDDINGS[stored[0]](bytes(members[stored[0]]))
    of_text = sum(len(texts) for name, texts in texts_by_name.items() if f"{name}_emb" not in arrays)
    rows = {f"{name}_emb": len(texts) for name, texts in texts_by_name.items() if f"{name}_emb" in arrays}
    rows |= {"image_emb": len(of_image), "text_emb": 1 + of_text}
    embedding_width = _check_arrays(arrays, rows, stored[0])
    return {
        "augmentations": len(of_image),
        "synthetic_captions": sum(len(texts) for texts in texts_by_name.values()),
        "embedding_width": embedding_width,
    }


def _object(content: bytes, suffix: str) -> dict[str, Any]:
    try:
        value = json.loads(bytes(content))
    except (ValueError, RecursionError):
        raise Reject("reinforcement.members", f"{suffix} is no valid JSON") from None
    if not isinstance(value, dict):
        raise Reject("reinforcement.members", f"{suffix} is no JSON object")
    return value


def augmentations(content: bytes) -> Sequence[Any]:
    """`param_aug` of a `paug.json`, which is a list, or a list as JSON text; Reject."""
    value = _object(content, "paug.json").get("param_aug")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or not value:
        raise Reject("reinforcement.members", "paug.json: param_aug is no list of augmentations")
    return value


def crop_of(number: int, augmentation: Any) -> Crop:
    """Of the augmentation of that number, which is `[crop, operations]` or `[crop]`; Reject."""
    where = f"augmentation {number}"
    if not isinstance(augmentation, list) or len(augmentation) not in (1, 2):
        raise Reject("reinforcement.crop", f"{where} is no [crop, operations]")
    crop = augmentation[0]
    if not isinstance(crop, list) or len(crop) != 4 or not all(map(_is_pixels, crop)):
        raise Reject("reinforcement.crop", f"{where} has no crop [top, left, height, width] in pixels")
    return Crop(*crop)


def _check_augmentation(number: int, augmentation: Any, width: int, height: int) -> None:
    """Operations are `[[operation, magnitude], …]`, null for one skipped, or null for none at all."""
    where = f"augmentation {number}"
    crop = top, left, high, wide = crop_of(number, augmentation)
    if min(top, left) < 0 or min(high, wide) < 1 or top + high > height or left + wide > width:
        outside = f"{list(crop)} lies outside of {width} x {height} pixels"
        raise Reject("reinforcement.crop", f"{where}: {outside}")
    operations = augmentation[1] if len(augmentation) == 2 else None
    if operations is None:
        return
    if not isinstance(operations, list) or not all(map(_is_operation, operations)):
        raise Reject("reinforcement.members", f"{where}: operations are no [[0 to 13, number], …]")


def _is_pixels(value: Any) -> bool:
    return type(value) is int and abs(value) < FARTHEST


def _is_operation(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        return False
    is_number = type(value[1]) in (int, float) and abs(value[1]) < math.inf
    return 0 <= value[0] < OPERATIONS and is_number


def captions(content: bytes) -> dict[str, Sequence[str]]:
    """The lists of synthetic captions of a `syn.json`, by their names; Reject."""
    named = {
        name: value for name, value in _object(content, "syn.json").items() if name.startswith("syn_text")
    }
    for name, texts in named.items():
        if not isinstance(texts, list) or not texts:
            raise Reject("reinforcement.members", f"syn.json: {name} is no list of captions")
        if not all(isinstance(text, str) and not is_blank(text) for text in texts):
            raise Reject("reinforcement.members", f"syn.json: {name} holds an empty caption")
    if not named:
        raise Reject("reinforcement.members", "syn.json has no syn_text")
    return named


def _check_arrays(arrays: Arrays, rows: Mapping[str, int], suffix: str) -> int:
    """The width that all have; Reject unless each has as many rows as it should, of finite numbers."""
    widths = set()
    for name, expected in rows.items():
        array = arrays.get(name)
        if array is None:
            raise Reject("reinforcement.members", f"{suffix} has no {name}")
        if array.ndim != 2 or array.dtype.kind != "f" or not array.shape[1]:
            raise Reject("reinforcement.rows", f"{name} is {array.dtype} in {array.shape}, no rows of floats")
        if array.shape[0] != expected:
            raise Reject("reinforcement.rows", f"{name} has {array.shape[0]} rows for {expected}")
        if not np.isfinite(array).all():
            raise Reject("reinforcement.rows", f"{name} holds numbers that are not finite")
        widths.add(array.shape[1])
    if len(widths) != 1:
        raise Reject("reinforcement.rows", f"embeddings of different widths: {sorted(widths)}")
    return int(widths.pop())
