"""The header of a Blosc2 frame, checked before Blosc2 sees it: it may name no plugin, and claim nothing that
is not there.

Blosc2 loads a shared library, by starting a Python process, for a codec or filter with a number that it does
not know, and hands out uninitialised memory where a chunk says so. So the frame's header, and each chunk's
before it is decompressed, must name only what is built in. Formats: README_CFRAME_FORMAT.rst and
README_CHUNK_FORMAT.rst of https://github.com/Blosc/c-blosc2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tasks.dataset.tar.format import Buffer

MAGIC = b"\x9e\xa8b2frame\0"
FIXED_HEADER = 87
"""Bytes up to the metalayers."""
CHUNK_HEADER = 32
CODECS = (0, 1, 3, 4)
"""BloscLZ, LZ4 (and LZ4HC), zlib, Zstandard; 7 stands for a plugin."""
LAST_FILTER = 2
"""None, shuffle and bitshuffle."""
EXTENDED = 0x05
ZEROS, REPEATED = 1, 3
SPECIAL = (0, ZEROS, REPEATED)
"""No special chunk, all zeros, one value repeated; NaN (2) and uninitialised (4) hold no volume."""


@dataclass(frozen=True)
class FrameHeader:
    """Sizes in bytes as the frame claims them, unpacked and packed."""

    header: int
    unpacked: int
    packed: int
    chunk: int


def require_frame(content: Buffer) -> FrameHeader:
    """The frame's header; ValueError when the bytes are no frame that is safe to open."""
    start = bytes(content[:FIXED_HEADER])
    if len(start) < FIXED_HEADER or not start.startswith(MAGIC):
        raise ValueError("no Blosc2 frame")
    (header,) = struct.unpack_from(">i", start, 11)
    length, unpacked, packed = (struct.unpack_from(">q", start, at)[0] for at in (16, 30, 39))
    (chunk,) = struct.unpack_from(">i", start, 58)
    if length != len(content) or not FIXED_HEADER <= header <= length or not 0 <= packed <= length - header:
        raise ValueError(f"a Blosc2 frame that claims {length:,} bytes, of which there are {len(content):,}")
    if unpacked > 0:
        require_chunk(bytes(content[header + packed : header + packed + CHUNK_HEADER]))
    return FrameHeader(header, unpacked, packed, chunk)


def require_chunk(start: bytes, unpacked: int | None = None) -> None:
    """ValueError when the chunk that starts so is not safe to decompress, or not to `unpacked` bytes."""
    if len(start) < CHUNK_HEADER:
        raise ValueError("a chunk is cut off")
    flags, own_flags = start[2], start[31]
    if flags >> 5 not in CODECS or flags & EXTENDED != EXTENDED or max(start[16:22]) > LAST_FILTER:
        raise ValueError("a chunk is of a codec or filter that is not built in")
    if own_flags >> 4 & 7 not in SPECIAL:
        raise ValueError("a chunk holds no values")
    (size,) = struct.unpack_from("<i", start, 4)
    if unpacked is not None and size != unpacked:
        raise ValueError(f"a chunk of {size:,} bytes where {unpacked:,} belong")
