"""Volumes as shards hold them: int16 HU in an NPY member that can be mapped and read slice by slice.

A slice (one index of the first axis) is the chunk whose CRC32C stands in the sample's `json`, so that a
reader of a few slices can trust them without reading the rest.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tasks.dataset.reasons import Reject
from tasks.dataset.tar import Buffer

INT16 = np.iinfo(np.int16)
QUANTILES = {"hu_min": 0.0, "hu_p01": 0.01, "hu_p50": 0.5, "hu_p99": 0.99, "hu_max": 1.0}
TISSUE_HU = -500
"""Nothing in a scan of a body is all lighter than this; a volume that was rescaled twice is."""


def to_npy(array: NDArray[Any], scale: float | None) -> NDArray[np.uint8]:
    """The bytes of an NPY file with the volume as int16, in C order.

    With `scale` the numbers are multiplied and rounded; without it they must be whole. Reject for what is not
    3D, not finite, not whole, or beyond int16. Works slice by slice, so a float volume is never held twice.
    """
    if array.ndim != 3 or 0 in array.shape:
        raise Reject("volume.shape", f"{array.shape}, not 3D")
    head = _header(array.shape)
    stored = np.empty(len(head) + array.size * 2, np.uint8)
    stored[: len(head)] = np.frombuffer(head, np.uint8)
    volume = stored[len(head) :].view(np.int16).reshape(array.shape)
    for target, slab in zip(volume, array, strict=True):
        target[:] = _whole(slab, scale)
    return stored


def _header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<i2", "fortran_order": False, "shape": shape})
    return file.getvalue()


def _whole(slab: NDArray[Any], scale: float | None) -> NDArray[Any]:
    if slab.dtype == np.int16 and scale is None:
        return slab
    if slab.dtype.kind == "f" and not np.isfinite(slab).all():
        raise Reject("volume.nonfinite", "holds NaN or infinity")
    values = slab if scale is None else np.rint(slab * np.float64(scale))
    if scale is None and slab.dtype.kind == "f" and not (np.rint(slab) == slab).all():
        raise Reject("volume.dtype", f"{slab.dtype} that is not whole; name its factor as source.scale")
    if values.min() < INT16.min or values.max() > INT16.max:
        raise Reject("volume.hu_range", f"{values.min():g} to {values.max():g}, beyond int16")
    return values


@dataclass(frozen=True)
class Volume:
    """A stored volume: int16 voxels (D, H, W) over the member's bytes, not copied."""

    voxels: NDArray[np.int16]
    offset: int


def parse(content: Buffer) -> Volume:
    """The volume in a stored NPY member; ValueError when it is none."""
    start = io.BytesIO(bytes(content[:1024]))
    if npy.read_magic(start) != (1, 0):
        raise ValueError("not NPY version 1.0")
    shape, fortran, dtype = npy.read_array_header_1_0(start)
    offset = start.tell()
    if dtype != np.dtype("<i2") or fortran or len(shape) != 3:
        raise ValueError(f"{dtype} {shape}, not int16 D,H,W in C order")
    voxels = np.frombuffer(content, np.int16, offset=offset)
    return Volume(voxels.reshape(shape), offset)


def slice_checksums(volume: Volume) -> list[int]:
    """The CRC32C of each slice."""
    return [int(google_crc32c.value(slab)) for slab in volume.voxels]


def statistics(volume: Volume) -> dict[str, int]:
    """Shape and exact HU quantiles, counted in a histogram of all int16 values."""
    counts = np.zeros(1 << 16, np.int64)
    for slab in volume.voxels:
        counts += np.bincount(slab.ravel().astype(np.int64) - INT16.min, minlength=1 << 16)
    up_to = np.cumsum(counts)
    ranks = {name: max(1, int(np.ceil(share * up_to[-1]))) for name, share in QUANTILES.items()}
    quantiles = {name: int(np.searchsorted(up_to, rank)) + INT16.min for name, rank in ranks.items()}
    depth, height, width = volume.voxels.shape
    return {"depth": depth, "height": height, "width": width, **quantiles}


def implausible(statistics: dict[str, int]) -> str | None:
    """Why the values cannot be HU; None when they can."""
    if statistics["hu_p99"] < TISSUE_HU:
        return f"99 % of the voxels lie below {statistics['hu_p99'] + 1} HU: air only, or rescaled twice"
    return None
