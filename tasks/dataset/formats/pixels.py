"""Decodes an image to RGB pixels by the quickest decoder that takes it.

A JPEG costs simplejpeg 0.7 of Pillow's time, and less where it is wanted smaller; both are libjpeg-turbo, and
their pixels are equal to the bit at every scale. simplejpeg is stricter: it refuses a file at libjpeg's first
warning, where Pillow may still take it, so what it refuses goes on to Pillow, which has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import ImageRules
from tasks.dataset.formats import images
from tasks.dataset.formats.images import ImageHeader

Pixels = NDArray[np.uint8]
"""[height, width, 3]."""
REDUCTIONS = (8, 4, 2)
"""The factors by which libjpeg can decode a JPEG smaller, directly from its blocks."""

simplejpeg: Any = import_module("simplejpeg") if find_spec("simplejpeg") else None


class Box(NamedTuple):
    """A part of a picture, in its pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class EncodedImage:
    """An image of which only the header is read. `size` is the upright (width, height), or the stored one
    where the image is not to be turned by its EXIF."""

    data: bytes
    header: ImageHeader
    orientation: int

    @property
    def size(self) -> tuple[int, int]:
        width, height = self.header.size
        return (height, width) if self.orientation in images.LYING else (width, height)

    @property
    def suits_simplejpeg(self) -> bool:
        found = self.header.frame
        is_plain = found is not None and found.mode in ("L", "RGB") and found.samples_evenly
        return simplejpeg is not None and is_plain and self.orientation == images.UPRIGHT


def read_header(data: bytes, rules: ImageRules, *, turns: bool = True) -> EncodedImage:
    """Read an image's header; Reject if it is not sound or not within the limits."""
    header = images.inspect(data, rules)
    return EncodedImage(data, header, images.orientation_of(data, header) if turns else images.UPRIGHT)


def pixels_of(image: EncodedImage, factor: int = 1) -> tuple[Pixels, bool]:
    """Return the upright picture in RGB as a viewer would show it, and whether simplejpeg refused it.

    A JPEG is decoded `factor` (1, 2, 4 or 8) times smaller, its sides rounded up; other formats whole. Reject
    if the image is not sound; ValueError for grey of more than 16 bits.
    """
    found = by_simplejpeg(image, factor) if image.suits_simplejpeg else None
    return (found, False) if found is not None else (by_pillow(image, factor), image.suits_simplejpeg)


def by_simplejpeg(image: EncodedImage, factor: int) -> Pixels | None:
    """Return what Pillow would, to the bit; None if the image is refused."""
    width, height = (-(-side // factor) for side in image.size)
    try:
        pixels = simplejpeg.decode_jpeg(
            image.data, "RGB", min_height=height, min_width=width, min_factor=factor
        )
    except MemoryError:
        raise  # a fault of this host, not of the image
    except Exception:  # noqa: BLE001 - Pillow decodes it, or names the fault
        return None
    return pixels if pixels.shape[:2] == (height, width) else None


def by_pillow(image: EncodedImage, factor: int) -> Pixels:
    _, picture = images.decode(image.data, images.ANY_SIZE, factor)
    turned = picture if image.orientation == images.UPRIGHT else images.upright(picture)
    return np.array(images.to_rgb(turned))
