"""Volumes in shards: a Blosc2 array that is read chunk by chunk, or an NPY file that can be mapped.

`volume.b2nd` is the default. Chunks of 16 x 120 x 120 divide CT-CLIP's 240 x 480 x 480, a crop of 32 x 128 x
128 touches few of them, and only those of a chunk's blocks that the crop needs are decompressed. LZ4 after
bitshuffle reads a volume in half the time of Zstandard (measured), for a tenth more bytes. One thread
compresses, so the same volume gives the same bytes. The CRC32C of each chunk (of its compressed bytes, or of
an NPY file's slices) is in the sample's `json`, so a crop can be verified without reading the rest.

A frame is checked before Blosc2 gets it. For a codec or filter with an unknown number, Blosc2 loads a shared
library by starting a Python process, and it returns uninitialised memory if a chunk demands that. So the
header of the frame, and of each chunk before it is decompressed, may only name built-in codecs and filters.
Formats: README_CFRAME_FORMAT.rst and README_CHUNK_FORMAT.rst of https://github.com/Blosc/c-blosc2.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from math import prod
from typing import Any, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import UsageError
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes.geometry import Shape
from tasks.dataset.tar.format import Buffer
from tasks.dataset.version.rejects import Reject

B2ND, NPY = "volume.b2nd", "volume.npy"
MEMBERS = (B2ND, NPY)
CHUNK: Shape = (16, 120, 120)
BLOCK: Shape = (16, 40, 40)
LARGEST_CHUNK_BYTES = 1 << 28
Crop = tuple[slice, slice, slice]

MAGIC = b"\x9e\xa8b2frame\0"
FIXED_HEADER = 87
"""Bytes before the metalayers."""
CHUNK_HEADER = 32
CODECS = (0, 1, 3, 4)
"""BloscLZ, LZ4 (and LZ4HC), zlib, Zstandard; 7 means a plugin."""
LAST_FILTER = 2
"""None, shuffle and bitshuffle."""
EXTENDED = 0x05
ZEROS, REPEATED = 1, 3
SPECIAL = (0, ZEROS, REPEATED)
"""No special chunk, all zeros, one repeated value; NaN (2) and uninitialised (4) are not valid in a
volume."""


class Damaged(ValueError):
    """The member is torn, altered, or not a volume."""


class StoredVolume(Protocol):
    """A volume that is open for reading; nothing is decompressed yet."""

    shape: Shape
    chunk: Shape

    def checksum(self, number: int) -> int:
        """Return the CRC32C of a chunk, numbered in C order over the grid of chunks; Damaged if it is
        unsafe."""

    def voxels(self, crop: Crop) -> NDArray[np.int16]:
        """Return the voxels of a crop within the shape; Damaged if they cannot be decompressed."""


def encode(voxels: NDArray[np.int16], encoding: str) -> tuple[str, Buffer]:
    """Return a volume's member as suffix and bytes; `encoding` is blosc2 or npy."""
    if encoding == "npy":
        return NPY, npy.dump(voxels)
    blosc2 = _blosc2()
    chunk, block = chunk_and_block(voxels.shape)
    packing = {
        "codec": blosc2.Codec.LZ4,
        "clevel": 5,
        "filters": [blosc2.Filter.BITSHUFFLE],
        "splitmode": blosc2.SplitMode.NEVER_SPLIT,
        "typesize": 2,
        "nthreads": 1,
    }
    array = blosc2.asarray(np.ascontiguousarray(voxels), chunks=chunk, blocks=block, cparams=packing)
    return B2ND, array.to_cframe()


