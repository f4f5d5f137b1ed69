"""PNG by its chunks: texts taken out, and pixels compressed to the same bytes on every machine.

Pillow's wheels compress with the zlib of the system, whose output differs from one distribution to the next,
and with some of them from one processor to the next. Arrow brings a zlib of its own, so Pillow filters the
rows and Arrow compresses them. Format: https://www.w3.org/TR/png-3/, section 5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
END = b"IEND\xaeB`\x82"
TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
"""Texts, and the colour profile: what decoders inflate beside the pixels, and refuse when it is large."""
LEVEL = 6
_GZIP_HEADER = 10
_GZIP_TRAILER = 8


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Every chunk's name, and where it starts and stops in `data`; ends before a chunk that is torn."""
    start = len(SIGNATURE)
    while start + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, start)
        stop = start + 12 + length
        if stop > len(data):
            return
        yield name, start, stop
        start = stop


def without_texts(data: bytes) -> bytes:
    """The same picture without texts and colour profile; all else, damage included, stays as it is."""
    kept = [SIGNATURE]
    end = len(SIGNATURE)
    for name, start, stop in chunks(data):
        end = stop
        if name not in TEXTS:
            kept.append(data[start:stop])
    return b"".join([*kept, data[end:]])


def compressed(plain: bytes) -> bytes:
    """A PNG that was stored without compression, compressed."""
    import pyarrow as pa  # here, because most datasets keep their images as they are

    parts = [(name, plain[start + 8 : stop - 4]) for name, start, stop in chunks(plain)]
    rows = zlib.decompress(b"".join(content for name, content in parts if name == b"IDAT"))
    packed = pa.Codec("gzip", compression_level=LEVEL).compress(rows, asbytes=True)
    deflated = packed[_GZIP_HEADER:-_GZIP_TRAILER]
    stream = b"\x78\x9c" + deflated + struct.pack(">I", zlib.adler32(rows))
    first = [_chunk(name, content) for name, content in parts if name not in (b"IDAT", b"IEND")]
    return b"".join([SIGNATURE, *first, _chunk(b"IDAT", stream), _chunk(b"IEND", b"")])


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
