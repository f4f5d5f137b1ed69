"""Reads arrays in NPY and NPZ files without executing anything in them, and writes them slab by slab.

numpy's own loader can unpickle object arrays, and reads whatever size a header claims. Here the header is
checked first, and arrays are views over the bytes. Format: https://numpy.org/doc/stable/reference/
generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tasks.dataset.formats import zips
from tasks.dataset.tar.format import Buffer
from tasks.dataset.version.rejects import Reject

MAGIC = npy.MAGIC_PREFIX
LARGEST_BYTES = 4 << 30
"""Enough for a volume of 512 x 512 x 2,000 in float64."""
LONGEST_HEADER = 1 << 14
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
INT16 = np.iinfo(np.int16)


@dataclass(frozen=True)
class NpyHeader:
    """The header of an NPY file; the first number follows after `offset` bytes."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def parse_header(start: bytes, name: str) -> NpyHeader:
    """Parse the header at the start of an NPY file; Reject, which names the file `name`, if there is none."""
    file = io.BytesIO(start[:LONGEST_HEADER])  # version 2 lets a header claim to be gigabytes long
    try:
        version = npy.read_magic(file)
        if version not in HEADER_READERS:
            raise ValueError(f"NPY version {version}")
        shape, fortran, dtype = HEADER_READERS[version](file)
        if any(side < 0 for side in shape):
            raise ValueError(f"shape {shape}")
    except MemoryError:
        raise  # a fault of this host, not of the file
    except Exception as error:  # noqa: BLE001 - numpy raises anything on a torn header
        raise Reject("volume.undecodable", f"{name} is not an NPY array: {str(error)[:200]}") from None
    return NpyHeader(shape, fortran, dtype, file.tell())


def require_numbers(header: NpyHeader, name: str) -> None:
    """Reject for Python objects, for more than LARGEST_BYTES, and for types other than integer and float."""
    if header.dtype.hasobject:
        raise Reject("volume.pickle", f"{name} holds Python objects, which are never unpickled")
    if header.size_bytes > LARGEST_BYTES:
        raise Reject("archive.bomb", f"shape {header.shape} in {header.dtype}: {header.size_bytes:,} bytes")
    if header.dtype.kind not in "iuf" or header.dtype.itemsize > 8:
        raise Reject("volume.dtype", f"{name} holds {header.dtype}, not numbers")


def parse(content: Buffer, name: str = "volume.npy") -> NDArray[Any]:
    """Return the array in an NPY file's bytes without a copy; Reject if none can be read safely."""
    header = parse_header(bytes(content[:LONGEST_HEADER]), name)
    require_numbers(header, name)
    if (found := len(content) - header.offset) != header.size_bytes:
        raise Reject("volume.undecodable", f"{name} has {found:,} of {header.size_bytes:,} bytes")
    try:
        values = np.frombuffer(content, header.dtype, offset=header.offset)
        return values.reshape(header.shape, order="F" if header.fortran else "C")
    except ValueError as error:  # an empty array whose sides are beyond numpy's limits
        raise Reject("volume.undecodable", f"{name}: {error}") from None


def parse_npz(content: bytes, limit: int) -> dict[str, NDArray[Any]]:
    """Return every array in an NPZ file's bytes by name; Reject if one cannot be read safely, or if together
    they unpack to more than `limit` bytes."""
    entries = zips.unpack(content, "npz", "volume.undecodable", limit)
    return {
        name.removesuffix(".npy"): parse(entry, name)
        for name, entry in entries.items()
        if name.endswith(".npy")
    }


def blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the bytes of an NPY file, and the array over them (C order) for the caller to fill."""
    file = io.BytesIO()
    head = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, head)
    start = np.frombuffer(file.getvalue(), np.uint8)
    content = np.empty(len(start) + prod(shape) * dtype.itemsize, np.uint8)
    content[: len(start)] = start
    return content, content[len(start) :].view(dtype).reshape(shape)


def dump(array: NDArray[Any], slope: float = 1.0, intercept: float = 0.0) -> NDArray[np.uint8]:
    """Return the bytes of an NPY file that holds slope * array + intercept.

    Integers become int16 if they stay integers and fit, everything else becomes float32; without slope and
    intercept the type stays. This works slab by slab, so no second copy of the array is held meanwhile.
    """
    is_same = slope == 1 and intercept == 0
    content, rescaled = blank(array.shape, array.dtype if is_same else _type(array, slope, intercept))
    for target, slab in zip(rescaled, array, strict=True):
        target[:] = slab if is_same else slab.astype(np.float64) * slope + intercept
    return content


def _type(array: NDArray[Any], slope: float, intercept: float) -> np.dtype[Any]:
    if array.dtype.kind in "iu" and array.size and slope.is_integer() and intercept.is_integer():
        ends = [int(end) * int(slope) + int(intercept) for end in (array.min(), array.max())]
        if min(ends) >= INT16.min and max(ends) <= INT16.max:
            return np.dtype(np.int16)
    return np.dtype(np.float32)
