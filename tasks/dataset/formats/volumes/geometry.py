"""The orientation of a stored volume, and where its voxels come from: resampled, cropped, padded.

A volume is an array of (depth, height, width), and `axes` names the body's axis along which each of the three
runs: z from the feet to the head, y from front to back, x from side to side. `zyx` is the order of scanners'
slices, rows before columns; `zxy` is the order that CT-CLIP makes from NIfTI files. A spacing that people
give, in a config or a table, refers to the body's axes, as (z, y, x). Computations and a sample's `json` use
the order of the array. A table's XYSpacing is DICOM's PixelSpacing: the distance between rows, along y, comes
before the distance between columns, along x.

Sizes follow CT-CLIP's training (scripts/data.py): int(old * spacing / target) voxels after resampling, then
cropped or padded around the centre. Planning is pure; `resample` does the arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tasks.core.schema import VolumeRules
from tasks.dataset.formats.npy import LARGEST_BYTES
from tasks.dataset.version.rejects import Reject

Shape = tuple[int, int, int]
Spacing = tuple[float, float, float]
ZYX, ZXY = "zyx", "zxy"
SMALLEST_MM, LARGEST_MM = 0.01, 100.0


@dataclass(frozen=True)
class Axis:
    """The plan for one axis: `raw` voxels become `resampled` ones, `kept` of which, from `start` on, are
    stored after `before` voxels of padding; there are `stored` voxels in all."""

    raw: int
    resampled: int
    start: int
    kept: int
    before: int
    stored: int


def axes_of(value: Any) -> str | None:
    """Return the axes in a sample's `json`, or None if it has no valid ones."""
    return value if isinstance(value, str) and sorted(value) == sorted(ZYX) else None


def ordered(axes: str | None, z: float, y: float, x: float) -> Spacing:
    """Return distances along the body's axes in the order of an array with these `axes`, by default zyx."""
    sides = {"z": z, "y": y, "x": x}
    depth, height, width = (sides[axis] for axis in axes or ZYX)
    return depth, height, width


def spacing_of(value: Any, axes: str | None = None) -> Spacing | None:
    """Return the spacing (depth, height, width) in mm of an array with these `axes`; None if it is unknown,
    Reject if the value is no valid spacing."""
    if value is None:
        return None
    try:
        depth, height, width = (float(side) for side in value)
    except (TypeError, ValueError):
        raise Reject("volume.spacing", f"{value!r} is not a spacing of three sides in mm") from None
    for axis, side in zip(axes or ZYX, (depth, height, width), strict=True):
        if not SMALLEST_MM <= side <= LARGEST_MM:  # NaN is not either
            limits = f"{SMALLEST_MM:g} and {LARGEST_MM:g}"
            raise Reject("volume.spacing", f"{axis} is {side:g} mm, not between {limits}")
    return depth, height, width


def plan(
    shape: Shape, spacing: Spacing | None, rules: VolumeRules, axes: str | None = None
) -> tuple[Axis, Axis, Axis]:
    """Plan how a volume of this shape, spacing and axes becomes what the rules demand; Reject if it
    cannot."""
    sizes = shape
    if rules.spacing_mm is not None:
        if spacing is None:
            raise Reject("volume.spacing", "unknown, so it cannot be resampled to volume.spacing_mm")
        wanted = ordered(axes, *rules.spacing_mm)
        depth, height, width = (
            int(side * (old / new)) for side, old, new in zip(shape, spacing, wanted, strict=True)
        )
        sizes = (depth, height, width)
        if 0 in sizes:
            raise Reject("volume.spacing", f"{shape} at {spacing} mm leaves no voxel at {wanted} mm")
    targets = rules.shape or sizes
    if math.prod(targets) * 2 > LARGEST_BYTES:
        raise Reject("volume.shape", f"{targets} voxels to store, more than {LARGEST_BYTES:,} bytes")
    first, second, third = (_axis(*sides) for sides in zip(shape, sizes, targets, strict=True))
    return first, second, third


def _axis(raw: int, resampled: int, stored: int) -> Axis:
    start = max((resampled - stored) // 2, 0)
    kept = min(stored, resampled)
    return Axis(raw, resampled, start, kept, (stored - kept) // 2, stored)


def pad_fraction(axes: tuple[Axis, Axis, Axis]) -> float:
    """Return the share of the stored voxels that is padding."""
    kept = math.prod(axis.kept for axis in axes)
    return round(1 - kept / math.prod(axis.stored for axis in axes), 6)
