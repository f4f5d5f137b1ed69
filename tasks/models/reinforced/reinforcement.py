"""Choose from a reinforced sample one augmentation, one caption and the teachers' embeddings of both.

MobileCLIP's training (https://github.com/apple/ml-mobileclip, training/dr) draws for each sample one stored
augmentation of its image and one synthetic caption, and takes the rows of embeddings that belong to them. The
augmentation is replayed: its crop, in pixels of the image as it is stored, is resized to the student's size,
and RandAugment's operations follow at that size, with the magnitudes that the teachers' images had. The
choice depends on the seed alone. A caption list is drawn first and then one of its captions, so that a short
list counts as much as a long one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from tasks.core.errors import DataError
from tasks.dataset.formats.pixels import EncodedImage
from tasks.dataset.modalities import reinforced
from tasks.dataset.modalities.base import missing
from tasks.dataset.version.rejects import Reject
from tasks.loader.crops import cut
from tasks.loader.decoders import decode_text, open_image, picture_name
from tasks.loader.worker_state import decoding

Embedding = NDArray[np.float32]
"""[width]: the teachers' embeddings side by side, as the dataset holds them."""
Magnitude = float
Operation = Callable[[Image.Image, Magnitude], Image.Image]


@dataclass(frozen=True)
class Caption:
    """A text and the teachers' embeddings of it."""

    text: str
    embedding: Embedding


@dataclass(frozen=True)
class Chosen:
    """The parts of a sample that a step trains on; `picture` is not decoded yet."""

    picture: EncodedImage
    augmentation: Sequence[Any]
    embedding: Embedding
    caption: Caption
    added: Caption | None
    """A synthetic caption in addition to the real one."""


@decoding
def choose(members: Mapping[str, bytes], seed: int, synthetic: Literal["add"] | float = "add") -> Chosen:
    """Draw the choice from the seed; `synthetic` is clip_reinforced's option `synthetic_captions`.

    Raises DataError for members that are missing, do not decode or do not belong together.
    """
    draw = random.Random(seed)
    try:
        if lacking := missing(reinforced.REQUIRED, members):
            raise DataError(f"no member {lacking[0]}; it has {', '.join(sorted(members)) or 'none'}")
        augmentations = reinforced.augmentations(members["paug.json"])
        number = draw.randrange(len(augmentations))
        arrays = reinforced.embeddings(members)
        real = Caption(decode_text(members["txt"]), _row(arrays, "text_emb", 0))
        drawn = _synthetic(reinforced.captions(members["syn.json"]), arrays, draw)
        return Chosen(
            picture=open_image(members[picture_name(members)], turns=False),
            augmentation=augmentations[number],
            embedding=_row(arrays, "image_emb", number),
            caption=drawn if synthetic != "add" and draw.random() < synthetic else real,
            added=drawn if synthetic == "add" else None,
        )
    except Reject as reject:
        raise DataError(f"the reinforcement cannot be read: {reject.detail}") from None


def _synthetic(
    lists: Mapping[str, Sequence[str]], arrays: Mapping[str, NDArray[Any]], draw: random.Random
) -> Caption:
    """Draw a synthetic caption. A list has its own array, or its rows follow those of earlier lists in
    `text_emb`."""
    name = draw.choice(list(lists))
    place = draw.randrange(len(lists[name]))
    text = lists[name][place]
    if f"{name}_emb" in arrays:
        return Caption(text, _row(arrays, f"{name}_emb", place))
    before = list(lists)[: list(lists).index(name)]
    skipped = sum(len(lists[other]) for other in before if f"{other}_emb" not in arrays)
    return Caption(text, _row(arrays, "text_emb", 1 + skipped + place))


def _row(arrays: Mapping[str, NDArray[Any]], name: str, number: int) -> Embedding:
    array = arrays.get(name)
    if array is None or array.ndim != 2 or number >= len(array):
        shape = None if array is None else array.shape
        raise DataError(f"{name} has the shape {shape}, but its row {number} is needed")
    return np.array(array[number], np.float32)


def replay(
    picture: Image.Image | EncodedImage,
    augmentation: Sequence[Any],
    size: Sequence[int],
    interpolation: str,
) -> Image.Image:
    """Apply a stored augmentation at the student's `size` (height, width). A decoded picture is cut as by
    MobileCLIP's code to the bit, an encoded one by `crops`, which is quicker. Neither is turned by its EXIF,
    because the crops count pixels of the image as it is stored.

    Raises DataError for a crop outside the picture and for unknown operations, which every build rejects;
    tars of others that were only indexed may have them.
    """
    try:
        box = reinforced.check_augmentation(0, augmentation, *picture.size)
    except Reject as reject:
        raise DataError(f"paug.json: {reject.detail}") from None
    mode = InterpolationMode(interpolation)
    view: Image.Image
    if isinstance(picture, EncodedImage):
        view = Image.fromarray(cut(picture, box, size, mode).numpy())
    else:
        view = F.resized_crop(picture, *box, list(size), mode)
    for operation in (augmentation[1] if len(augmentation) == 2 else None) or ():
        if operation is not None:
            number, magnitude = operation
            view = OPERATIONS[number](view, magnitude)
    return view


def _sheared(picture: Image.Image, x: float, y: float) -> Image.Image:
    """Shear about the corner, as the policies behind RandAugment do; torchvision takes degrees."""
    angles = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    done: Image.Image = F.affine(picture, 0.0, [0, 0], 1.0, angles, InterpolationMode.NEAREST, center=[0, 0])
    return done


def _moved(picture: Image.Image, x: float, y: float) -> Image.Image:
    done: Image.Image = F.affine(picture, 0.0, [int(x), int(y)], 1.0, [0.0, 0.0], InterpolationMode.NEAREST)
    return done


OPERATIONS: Sequence[Operation] = (
    lambda picture, _: picture,
    lambda picture, magnitude: _sheared(picture, magnitude, 0.0),
    lambda picture, magnitude: _sheared(picture, 0.0, magnitude),
    lambda picture, magnitude: _moved(picture, magnitude, 0.0),
    lambda picture, magnitude: _moved(picture, 0.0, magnitude),
    lambda picture, magnitude: F.rotate(picture, magnitude, InterpolationMode.NEAREST),
    lambda picture, magnitude: F.adjust_brightness(picture, 1.0 + magnitude),
    lambda picture, magnitude: F.adjust_saturation(picture, 1.0 + magnitude),
    lambda picture, magnitude: F.adjust_contrast(picture, 1.0 + magnitude),
    lambda picture, magnitude: F.adjust_sharpness(picture, 1.0 + magnitude),
    lambda picture, magnitude: F.posterize(picture, int(magnitude)),
    lambda picture, magnitude: F.solarize(picture, magnitude),
    lambda picture, _: F.autocontrast(picture),
    lambda picture, _: F.equalize(picture),
)
"""Indexed by the numbers of `paug.json`: Identity, ShearX, ShearY, TranslateX, TranslateY, Rotate,
Brightness, Color, Contrast, Sharpness, Posterize, Solarize, AutoContrast, Equalize, as torchvision's
RandAugment does them."""
