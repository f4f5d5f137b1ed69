"""Decodes an image to RGB pixels by the quickest decoder that takes it.

A JPEG costs simplejpeg 0.7 of Pillow's time, and less where it is wanted smaller; both are libjpeg-turbo, and
their pixels are equal to the bit at every scale. simplejpeg is stricter: it refuses a file at libjpeg's first
warning, where Pillow may still take it, so what it refuses goes on to Pillow, which has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import ImageRules
from tasks.dataset.formats import images
from tasks.dataset.formats.images import ImageHeader

Pixels = NDArray[np.uint8]
"""[height, width, 3]."""
REDUCTIONS = (8, 4, 2)
"""How many times smaller libjpeg decodes a JPEG without a detour over all its pixels."""

simplejpeg: Any = import_module("simplejpeg") if find_spec("simplejpeg") else None


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
    def takers(self) -> tuple[str, ...]:
        """The names of the DECODERS that are tried, in turn."""
        found = self.header.frame
        is_simple = found is not None and found.mode in ("L", "RGB") and found.samples_evenly
        if simplejpeg is not None and is_simple and self.orientation == images.UPRIGHT:
            return tuple(DECODERS)
        return ("pillow",)


def read_header(data: bytes, rules: ImageRules, *, turns: bool = True) -> EncodedImage:
    """Read an image's header; Reject if it is not sound or not within the limits."""
    header = images.inspect(data, rules)
    return EncodedImage(data, header, images.orientation_of(data, header) if turns else images.UPRIGHT)


def pixels_of(image: EncodedImage, factor: int = 1) -> tuple[Pixels, str]:
    """Return the upright picture in RGB as a viewer would show it, and which of the DECODERS decoded it.

    A JPEG is decoded `factor` (1, 2, 4 or 8) times smaller, its sides rounded up; other formats whole. Reject
    if the image is not sound; ValueError for grey of more than 16 bits.
    """
    for name in image.takers:
        pixels = DECODERS[name](image, factor)
        if pixels is not None:
            return pixels, name
    raise AssertionError("Pillow returns pixels, or raises")


def _by_simplejpeg(image: EncodedImage, factor: int) -> Pixels | None:
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


def _by_pillow(image: EncodedImage, factor: int) -> Pixels:
    _, picture = images.decode(image.data, images.ANY_SIZE, factor)
    turned = picture if image.orientation == images.UPRIGHT else images.upright(picture)
    return np.array(images.to_rgb(turned))


DECODERS: Mapping[str, Callable[[EncodedImage, int], Pixels | None]] = {
    "simplejpeg": _by_simplejpeg,
    "pillow": _by_pillow,
}
"""In the order in which they are tried. Each returns the same pixels, or None where it refuses the image."""
