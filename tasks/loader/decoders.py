"""Bytes of a member to a value: RGB image, text, JSON, array. Nothing here runs code that data brings.

Pictures are decoded to what a viewer would show: the camera's orientation is applied, transparent pictures
lie on white, 16-bit grey is scaled down to 8. That costs a little beside Pillow's plain conversion, which
drops the alpha channel (so hidden colours show) and clips 16 bits to white. Every fault is a DataError; the
caller, who knows the sample, adds where it is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tasks.core.errors import DataError

IMAGE_MEMBERS = ("jpg", "png", "webp")
FORMATS = ("JPEG", "PNG", "WEBP")
"""Pillow knows many more, and starts Ghostscript for one of them."""


def image_of(members: Mapping[str, bytes]) -> Image.Image:
    """The picture of an image_text sample, whichever member holds it."""
    name = next((name for name in IMAGE_MEMBERS if name in members), None)
    if name is None:
        raise DataError(f"no member jpg, png or webp; it has {', '.join(sorted(members)) or 'none'}")
    return decode_image(members[name])


def decode_image(data: bytes) -> Image.Image:
    """An upright picture of mode RGB. Pillow's limit on pixels (about 179 million) holds."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            upright = ImageOps.exif_transpose(picture)
            return _to_rgb(upright)
    except Image.DecompressionBombError as error:
        raise DataError(f"picture refused: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's plugins raise all three for broken files
        raise DataError(f"picture cannot be decoded: {error}") from error


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB" and "transparency" not in picture.info:
        picture.load()
        return picture
    if picture.mode.startswith("I"):
        levels = np.asarray(picture)
        if levels.min() < 0 or levels.max() > 0xFFFF:
            raise ValueError("grey values beyond 16 bits")
        return Image.fromarray((levels >> 8).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
    return picture.convert("RGB")


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


def decode_array(data: bytes) -> NDArray[Any]:
    """The array of an NPY file (NumPy format versions 1 and 2) as a read-only view of the bytes, not a copy.

    The header is parsed as a literal, pickled objects are refused, and nothing is allocated by what it
    claims.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise ValueError(f"NPY format {version[0]}.{version[1]} is not known")
        shape, is_fortran, dtype = readers[version](file)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects, which are never loaded")
        count = int(np.prod(shape, dtype=np.object_)) if shape else 1
        if count * dtype.itemsize != len(data) - file.tell():
            raise ValueError(f"shape {shape} of {dtype} does not fit its {len(data) - file.tell():,} bytes")
        flat: NDArray[Any] = np.frombuffer(data, dtype, count, file.tell())
        return flat.reshape(shape, order="F" if is_fortran else "C")
    except ValueError as error:
        raise DataError(f"array cannot be read: {error}") from error
