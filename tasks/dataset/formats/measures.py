"""Measures of a picture that cost microseconds once it is decoded: its perceptual hash, contrast, sharpness
and plain border.

They are taken from the picture's luma, scaled down to at least SIDE pixels on the shorter side, which a
JPEG's decoder gives for less than the colours. The price is that blur of a few pixels in a large photograph
does not show; at the sizes that models are trained on it would not be seen either.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 112
"""The shorter side of a luma picture has at least this many pixels, unless the picture itself is smaller."""
HASHED = 32
"""The side of the square that is hashed, as in imagehash."""
COARSE, FINE = 8, 16
"""The lowest frequencies, in each direction, that make the hash, and those that confirm it."""
FINE_BYTES = (FINE**2 - COARSE**2) // 8
SPECTRUM_BYTES = COARSE**2 - 1
"""The lowest frequencies but the mean, a byte each."""
CONSTANT = 1.5
"""Less contrast than this has a picture of one colour, even after JPEG; no other can be told from it."""
FRAMED = 64
"""A picture with a shorter side than this has no border, because drawings of that size reach their edges."""
PROJECTED = 64
"""Of a volume, at least this many voxels along each side are looked at."""
LAG = 4
"""Sharpness compares differences between neighbours with those between pixels this far apart."""
EVERY = 4
"""Sharpness looks at every fourth row and column."""
PLAIN = 6
"""The most levels of 255 by which the pixels of a bar differ."""
STRAIGHT = 0.9
"""The share of the picture's width over which it begins in the line where a bar ends."""
STEP = 24
"""The least by which half of the picture's pixels there differ from the bar, of 255 levels."""
STRAY = 0.15
"""The most of the last line of a bar that differs from it."""

_COSINES = np.cos(np.pi * np.outer(np.arange(FINE), 2 * np.arange(HASHED) + 1) / (2 * HASHED)).astype(
    np.float32
)
_IS_FINE = np.add.outer(np.arange(FINE) >= COARSE, np.arange(FINE) >= COARSE)
_FLAT = 1e-6


class PictureMeasures(NamedTuple):
    """What is measured of a picture.

    `phash` has 64 bits: pictures that look alike differ in few of them. So it is with the 192 bits of
    `phash_fine`, in which pictures that merely have the same composition differ. `spectrum` holds the lowest
    frequencies as int8, relative to the largest; the correlation of two is nearly that of the pictures.
    `contrast` is the standard deviation of the luma (0 to 127): about 0 for a constant picture. `sharpness`
    is near 0.5 for a sharp photograph and for hard edges, 0.25 where there is no detail of the size of a
    pixel, as in a blurred or enlarged one, and 1 for noise. `border` is the share of the area that plain
    bars at the edges take. All but the contrast are None for a picture
    with a side shorter than HASHED, and the border for one below FRAMED.
    """

    phash: int | None
    phash_fine: bytes | None
    spectrum: bytes | None
    contrast: float
    sharpness: float | None
    border: float | None


def factor(width: int, height: int) -> int:
    """Return how many times smaller (1, 2, 4 or 8) a picture may be decoded to be measured."""
    side = min(width, height)
    return next((times for times in (8, 4, 2) if side >= SIDE * times), 1)


def luma_of(image: Image.Image) -> Image.Image:
    """Return the luma of a decoded picture of mode RGB or L, scaled down as far as measuring allows. Of other
    modes the plain conversion shows what no viewer does: colours below transparency, 16 bits cut to white."""
    grey = image.convert("L")
    times = factor(*grey.size)
    return grey if times == 1 else grey.reduce(times)


def measure(luma: Image.Image) -> PictureMeasures:
    """Measure a picture by its luma (mode L)."""
    small = np.asarray(_square(luma)).astype(np.float32)
    mean = float(small.sum()) / small.size
    contrast = math.sqrt(max(float(np.vdot(small, small)) / small.size - mean * mean, 0.0))
    if min(luma.size) < HASHED:
        return PictureMeasures(None, None, None, contrast, None, None)
    border = _border(small) if min(luma.size) >= FRAMED else None
    return PictureMeasures(*hashes_of(small), contrast, _sharpness(luma), border)


