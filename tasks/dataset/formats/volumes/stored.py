"""Volumes in shards: a Blosc2 array that is read chunk by chunk, or an NPY file that can be mapped.

`volume.b2nd` is the default. Chunks of 16 x 120 x 120 divide CT-CLIP's 240 x 480 x 480, a crop of 32 x 128 x
128 touches few of them, and only those of a chunk's blocks that the crop needs are decompressed. LZ4 after
bitshuffle reads a volume in half the time of Zstandard (measured), for a tenth more bytes. One thread
compresses, so the same volume gives the same bytes. The CRC32C of each chunk (of its compressed bytes, or of
an NPY file's slices) is in the sample's `json`, so a crop can be verified without reading the rest.

Reading writes voxels where the caller wants them, such as into a batch, and takes compressed bytes from where
they lie, such as a map of the shard. Blosc2 cuts a crop by decompressing only the blocks in it, one chunk
after the other, because it holds Python's lock meanwhile. Where a crop takes chunks whole, each is
decompressed by a call that does not hold the lock, so that threads share the work.

A frame is checked before Blosc2 gets it. For a codec or filter with an unknown number, Blosc2 loads a shared
library by starting a Python process, and it returns uninitialised memory if a chunk demands that. So the
header of the frame, and of each chunk before it is decompressed, may only name built-in codecs and filters.
Formats: README_CFRAME_FORMAT.rst and README_CHUNK_FORMAT.rst of https://github.com/Blosc/c-blosc2.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import product
from math import prod
from typing import Any, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import UsageError
from tasks.core.mapped import readable
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
Voxels = NDArray[np.int16]

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
    spans: Sequence[tuple[int, int]]
    """Where the bytes of each chunk begin and end in the member, chunks numbered in C order over their grid;
    of one that has none, such as one of zeros, both are the same."""

    def packed(self, number: int) -> Buffer:
        """Return the bytes of a chunk, of which its CRC32C is taken; Damaged if it is unsafe, OSError if it
        cannot be read."""

    def voxels(self, crop: Crop, out: Voxels | None, threads: int) -> Voxels:
        """Return the voxels of a crop within the shape, in `out` if given, with up to so many threads. The
        chunks that it touches have been checked by `packed`. Damaged if they cannot be decompressed."""


def encode(voxels: Voxels, encoding: str) -> tuple[str, Buffer]:
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

    `content` is any buffer, such as a map of the shard, and must outlive the volume. OSError for a map that
    cannot be read.
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
    return [google_crc32c.value(volume.packed(number)) for number in range(len(volume.spans))]


def read_crop(
    volume: StoredVolume,
    crop: Crop | None = None,
    expected: Sequence[int] | None = None,
    out: Voxels | None = None,
    threads: int = 1,
) -> Voxels:
    """Return the voxels of a crop, or of the whole volume; only chunks that the crop touches are read.

    `expected` are the CRC32C of all chunks: Damaged if a touched chunk differs. The voxels are written into
    `out`, of the crop's shape and in C order, or else returned as an array that may be read-only. IndexError
    for a crop that is not within the volume; OSError if its bytes lie in a map that cannot be read.
    """
    crop = crop or whole(volume)
    for part, side in zip(crop, volume.shape, strict=True):
        if part.step not in (None, 1) or not 0 <= part.start < part.stop <= side:
            raise IndexError(f"{part} is not a crop of {side} voxels")
    if expected is not None and len(expected) != len(volume.spans):
        raise Damaged(f"{len(volume.spans)} chunks, but checksums of {len(expected)}")
    for number, _ in _touched(crop, volume):
        packed = volume.packed(number)
        if expected is not None and google_crc32c.value(packed) != expected[number]:
            raise Damaged(f"chunk {number} differs from its checksum")
    return volume.voxels(crop, out, threads)


def _grid(shape: Sequence[int], chunk: Sequence[int]) -> list[int]:
    return [-(-side // part) for side, part in zip(shape, chunk, strict=True)]


def _whole_blocks(chunk: Sequence[int], block: Sequence[int]) -> list[int]:
    """Return the sides of a chunk in Blosc2, where all blocks have one size."""
    return [parts * side for parts, side in zip(_grid(chunk, block), block, strict=True)]


def _touched(crop: Crop, volume: StoredVolume) -> Iterator[tuple[int, Shape]]:
    """Yield the number of each chunk that the crop touches, with the voxel of the volume where it begins."""
    ranges = [
        range(part.start // side, (part.stop - 1) // side + 1)
        for part, side in zip(crop, volume.chunk, strict=True)
    ]
    depth, height, width = volume.chunk
    _, rows, columns = _grid(volume.shape, volume.chunk)
    for z, y, x in product(*ranges):
        yield (z * rows + y) * columns + x, (z * depth, y * height, x * width)


def _require_frame(content: Buffer) -> int:
    """Return the unpacked size in bytes that the frame claims for a chunk; ValueError if the bytes are no
    frame that can be opened safely."""
    start = bytes(_readable(content[:FIXED_HEADER]))
    if len(start) < FIXED_HEADER or not start.startswith(MAGIC):
        raise ValueError("not a Blosc2 frame")
    (header,) = struct.unpack_from(">i", start, 11)
    length, unpacked, packed = (struct.unpack_from(">q", start, at)[0] for at in (16, 30, 39))
    (chunk,) = struct.unpack_from(">i", start, 58)
    if length != len(content) or not FIXED_HEADER <= header <= length or not 0 <= packed <= length - header:
        raise ValueError(f"a Blosc2 frame that claims {length:,} bytes, but has {len(content):,}")
    _readable(content[:header])
    index = _readable(content[header + packed :])
    if unpacked > 0:
        _require_chunk(bytes(index[:CHUNK_HEADER]))
    return int(chunk)


def _require_chunk(start: bytes, unpacked: int | None = None, packed: int | None = None) -> None:
    """ValueError if a chunk with this start cannot be decompressed safely, or not from `packed` to `unpacked`
    bytes."""
    if len(start) < CHUNK_HEADER:
        raise ValueError("a chunk is cut off")
    flags, own_flags = start[2], start[31]
    if flags >> 5 not in CODECS or flags & EXTENDED != EXTENDED or max(start[16:22]) > LAST_FILTER:
        raise ValueError("a chunk uses a codec or filter that is not built in")
    if own_flags >> 4 & 7 not in SPECIAL:
        raise ValueError("a chunk holds no values")
    size, _, compressed = struct.unpack_from("<iii", start, 4)
    if unpacked is not None and size != unpacked:
        raise ValueError(f"a chunk of {size:,} bytes instead of {unpacked:,}")
    if packed is not None and compressed != packed:
        raise ValueError(f"a chunk of {compressed:,} compressed bytes instead of {packed:,}")


class _NpyVolume:
    """A volume in an NPY file; each slice is a chunk."""

    def __init__(self, content: Buffer) -> None:
        _readable(content[: npy.LONGEST_HEADER])
        self._array = array = npy.parse(content)
        if array.dtype != np.dtype("<i2") or array.ndim != 3 or not array.flags.c_contiguous:
            raise Damaged(f"{array.dtype} {array.shape}, not int16 D,H,W in C order")
        depth, height, width = self.shape = array.shape
        self.chunk = (1, height, width)
        start, size = len(content) - array.nbytes, 2 * height * width
        self.spans: Sequence[tuple[int, int]] = [
            (start + at * size, start + (at + 1) * size) for at in range(depth)
        ]

    def packed(self, number: int) -> Buffer:
        return _readable(self._array[number])

    def voxels(self, crop: Crop, out: Voxels | None, threads: int) -> Voxels:
        found: Voxels = self._array[crop]
        if out is None:
            return found
        out[...] = found
        return out


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
        self._block: Shape = block
        self.spans: Sequence[tuple[int, int]] = _chunk_spans(content, count)

    def packed(self, number: int) -> Buffer:
        try:
            packed = _readable(self._bytes(number))
            _require_chunk(bytes(packed[:CHUNK_HEADER]), self._chunk_bytes, len(packed))
        except (RuntimeError, ValueError) as error:
            raise Damaged(f"chunk {number}: {error}") from None
        return packed

    def _bytes(self, number: int) -> Buffer:
        start, stop = self.spans[number]
        return self._content[start:stop] if start < stop else self._chunks.get_chunk(number)

    def voxels(self, crop: Crop, out: Voxels | None, threads: int) -> Voxels:
        try:
            if not self._takes_whole_chunks(crop):
                found: Voxels = self._array[crop]
                if out is None:
                    return found
                out[...] = found
                return out
            out = np.empty([part.stop - part.start for part in crop], np.int16) if out is None else out
            self._decompress(list(_touched(crop, self)), crop, out, threads)
            return out
        except (RuntimeError, ValueError) as error:
            raise Damaged(f"cannot be decompressed: {error}") from None

    def _takes_whole_chunks(self, crop: Crop) -> bool:
        return all(
            part.start % side == 0 and (part.stop % side == 0 or part.stop == end)
            for part, side, end in zip(crop, self.chunk, self.shape, strict=True)
        )

    def _decompress(self, chunks: Sequence[tuple[int, Shape]], crop: Crop, out: Voxels, threads: int) -> None:
        """Decompress whole chunks to their places in `out`, each of `threads` an equal share of them."""
        shares = [chunks[first::threads] for first in range(min(threads, len(chunks)))]
        if len(shares) == 1:
            self._decompress_share(chunks, crop, out)
            return
        with ThreadPoolExecutor(len(shares)) as pool:
            for done in [pool.submit(self._decompress_share, share, crop, out) for share in shares]:
                done.result()

    def _decompress_share(self, chunks: Sequence[tuple[int, Shape]], crop: Crop, out: Voxels) -> None:
        """Blosc2 gives a chunk as one block behind the other, each in C order, padded to whole blocks."""
        decompress = _blosc2().decompress2
        parts = _grid(self.chunk, self._block)
        blocks = np.empty((*parts, *self._block), np.int16)
        ordered = blocks.transpose(0, 3, 1, 4, 2, 5)
        for number, origin in chunks:
            decompress(self._bytes(number), dst=blocks, nthreads=1)
            starts = [at - part.start for at, part in zip(origin, crop, strict=True)]
            place = out[tuple(slice(at, at + side) for at, side in zip(starts, self.chunk, strict=True))]
            if place.size == blocks.size:
                place.reshape(ordered.shape, copy=False)[...] = ordered
            else:  # it is padded, or the volume ends within it
                chunk = ordered.reshape(_whole_blocks(self.chunk, self._block))
                place[...] = chunk[tuple(slice(side) for side in place.shape)]


def _readable(content: Buffer) -> Buffer:
    """Return the bytes; OSError if they lie in a map and cannot be read."""
    return readable(content) if isinstance(content, np.ndarray) else content


def _chunk_spans(content: Buffer, count: int) -> list[tuple[int, int]]:
    """Return where the bytes of each chunk of a frame lie; ValueError where they do not lie within it, one
    behind the other. The frame has been checked by `_require_frame`."""
    (header,) = struct.unpack_from(">i", bytes(content[:FIXED_HEADER]), 11)
    (size,) = struct.unpack_from(">q", bytes(content[:FIXED_HEADER]), 39)
    offsets = np.empty(count, "<i8")
    index = content[header + size :]
    _require_chunk(bytes(index[:CHUNK_HEADER]), offsets.nbytes)
    _blosc2().decompress2(index, dst=offsets, nthreads=1)
    has_bytes = offsets >= 0
    starts = offsets[has_bytes]
    ends = np.append(starts[1:], size)
    if (starts >= ends).any():
        raise ValueError("its chunks do not lie behind each other")
    spans = np.zeros((count, 2), np.int64)
    spans[has_bytes, 0], spans[has_bytes, 1] = header + starts, header + ends
    return [(start, stop) for start, stop in spans.tolist()]


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
    blosc2.set_releasegil(True)
    return blosc2
