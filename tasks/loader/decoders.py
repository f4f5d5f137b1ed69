"""Bytes of a member to a value: RGB image, text, JSON. Nothing here runs code that data brings.

Pictures are decoded to what a viewer would show: upright, and converted by the same function as in the build.
Every fault is a DataError; the caller, who knows the sample, adds where it is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageOps

from tasks.core.errors import DataError
from tasks.dataset import images

FORMATS = ("JPEG", "PNG", "WEBP")
"""Pillow knows many more, and starts Ghostscript for one of them."""


def image_of(members: Mapping[str, bytes]) -> Image.Image:
    """The picture of an image_text sample, whichever member holds it."""
    name = next((name for name in images.MEMBERS if name in members), None)
    if name is None:
        raise DataError(f"no member jpg, png or webp; it has {', '.join(sorted(members)) or 'none'}")
    return decode_image(members[name])


def decode_image(data: bytes) -> Image.Image:
    """An upright picture of mode RGB. Pillow's limit on pixels (about 179 million) holds."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            upright = ImageOps.exif_transpose(picture)
            return images.to_rgb(upright)
    except Image.DecompressionBombError as error:
        raise DataError(f"picture refused: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's plugins raise all three for broken files
        raise DataError(f"picture cannot be decoded: {error}") from error


def decode_text(data: bytes) -> str:
    """UTF-8, strictly: a caption in another encoding would train on garbage."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"text is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from error


def decode_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise DataError(f"JSON cannot be read: {error}") from error
