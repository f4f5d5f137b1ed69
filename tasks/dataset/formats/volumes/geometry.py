"""Where each voxel of a stored volume comes from: sizes after resampling, what is cropped, what is padded.

As CT-CLIP trains (scripts/data.py): int(old * spacing / target) voxels after resampling, then cropped or
padded around the centre. Planning is pure; `prepare` does the arithmetic.
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
AXES = ("z", "y", "x")
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


def spacing_of(value: Any) -> Spacing | None:
    """The spacing (z, y, x) in mm; None when it is not known, Reject when it cannot be one."""
    if value is None:
        return None
    try:
        z, y, x = (float(side) for side in value)
    except (TypeError, ValueError):
        raise Reject("volume.spacing", f"{value!r} is no spacing (z, y, x) in mm") from None
    for axis, side in zip(AXES, (z, y, x), strict=True):
        if not SMALLEST_MM <= side <= LARGEST_MM:  # which NaN is not either
            problem = f"{axis} is {side:g} mm, not between {SMALLEST_MM:g} and {LARGEST_MM:g}"
            raise Reject("volume.spacing", problem)
    return z, y, x


def plan(shape: Shape, spacing: Spacing | None, rules: VolumeRules) -> tuple[Axis, Axis, Axis]:
    """How a volume becomes what the rules ask for; Reject when it cannot."""
    sizes = list(shape)
    if rules.spacing_mm is not None:
        if spacing is None:
            raise Reject("volume.spacing", "not known, so volume.spacing_mm cannot be had")
        sizes = [
            int(side * (old / new)) for side, old, new in zip(shape, spacing, rules.spacing_mm, strict=True)
        ]
        if 0 in sizes:
            raise Reject(
                "volume.spacing", f"{shape} at {spacing} mm leaves no voxel at {rules.spacing_mm} mm"
            )
    targets = rules.shape or tuple(sizes)
    if math.prod(targets) * 2 > LARGEST_BYTES:
        raise Reject("volume.shape", f"{targets} voxels to store, more than {LARGEST_BYTES:,} bytes")
    depth, height, width = (_axis(*axis) for axis in zip(shape, sizes, targets, strict=True))
    return depth, height, width


def _axis(raw: int, resampled: int, stored: int) -> Axis:
    start = max((resampled - stored) // 2, 0)
    kept = min(stored, resampled)
    return Axis(raw, resampled, start, kept, (stored - kept) // 2, stored)


def pad_fraction(axes: tuple[Axis, Axis, Axis]) -> float:
    """The share of the stored voxels that is padding."""
    kept = math.prod(axis.kept for axis in axes)
    return round(1 - kept / math.prod(axis.stored for axis in axes), 6)
