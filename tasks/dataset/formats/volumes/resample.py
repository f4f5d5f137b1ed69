"""Makes the stored volume from a raw one: resamples, clips, crops or pads, and rounds to int16.

The order is that of CT-CLIP's training, and the result equals torch's `interpolate(mode="trilinear",
align_corners=False)` up to the rounding of float32. It works separably and slice by slice: only kept voxels
are computed, and at most two resampled slices are held. Multiplications and sums are single numpy calls, so
that no compiler fuses them and every machine rounds alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import VolumeRules
from tasks.dataset.formats.volumes.geometry import Axis

AIR_HU = -1000
"""The padding if there is no window, whose lower end is the padding otherwise."""

Taps = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]
"""For each kept voxel along an axis, the two raw voxels around it, and the weight of the upper one; the lower
one has the rest."""


def resample(voxels: NDArray[Any], sides: tuple[Axis, Axis, Axis], rules: VolumeRules) -> NDArray[np.int16]:
    """Return the volume to store. `voxels` are finite numbers within int16, in the raw shape of `sides`."""
    fill = AIR_HU if rules.window is None else rules.window[0]
    stored = np.full(tuple(side.stored for side in sides), fill, np.int16)
    inner = stored[tuple(slice(side.before, side.before + side.kept) for side in sides)]
    for target, plane in zip(inner, _planes(voxels, sides), strict=True):
        if rules.window is not None:
            plane = np.clip(plane, *rules.window)
        target[:] = np.rint(plane) if plane.dtype.kind == "f" else plane
    return stored


def _planes(voxels: NDArray[Any], sides: tuple[Axis, Axis, Axis]) -> Iterator[NDArray[Any]]:
    """Yield the kept slices, resampled in all three axes."""
    depth, *in_plane = sides
    if depth.resampled == depth.raw:
        for slab in voxels[depth.start : depth.start + depth.kept]:
            yield _in_plane(slab, *in_plane)
        return
    found: dict[int, NDArray[Any]] = {}
    for lower, upper, weight in zip(*_taps(depth), strict=True):
        found = {
            index: found[index] if index in found else _in_plane(voxels[index], *in_plane)
            for index in (int(lower), int(upper))
        }
        yield _mix(found[int(lower)], found[int(upper)], weight)


def _in_plane(slab: NDArray[Any], rows: Axis, columns: Axis) -> NDArray[Any]:
    if rows.resampled == rows.raw:
        plane = slab[rows.start : rows.start + rows.kept]
    else:
        lower, upper, weight = _taps(rows)
        plane = _mix(slab[lower], slab[upper], weight[:, None])
    if columns.resampled == columns.raw:
        return plane[:, columns.start : columns.start + columns.kept]
    lower, upper, weight = _taps(columns)
    return _mix(plane.take(lower, 1), plane.take(upper, 1), weight)


def _taps(axis: Axis) -> Taps:
    centres = (np.arange(axis.start, axis.start + axis.kept) + 0.5) * (axis.raw / axis.resampled) - 0.5
    centres = np.maximum(centres, 0.0)
    lower = np.minimum(np.floor(centres).astype(np.intp), axis.raw - 1)
    upper = np.minimum(lower + 1, axis.raw - 1)
    return lower, upper, (centres - lower).astype(np.float32)


def _mix(lower: NDArray[Any], upper: NDArray[Any], weight: Any) -> NDArray[np.float32]:
    of_lower: NDArray[np.float32] = np.multiply(lower, np.float32(1) - weight, dtype=np.float32)
    of_upper = np.multiply(upper, weight, dtype=np.float32)
    of_lower += of_upper
    return of_lower
