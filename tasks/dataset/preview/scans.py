"""Three slices through the middle of a CT volume, as a radiologist would have them.

The voxels' own distances give the slices their shape. Windows are the usual ones for lung and soft tissue
(level and width in HU); what lies beyond is black or white.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.core.errors import DataError, UsageError
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.geometry import Spacing, spacing_of
from tasks.dataset.formats.volumes.stored import StoredVolume
from tasks.dataset.preview.legible import legible
from tasks.dataset.preview.pictures import NotShown, Picture, encode
from tasks.dataset.preview.samples import Faulty
from tasks.dataset.rejects import Reject

WINDOWS: Mapping[str, tuple[int, int]] = {"lung": (-600, 1500), "soft tissue": (40, 400)}
LONGEST = 200
SHORTEST = 8
"""Pixels of a side, however flat the volume is."""


def open_scan(members: Mapping[str, bytes]) -> StoredVolume:
    """The volume of whichever member holds it; Faulty or DataError when none can be read."""
    name = stored.member_of(members)
    if name is None:
        there = legible(", ".join(sorted(members)) or "none", 280)
        raise Faulty("sample.missing_member", f"there is no volume among {there}")
    try:
        return stored.open_volume(name, members[name])
    except stored.Damaged as error:
        raise DataError(f"{name} cannot be read: {error}") from None
    except (ModuleNotFoundError, UsageError):
        raise NotShown(f"{name} is not shown: pip install 'tarmac[ct]'") from None


def stated_spacing(facts: Mapping[str, Any]) -> Spacing | None:
    """The distances (z, y, x) in mm that the sample states; None where it states none that can be."""
    try:
        return spacing_of(facts.get("spacing_mm"))
    except Reject:
        return None


def slices(scan: StoredVolume, spacing: Spacing | None, alt: str) -> list[Picture]:
    """Axial, coronal and sagittal through the middle, in each window; DataError when they are damaged.

    Only what the three touch is decompressed. Without a spacing voxels are taken for cubes.
    """
    try:
        planes = list(_planes(scan, spacing or (1.0, 1.0, 1.0)))
    except stored.Damaged as error:
        raise DataError(f"the volume cannot be read: {error}") from None
    return [
        encode(
            _scaled(_windowed(plane, *window), sides), f"{alt}, {name}, {tissue} window", f"{name}, {tissue}"
        )
        for tissue, window in WINDOWS.items()
        for name, plane, sides in planes
    ]


VIEWS: Sequence[tuple[str, int, tuple[int, int], bool]] = (
    ("axial", 0, (2, 1), False),
    ("coronal", 2, (0, 1), True),
    ("sagittal", 1, (0, 2), True),
)
"""Of each plane the axis across it, those that run down and to the right, and whether the former is turned
over. A volume's axes run towards the head, the patient's left and the back: so the head is on top, the left
at the right hand, and an axial slice is seen from the feet."""


def _planes(scan: StoredVolume, spacing: Spacing) -> Iterator[tuple[str, NDArray[Any], tuple[int, int]]]:
    """Each plane with its voxels and its (width, height) in pixels."""
    extent = [side * distance for side, distance in zip(scan.shape, spacing, strict=True)]
    for name, across, (down, right), is_turned in VIEWS:
        crop = list(stored.whole(scan))
        crop[across] = slice(scan.shape[across] // 2, scan.shape[across] // 2 + 1)
        voxels = stored.read_crop(scan, (crop[0], crop[1], crop[2]))
        plane = voxels.transpose(across, down, right)[0]
        scale = LONGEST / max(extent[right], extent[down])
        width, height = (max(SHORTEST, math.ceil(extent[axis] * scale)) for axis in (right, down))
        yield name, plane[::-1] if is_turned else plane, (width, height)


def _windowed(plane: NDArray[Any], level: int, width: int) -> NDArray[np.uint8]:
    grey = (np.asarray(plane, np.float64) - (level - width / 2)) * (255 / width)
    return np.clip(np.rint(grey), 0, 255).astype(np.uint8)


def _scaled(grey: NDArray[np.uint8], sides: tuple[int, int]) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(grey)).resize(sides, Image.Resampling.BICUBIC)
