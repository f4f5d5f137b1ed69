"""Cuts a box out of an encoded picture and resizes it, in the least time that keeps its pixels.

The header gives the size, so the box is known before anything is decoded. torch resizes bytes in a sixth of
Pillow's time, to pixels that differ by 1 of 255 in one of a thousand. A JPEG at least three times as large as
wanted is decoded at a reduced size: the edges of the box move by a third of a resulting pixel at most (by one
in a picture that its EXIF turns), and pixels differ by 5 of 255 in one of a thousand. That is good for
training; evaluation takes Pillow's own pixels (`decoders.image_of`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode

from tasks.dataset.formats.pixels import REDUCTIONS, Box, EncodedImage
from tasks.loader.decoders import decode_pixels

SPARE = 1.5
"""A reduced picture stays at least this many times as large as wanted. At 1 it would lose details, because
libjpeg's reduction filters less well than the resizing that follows."""


def cut(image: EncodedImage, box: Box, size: Sequence[int], mode: InterpolationMode) -> Tensor:
    """Return the box resized to `size` (height, width), bicubic or bilinear: [height, width, 3] uint8."""
    factor = reduction(box, size)
    pixels = decode_pixels(image, factor)
    if pixels.shape[:2] != image.size[::-1]:
        box = _reduced(box, factor)
    top, left, height, width = box
    part = torch.from_numpy(pixels)[top : top + height, left : left + width]
    return resized(part, size, mode)


def resized(pixels: Tensor, size: Sequence[int], mode: InterpolationMode) -> Tensor:
    """Resize [height, width, 3] uint8, with antialiasing."""
    if pixels.shape[:2] == tuple(size):
        return pixels.contiguous()
    planes = pixels[None].permute(0, 3, 1, 2)
    found = interpolate(planes, tuple(size), mode=mode.value, antialias=True)
    return found[0].permute(1, 2, 0).contiguous()


def reduction(box: Box, size: Sequence[int]) -> int:
    """Return how much smaller a picture may be decoded whose box is wanted at `size` (height, width)."""
    sides = min(box.height / size[0], box.width / size[1])
    return next((factor for factor in REDUCTIONS if factor * SPARE <= sides), 1)


def _reduced(box: Box, factor: int) -> Box:
    """Return the box in a picture that is `factor` times smaller, whose last row and column are completed."""
    top, left = round(box.top / factor), round(box.left / factor)
    bottom, right = round((box.top + box.height) / factor), round((box.left + box.width) / factor)
    return Box(top, left, bottom - top, right - left)
