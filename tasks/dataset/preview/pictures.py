"""Pictures small enough for a page, always encoded anew: that bounds the page, and leaves metadata such as a
camera's position behind."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

from PIL import Image

from tasks.core.errors import DataError
from tasks.core.pages import image_uri
from tasks.dataset.formats import images

TINY = 64
"""Pictures below this many pixels on both sides are shown as they are, pixel by pixel."""
LONGEST = 240
"""Others are scaled down to this many pixels, twice their size on the page."""
MOST_PIXELS = 100_000_000
MOST_BYTES = 14_000
"""Of one picture: JPEG's quality falls until it fits, so that hundreds fit a page."""
QUALITIES = (80, 60, 40, 20)

Box = tuple[float, float, float, float]


class NotShown(DataError):
    """A page cannot show it, although nothing may be wrong with it."""


@dataclass(frozen=True)
class Picture:
    """A data URI with the width and height of the picture that it shows, in that picture's own pixels."""

    uri: str
    width: int
    height: int
    alt: str
    label: str = ""
    crops: tuple[Box, ...] = ()
    """Rectangles (x, y, width, height) to draw over it, in its own pixels."""

    @property
    def is_tiny(self) -> bool:
        return max(self.width, self.height) < TINY


def thumbnail(data: bytes, alt: str, crops: tuple[Box, ...] = ()) -> Picture:
    """A stored image, small; DataError when it cannot be decoded or is too large to be shown.

    A picture with crops is left as it lies in the file, because that is what crops are counted in.
    """
    kind = images.kind_of(data)
    if kind is None:
        raise DataError("the image has the signature of no image format")
    try:
        image = images.DECODERS[kind](io.BytesIO(data))
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise NotShown(f"the image is too large to be shown: {width} x {height}")
        image.draft(None, (2 * LONGEST, 2 * LONGEST))
        lies_wide = image.width > image.height
        upright = image if crops else images.upright(image)
        if (upright.width > upright.height) != lies_wide:
            width, height = height, width
        made = encode(images.to_rgb(upright), alt)
    except MemoryError:
        raise  # of this host, not of the image
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise whatever torn bytes lead them to
        raise DataError(f"the image cannot be decoded: {kind}: {str(error)[:160]}") from None
    return replace(made, width=width, height=height, crops=crops)


def encode(image: Image.Image, alt: str, label: str = "") -> Picture:
    """A picture of mode RGB or L: lossless while tiny, a small JPEG otherwise."""
    content = io.BytesIO()
    clean = Image.new(image.mode, image.size)  # drops comments, profiles and positions
    clean.paste(image)
    if max(image.size) < TINY:
        clean.save(content, "PNG", optimize=True)
        return Picture(image_uri(content.getvalue(), "image/png"), *image.size, alt, label)
    clean.thumbnail((LONGEST, LONGEST))
    for quality in QUALITIES:
        content = io.BytesIO()
        clean.save(content, "JPEG", quality=quality)
        if len(content.getvalue()) <= MOST_BYTES:
            break
    return Picture(image_uri(content.getvalue(), "image/jpeg"), *image.size, alt, label)
