"""Makes pictures small enough for a page: scaled-down images, and slices through the middle of CT volumes.

They are always re-encoded, which limits the page's size and drops metadata such as a camera's position.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.core.errors import DataError, UsageError
from tasks.core.pages import image_uri
from tasks.dataset.formats import images
from tasks.dataset.formats.signatures import image_kind
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.geometry import Spacing
from tasks.dataset.formats.volumes.stored import StoredVolume

TINY = 64
"""Pictures with fewer pixels on both sides are shown unscaled, without loss."""
LONGEST = 240
"""Other pictures are scaled down to this many pixels, twice their size on the page."""
MOST_PIXELS = 100_000_000
MOST_BYTES = 14_000
"""The most bytes of one picture, so that hundreds fit a page; JPEG quality is lowered until it fits."""
QUALITIES = (80, 60, 40, 20)
WINDOWS: Mapping[str, tuple[int, int]] = {"lung": (-600, 1500), "soft tissue": (40, 400)}
"""The usual windows, as level and width in HU; values outside are black or white."""
LONGEST_SLICE, SHORTEST_SLICE = 200, 8
"""Pixels of a slice's longer side, and the least of any side, however flat the volume is."""
PLANES = (("axial", "z", "y", "x"), ("coronal", "y", "z", "x"), ("sagittal", "x", "z", "y"))
"""Each plane with the axis across it, the axis that runs down, and the axis that runs to the right."""
CUBES: Spacing = (1.0, 1.0, 1.0)
Rectangle = tuple[float, float, float, float]


class NotShown(DataError):
    """The page cannot show a member, although nothing may be wrong with it."""


@dataclass(frozen=True)
class Picture:
    """A data URI, and the width and height of the original picture in pixels."""

    uri: str
    width: int
    height: int
    alt: str
    label: str = ""
    crops: tuple[Rectangle, ...] = ()
    """Rectangles (x, y, width, height) to draw over it, in pixels of the original."""

    @property
    def is_tiny(self) -> bool:
        return max(self.width, self.height) < TINY


def thumbnail(data: bytes, alt: str, crops: tuple[Rectangle, ...] = ()) -> Picture:
    """Return a small picture of a stored image; DataError if it cannot be decoded or is too large to show.

    An image with crops is not turned upright, because crops refer to the image as stored.
    """
    image, width, height = open_image(data, LONGEST, turns=not crops)
    return replace(encode(image, alt), width=width, height=height, crops=crops)


def open_image(data: bytes, longest: int, *, turns: bool = True) -> tuple[Image.Image, int, int]:
    """Return a stored image as RGB, and its width and height as they are shown; DataError as `thumbnail`. A
    JPEG is decoded at a fraction of its size if `longest` pixels are left."""
    kind = image_kind(data)
    if kind is None:
        raise DataError("the image has the signature of no image format")
    try:
        image = images.DECODERS[kind](io.BytesIO(data))
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise NotShown(f"the image is too large to be shown: {width} x {height}")
        image.draft(None, (2 * longest, 2 * longest))
        lies_wide = image.width > image.height
        upright = images.upright(image) if turns else image
        if (upright.width > upright.height) != lies_wide:
            width, height = height, width
        return images.to_rgb(upright), width, height
    except MemoryError:
        raise  # a fault of this host, not of the image
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise anything on torn bytes
        raise DataError(f"the image cannot be decoded: {kind}: {str(error)[:160]}") from None


def encode(
    image: Image.Image, alt: str, label: str = "", longest: int = LONGEST, most_bytes: int = MOST_BYTES
) -> Picture:
    """Encode an image of mode RGB or L: without loss if it is tiny, as a small JPEG otherwise."""
    content = io.BytesIO()
    clean = Image.new(image.mode, image.size)  # drops comments, profiles and positions
    clean.paste(image)
    if max(image.size) < TINY:
        clean.save(content, "PNG", optimize=True)
        return Picture(image_uri(content.getvalue(), "image/png"), *image.size, alt, label)
    clean.thumbnail((longest, longest))
    for quality in QUALITIES:
        content = io.BytesIO()
        clean.save(content, "JPEG", quality=quality)
        if len(content.getvalue()) <= most_bytes:
            break
    return Picture(image_uri(content.getvalue(), "image/jpeg"), *image.size, alt, label)


def open_scan(name: str, content: bytes) -> StoredVolume:
    """Open the volume in a member without decompressing anything; DataError if it is damaged."""
    try:
        return stored.open_volume(name, content)
    except stored.Damaged as error:
        raise DataError(f"{name} cannot be read: {error}") from None
    except (ModuleNotFoundError, UsageError):
        raise NotShown(f"{name} is not shown: pip install 'tarmac[ct]'") from None


def slices(scan: StoredVolume, axes: str, spacing: Spacing | None, alt: str) -> list[Picture]:
    """Return axial, coronal and sagittal slices through the middle, in each window; DataError if they are
    damaged.

    `axes` names the axes in order, such as zyx, and `spacing` is the distance of voxels along each in mm;
    without it voxels are shown as cubes. Only chunks that the three slices touch are decompressed.
    """
    with _damage_named():
        planes = list(planes_of(scan, axes, spacing or CUBES))
    return [
        encode(_grey(plane, sides, window), f"{alt}, {name}, {tissue} window", f"{name}, {tissue}")
        for tissue, window in WINDOWS.items()
        for name, plane, sides in planes
    ]


def middle_slice(scan: StoredVolume, axes: str, spacing: Spacing | None) -> Image.Image:
    """Return the axial slice through the middle in the first window, as `slices` shows it."""
    with _damage_named():
        _, plane, sides = next(planes_of(scan, axes, spacing or CUBES))
    return _grey(plane, sides, next(iter(WINDOWS.values())))


@contextmanager
def _damage_named() -> Iterator[None]:
    try:
        yield
    except stored.Damaged as error:
        raise DataError(f"the volume cannot be read: {error}") from None


def _grey(plane: NDArray[Any], sides: tuple[int, int], window: tuple[int, int]) -> Image.Image:
    """Return voxels in a window (level, width) as an image of these sides."""
    level, width = window
    grey = (np.asarray(plane, np.float64) - (level - width / 2)) * (255 / width)
    image = Image.fromarray(np.ascontiguousarray(np.clip(np.rint(grey), 0, 255).astype(np.uint8)))
    return image.resize(sides, Image.Resampling.BICUBIC)


def planes_of(
    scan: StoredVolume, axes: str, spacing: Spacing
) -> Iterator[tuple[str, NDArray[Any], tuple[int, int]]]:
    """Yield each plane's name, its voxels in the radiological view, and its (width, height) in pixels.

    A volume's axes run towards the head, the patient's left and the back. So z is flipped to put the head on
    top, the patient's left is on the right, and an axial slice is seen from the feet.
    """
    extent = [side * distance for side, distance in zip(scan.shape, spacing, strict=True)]
    for name, *letters in PLANES:
        across, down, right = (axes.index(letter) for letter in letters)
        crop = list(stored.whole(scan))
        middle = scan.shape[across] // 2
        crop[across] = slice(middle, middle + 1)
        plane = stored.read_crop(scan, (crop[0], crop[1], crop[2])).transpose(across, down, right)[0]
        scale = LONGEST_SLICE / max(extent[right], extent[down])
        width, height = (max(SHORTEST_SLICE, math.ceil(extent[axis] * scale)) for axis in (right, down))
        yield name, plane[::-1] if letters[1] == "z" else plane, (width, height)
