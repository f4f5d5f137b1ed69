"""How a stored volume lies, and where each of its voxels comes from: resampled, cropped, padded.

A volume is an array of (depth, height, width), and `axes` says along which axis of the body each of the three
runs: z from the feet to the head, y from front to back, x from side to side. `zyx` are slices as scanners
give them, rows before columns; `zxy` is CT-CLIP's order, which it makes of NIfTI files. Where people give a
spacing, in a config or a table, it belongs to the axes of the body, as (z, y, x); what is computed with and
what a sample's `json` says is in the order of the array. A table's XYSpacing is DICOM's PixelSpacing: the
distance between rows, which is along y, before the distance between columns, along x.

Sizes are as CT-CLIP trains (scripts/data.py): int(old * spacing / target) voxels after resampling, then
cropped or padded around the centre. Planning is pure; `resample` does the arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tasks.core.schema import VolumeRules
from tasks.dataset.formats.npy import LARGEST_BYTES
from tasks.dataset.rejects import Reject

Shape = tuple[int, int, int]
Spacing = tuple[float, float, float]
ZYX, ZXY = "zyx", "zxy"
SMALLEST_MM, LARGEST_MM = 0.01, 100.0


@dataclass(frozen=True)
class Axis:
    """One axis: `raw` voxels become `resampled`, of which `kept` from `start` on are stored behind `before`
    voxels of padding, `stored` voxels in all."""

    raw: int
    resampled: int
    start: int
    kept: int
    before: int
    stored: int


def axes_of(value: Any) -> str | None:
    """The axes that a sample's `json` states; None where it states none that can be."""
    return value if isinstance(value, str) and sorted(value) == sorted(ZYX) else None


def ordered(axes: str | None, z: float, y: float, x: float) -> Spacing:
    """The distances along the body's axes, in the order of an array that runs along `axes`; where these are
    not known, along z, y and x."""
    sides = {"z": z, "y": y, "x": x}
    depth, height, width = (sides[axis] for axis in axes or ZYX)
    return depth, height, width


def spacing_of(value: Any, axes: str | None = None) -> Spacing | None:
    """The spacing (depth, height, width) in mm of an array along `axes`; None when it is not known, Reject
    when it cannot be one."""
    if value is None:
        return None
    try:
        depth, height, width = (float(side) for side in value)
    except (TypeError, ValueError):
        raise Reject("volume.spacing", f"{value!r} is no spacing of three sides in mm") from None
    for axis, side in zip(axes or ZYX, (depth, height, width), strict=True):
        if not SMALLEST_MM <= side <= LARGEST_MM:  # which NaN is not either
            problem = f"{axis} is {side:g} mm, not between {SMALLEST_MM:g} and {LARGEST_MM:g}"
            raise Reject("volume.spacing", problem)
    return depth, height, width


def plan(
    shape: Shape, spacing: Spacing | None, rules: VolumeRules, axes: str | None = None
) -> tuple[Axis, Axis, Axis]:
    """How a volume of this shape, spacing and axes becomes what the rules ask for; Reject when it cannot."""
    sizes = shape
    if rules.spacing_mm is not None:
        if spacing is None:
            raise Reject("volume.spacing", "not known, so volume.spacing_mm cannot be had")
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
    """The share of the stored voxels that is padding."""
    kept = math.prod(axis.kept for axis in axes)
    return round(1 - kept / math.prod(axis.stored for axis in axes), 6)
