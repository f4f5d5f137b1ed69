"""A map of a version: some of its samples on a grid, so that those which look alike lie near each other.

What a dataset consists of is seen at once: its kinds, their sizes, and what belongs to none of them. Samples
are placed by any vectors (n, d), here by colour and coarse structure of their small pictures. Two dimensions
lose most of what the vectors say, so neighbours on the map are a hint and no proof.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.core.errors import DataError
from tasks.core.screen import Progress
from tasks.dataset.preview.pictures import Picture, encode
from tasks.dataset.preview.tiles import glimpse, legible, origins_of
from tasks.dataset.sample_reader import SampleReader, spread
from tasks.dataset.version.rejects import Reject

MOST = 192
MODALITIES = ("image_text", "reinforced", "chat")
"""Volumes are too large for reading so many of them."""
ASPECT = 4 / 3
"""Columns per row of the grid."""
SIDE, MOST_BYTES = 96, 3_000
"""Pixels of a picture's longer side, twice its size on the page, and the most bytes of one."""
CELLS = 6
"""A picture is described by the mean colours of this many cells along each side."""
LEAST = 4
"""Fewer samples make no map."""

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class MapSpot:
    """A sample on the map: its column and row from 1, and the words that name it. `is_copy` marks one of the
    copies that the quality tab shows."""

    column: int
    row: int
    picture: Picture
    name: str
    split: str
    is_copy: bool


@dataclass(frozen=True)
class LikenessMap:
    spots: Sequence[MapSpot]
    columns: int
    samples: int
    """How many samples the spots were chosen from."""
    splits: Sequence[str]


def likeness_map(
    version: Path,
    samples: Mapping[str, int],
    modality: str,
    copies: Collection[tuple[str, int]],
    progress: Progress,
) -> LikenessMap | None:
    """Place evenly spread samples of all splits; None if too few have a picture. `copies` are those, by split
    and row, to be marked. DataError if a split has no sound index."""
    found = []
    total = sum(samples.values())
    for seen in _seen(version, samples, modality):
        found.append(seen)
        progress(len(found), min(total, MOST), "pictures for the map")
    if len(found) < LEAST:
        return None
    columns, cells = grid_of(np.stack([describe(image) for *_, image in found]))
    spots = [
        MapSpot(
            column + 1,
            row + 1,
            encode(image, name, longest=SIDE, most_bytes=MOST_BYTES),
            name,
            split,
            (split, place) in copies,
        )
        for (split, place, name, image), (column, row) in zip(found, cells.tolist(), strict=True)
    ]
    shown = dict.fromkeys(spot.split for spot in spots)
    return LikenessMap(sorted(spots, key=lambda one: (one.row, one.column)), columns, total, list(shown))


def _seen(
    version: Path, samples: Mapping[str, int], modality: str
) -> Iterator[tuple[str, int, str, Image.Image]]:
    """Yield split, row, name and picture of samples that have one."""
    total = sum(samples.values())
    for split, number in samples.items():
        reader = SampleReader(version, split)
        rows = spread(min(number, len(reader)), max(1, MOST * number // max(total, 1)))
        origins = origins_of(version, split, rows)
        for row in rows:
            with suppress(DataError, Reject):  # the gallery and verify report such samples
                sample = reader.read(row)
                image, *_ = glimpse(sample.members, modality, SIDE)
                image.thumbnail((SIDE, SIDE))
                named = [legible(sample.key, 80), origins.get(row, ""), split]
                yield split, row, ", ".join(filter(None, named)), image


def describe(image: Image.Image) -> Vectors:
    """Return the mean colours of CELLS x CELLS cells of an RGB image, as brightness and two differences of
    colours, which count for more because they vary less."""
    small = image.convert("RGB").resize((CELLS, CELLS), Image.Resampling.BOX)
    red, green, blue = np.moveaxis(np.asarray(small, np.float32) / 255, -1, 0)
    bright = (red + green + blue) / 3
    return np.stack([bright, 2 * (red - green), 2 * (bright - blue)]).ravel()


def grid_of(vectors: Vectors, aspect: float = ASPECT) -> tuple[int, NDArray[np.int64]]:
    """Return the number of columns of a grid, and for each of n vectors (n, d) its cell (column, row) from 0:
    no two share one, and what is alike lies near each other. The same vectors give the same grid."""
    number = len(vectors)
    columns = math.ceil(math.sqrt(number * aspect))
    rows = math.ceil(number / columns)
    cells = np.zeros((number, 2), np.int64)
    _divide(project(vectors), np.arange(number), (0, 0, columns, rows), cells)
    return columns, cells


def project(vectors: Vectors) -> NDArray[np.float64]:
    """Return (n, 2): the vectors' two principal components, the larger one first. The entry of the largest
    magnitude is positive, because a decomposition leaves signs open."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(vectors), 2))
    kept = min(2, left.shape[1])
    flat[:, :kept] = left[:, :kept] * scale[:kept]
    largest = flat[np.abs(flat).argmax(axis=0), np.arange(2)]
    return flat * np.where(largest < 0, -1.0, 1.0)


def _divide(
    points: NDArray[np.float64],
    members: NDArray[np.int64],
    area: tuple[int, int, int, int],
    cells: NDArray[np.int64],
) -> None:
    """Give each member a cell of an area (column, row, width, height): halve the area across its longer side,
    and the members by their order along that side, in proportion."""
    column, row, width, height = area
    if not len(members):
        return
    if width * height == 1:
        cells[members] = column, row
        return
    axis = 0 if width >= height else 1
    ordered = members[np.argsort(points[members, axis], kind="stable")]
    if axis == 0:
        near = (column, row, width // 2, height)
        far = (column + width // 2, row, width - width // 2, height)
    else:
        near = (column, row, width, height // 2)
        far = (column, row + height // 2, width, height - height // 2)
    room, beyond = near[2] * near[3], far[2] * far[3]
    share = min(max(round(len(ordered) * room / (room + beyond)), len(ordered) - beyond), room)
    _divide(points, ordered[:share], near, cells)
    _divide(points, ordered[share:], far, cells)