def chunk_and_block(shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the chunk, which is CHUNK limited to the volume's sides, and the block of at most BLOCK that
    fills it with the least waste."""
    chunk = [min(sides) for sides in zip(CHUNK, shape, strict=True)]
    block = [-(-side // -(-side // most)) for side, most in zip(chunk, BLOCK, strict=True)]
    return chunk, block


def most_bytes(shape: Shape, encoding: str) -> int:
    """Return the most bytes that `encode` makes of a volume: whole chunks that cannot be compressed."""
    if encoding == "npy":
        return 128 + 2 * prod(shape)
    chunk, block = chunk_and_block(shape)
    return 4096 + prod(_grid(shape, chunk)) * (2 * prod(_whole_blocks(chunk, block)) + 512)


def member_of(members: Mapping[str, Any]) -> str | None:
    """Return the name of the member that holds the volume, or None."""
    return next((name for name in MEMBERS if name in members), None)


def kind_of(content: Buffer) -> str | None:
    """Return the member name for these bytes, judged by their start; None if they are no volume."""
    start = bytes(content[:FIXED_HEADER])
    return NPY if start.startswith(npy.MAGIC) else B2ND if start.startswith(MAGIC) else None


def open_volume(name: str, content: Buffer) -> StoredVolume:
    """Open the volume in a stored member; Damaged if it is none.

    `content` is any buffer, such as a map of the shard, and must outlive the volume.
    """
    try:
        return _Blosc2Volume(content) if name == B2ND else _NpyVolume(content)
    except Damaged:
        raise
    except (Reject, ValueError, RuntimeError, TypeError, SyntaxError, OverflowError) as error:
        raise Damaged(str(error)[:200]) from None


def whole(volume: StoredVolume) -> Crop:
    depth, height, width = (slice(0, side) for side in volume.shape)
    return depth, height, width


def checksums(volume: StoredVolume) -> list[int]:
    """Return the CRC32C of every chunk, as they are in the sample's `json`."""
    return [volume.checksum(number) for number in range(prod(_grid(volume.shape, volume.chunk)))]


def read_crop(
    volume: StoredVolume, crop: Crop | None = None, expected: Sequence[int] | None = None
) -> NDArray[np.int16]:
    """Return the voxels of a crop, or of the whole volume; only chunks that the crop touches are read.

    `expected` are the CRC32C of all chunks: Damaged if a touched chunk differs. IndexError for a crop that is
    not within the volume.
    """
    crop = crop or whole(volume)
    for part, side in zip(crop, volume.shape, strict=True):
        if part.step not in (None, 1) or not 0 <= part.start < part.stop <= side:
            raise IndexError(f"{part} is not a crop of {side} voxels")
    grid = _grid(volume.shape, volume.chunk)
    if expected is not None and len(expected) != prod(grid):
        raise Damaged(f"{prod(grid)} chunks, but checksums of {len(expected)}")
    for number in _touched(crop, volume.chunk, grid):
        if expected is not None and volume.checksum(number) != expected[number]:
            raise Damaged(f"chunk {number} differs from its checksum")
    return volume.voxels(crop)


def _grid(shape: Sequence[int], chunk: Sequence[int]) -> list[int]:
    return [-(-side // part) for side, part in zip(shape, chunk, strict=True)]


def _whole_blocks(chunk: Sequence[int], block: Sequence[int]) -> list[int]:
    """Return the sides of a chunk in Blosc2, where all blocks have one size."""
    return [parts * side for parts, side in zip(_grid(chunk, block), block, strict=True)]


def _touched(crop: Crop, chunk: Shape, grid: Sequence[int]) -> Iterator[int]:
    ranges = [
        range(part.start // side, (part.stop - 1) // side + 1) for part, side in zip(crop, chunk, strict=True)
    ]
    for z, y, x in product(*ranges):
        yield (z * grid[1] + y) * grid[2] + x


def _require_frame(content: Buffer) -> int:
    """Return the unpacked size in bytes that the frame claims for a chunk; ValueError if the bytes are no
    frame that can be opened safely."""
    start = bytes(content[:FIXED_HEADER])
    if len(start) < FIXED_HEADER or not start.startswith(MAGIC):
        raise ValueError("not a Blosc2 frame")
    (header,) = struct.unpack_from(">i", start, 11)
    length, unpacked, packed = (struct.unpack_from(">q", start, at)[0] for at in (16, 30, 39))
    (chunk,) = struct.unpack_from(">i", start, 58)
    if length != len(content) or not FIXED_HEADER <= header <= length or not 0 <= packed <= length - header:
        raise ValueError(f"a Blosc2 frame that claims {length:,} bytes, but has {len(content):,}")
    if unpacked > 0:
        _require_chunk(bytes(content[header + packed : header + packed + CHUNK_HEADER]))
    return int(chunk)


def _require_chunk(start: bytes, unpacked: int | None = None) -> None:
    """ValueError if a chunk with this start cannot be decompressed safely, or not to `unpacked` bytes."""
    if len(start) < CHUNK_HEADER:
        raise ValueError("a chunk is cut off")
    flags, own_flags = start[2], start[31]
    if flags >> 5 not in CODECS or flags & EXTENDED != EXTENDED or max(start[16:22]) > LAST_FILTER:
        raise ValueError("a chunk uses a codec or filter that is not built in")
    if own_flags >> 4 & 7 not in SPECIAL:
        raise ValueError("a chunk holds no values")
    (size,) = struct.unpack_from("<i", start, 4)
    if unpacked is not None and size != unpacked:
        raise ValueError(f"a chunk of {size:,} bytes instead of {unpacked:,}")


class _NpyVolume:
    """A volume in an NPY file; each slice is a chunk."""

    def __init__(self, content: Buffer) -> None:
        self._array = array = npy.parse(content)
        if array.dtype != np.dtype("<i2") or array.ndim != 3 or not array.flags.c_contiguous:
            raise Damaged(f"{array.dtype} {array.shape}, not int16 D,H,W in C order")
        _, height, width = self.shape = array.shape
        self.chunk = (1, height, width)

    def checksum(self, number: int) -> int:
        return int(google_crc32c.value(self._array[number]))

    def voxels(self, crop: Crop) -> NDArray[np.int16]:
        return self._array[crop]


class _Blosc2Volume:
    """A volume in a Blosc2 frame, which must hold a plain array of int16."""

    def __init__(self, content: Buffer) -> None:
        claimed = _require_frame(content)
        self._content = content
        self._array = _blosc2().ndarray_from_cframe(content)
        self._chunks = self._array.schunk
        shape, chunk, block = self._array.shape, self._array.chunks, self._array.blocks
        if self._array.dtype != np.dtype("<i2") or len(shape) != 3 or 0 in shape:
            raise Damaged(f"{self._array.dtype} {shape}, not int16 D,H,W")
        if list(self._chunks.meta) != ["b2nd"]:
            raise Damaged("not a plain Blosc2 array")
        self._chunk_bytes = 2 * prod(_whole_blocks(chunk, block))
        if 2 * prod(shape) > npy.LARGEST_BYTES or self._chunk_bytes > LARGEST_CHUNK_BYTES:
            raise Damaged(f"{shape} in chunks of {chunk}, larger than any volume within the limits")
        count = prod(_grid(shape, chunk))
        if claimed != self._chunk_bytes or self._chunks.nchunks != count:
            raise Damaged(f"{shape} in {self._chunks.nchunks} chunks of {chunk}")
        self.shape: Shape = shape
        self.chunk: Shape = chunk

    def checksum(self, number: int) -> int:
        return int(google_crc32c.value(self._chunk(number)))

    def voxels(self, crop: Crop) -> NDArray[np.int16]:
        for number in _touched(crop, self.chunk, _grid(self.shape, self.chunk)):
            self._chunk(number)
        try:
            found: NDArray[np.int16] = self._array[crop]
        except (RuntimeError, ValueError) as error:
            raise Damaged(f"cannot be decompressed: {error}") from None
        return found

    def _chunk(self, number: int) -> bytes:
        """Return the compressed chunk; Damaged if it cannot be decompressed safely."""
        try:
            packed: bytes = self._chunks.get_chunk(number)
            _require_chunk(packed[:CHUNK_HEADER], self._chunk_bytes)
        except (RuntimeError, ValueError) as error:
            raise Damaged(f"chunk {number}: {error}") from None
        return packed


def require_package(name: str, config_key: str) -> None:
    """UsageError if a config needs a package of the extra `ct` that is not installed."""
    if find_spec(name) is None:
        raise UsageError(f"{config_key} needs {name}: pip install 'tarmac[ct]'")


def _blosc2() -> Any:
    """Import Blosc2 only if a volume is handled, because that takes a fifth of a second, and limit the
    threads that numexpr, its unused dependency, starts for every core by default."""
    os.environ.setdefault("NUMEXPR_NUM_THREADS", "1")
    try:
        import blosc2
    except ImportError:
        require_package("blosc2", f"{B2ND} in a shard")
        raise
    return blosc2