def hashes_of(square: NDArray[np.float32]) -> tuple[int, bytes, bytes]:
    """Return the perceptual hash of a HASHED x HASHED picture, which equals that of `imagehash.phash`: which
    of the lowest frequencies of its cosine transform are above their median, row by row, the first bit
    highest. The second hash is made of the next higher frequencies in the same way; the spectrum follows.

    Source: N. Krawetz, "Looks like it", https://www.hackerfactor.com/blog/?/archives/432-Looks-Like-It.html.
    """
    spectrum = _COSINES @ square @ _COSINES.T
    lowest = spectrum[:COARSE, :COARSE].ravel()
    coarse, fine = _above_median(lowest), _above_median(spectrum[_IS_FINE])
    scale = 127 / max(float(np.abs(lowest[1:]).max()), _FLAT)
    return int.from_bytes(coarse, "big"), fine, np.rint(lowest[1:] * scale).astype(np.int8).tobytes()


def volume_hashes(voxels: NDArray[Any]) -> tuple[int, bytes, bytes]:
    """Return hashes of a volume (D, H, W) that can be compared like those of a picture: the perceptual hash
    of its mean along the second axis, then those of its means along the third and first axes and of its
    middle slice, then the spectrum of the first."""
    some = voxels[tuple(slice(None, None, max(1, side // PROJECTED)) for side in voxels.shape)].astype(
        np.float32
    )
    views = [*(some.mean(axis=axis) for axis in (1, 2, 0)), some[len(some) // 2]]
    (first, _, spectrum), *others = (_hashes_of_view(view) for view in views)
    return first, b"".join(coarse.to_bytes(8, "big") for coarse, _, _ in others), spectrum


def _hashes_of_view(view: NDArray[np.float32]) -> tuple[int, bytes, bytes]:
    low, high = float(view.min()), float(view.max())
    grey = ((view - low) * (255.0 / max(high - low, _FLAT))).astype(np.uint8)
    square = Image.fromarray(grey).resize((HASHED, HASHED), Image.Resampling.BOX)
    return hashes_of(np.asarray(square).astype(np.float32))


def _above_median(values: NDArray[Any]) -> bytes:
    middle = values.size // 2
    ordered = np.partition(values, (middle - 1, middle))
    return np.packbits(values > (ordered[middle - 1] + ordered[middle]) / 2).tobytes()


def _square(luma: Image.Image) -> Image.Image:
    side = min(luma.size)
    times = side // HASHED
    if times > 1:
        luma = luma.reduce(times)  # the mean of each block, which is several times faster than a filter
    return luma if luma.size == (HASHED, HASHED) else luma.resize((HASHED, HASHED), Image.Resampling.LANCZOS)


def _sharpness(luma: Image.Image) -> float:
    pixels = np.asarray(luma)
    near = far = 0.0
    for lines in (pixels[::EVERY], pixels[:, ::EVERY].T):
        some = lines.astype(np.float32)
        near += _energy(some[:, 1:] - some[:, :-1])
        far += _energy(some[:, LAG:] - some[:, :-LAG])
    return math.sqrt(near / far) if far > _FLAT else 0.0


def _energy(differences: NDArray[np.float32]) -> float:
    """Return the mean square."""
    return float(np.vdot(differences, differences)) / max(differences.size, 1)


def _border(square: NDArray[np.float32]) -> float:
    rows, columns = (HASHED - _plain(side) - _plain(side[::-1]) for side in (square, square.T))
    return 1.0 - max(rows, 0) * max(columns, 0) / HASHED**2


def _plain(lines: NDArray[np.float32]) -> int:
    """Return how many of the first lines are a bar: the outermost of one colour, the others mostly of it, as
    where a text stands in it. The picture behind it begins at once and over its whole width, unlike a sky,
    whose end is uneven or gradual, or an object on a plain ground, whose outline is not straight."""
    outermost = lines[0]
    if outermost.max() - outermost.min() > PLAIN:
        return 0
    distance = np.abs(lines - outermost.mean())
    differs = distance > PLAIN
    counts = np.count_nonzero(differs, axis=1)
    width = np.count_nonzero(differs.any(axis=0))
    first = int((counts >= STRAIGHT * width).argmax())
    if first == 0 or width < HASHED // 2 or (counts[: first - 1] > HASHED // 2).any():
        return 0
    if np.count_nonzero((distance[first : first + 2] >= STEP).any(axis=0)) < width // 2:
        return 0
    if counts[first - 1] <= STRAY * HASHED:
        return first
    is_mixed = counts[first - 2] <= STRAY * HASHED  # scaling has put bar and picture into one line
    return first - int(counts[first - 1] > HASHED // 2) if is_mixed else 0
