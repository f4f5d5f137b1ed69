"""Handles PNG chunks: removes texts, and compresses pixels to the same bytes on every machine.

Pillow compresses with the system's zlib, whose output differs between distributions and, in some of them,
between processors. Arrow brings its own zlib, so Pillow filters the rows and Arrow compresses them. Format:
https://www.w3.org/TR/png-3/, section 5.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from tasks.dataset.formats.signatures import PNG

SIGNATURE = PNG
END = b"IEND\xaeB`\x82"
TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
"""Texts and the colour profile: chunks that decoders inflate besides the pixels, and reject if they are
large."""
TAIL = 4096
"""Bytes at a file's end that are searched for its end mark."""
TURNING = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
"""The starts of texts that may hold an orientation, as the chunk `eXIf` may."""
LEVEL = 6
_GZIP_HEADER = 10
_GZIP_TRAILER = 8


def has_end(data: bytes) -> bool:
    """Whether the end mark is near the file's end, where other bytes may follow it."""
    return data.rfind(END, -TAIL) >= 0


def bits(data: bytes) -> int:
    """Return the bits per channel that a parsed file's header states."""
    return next((data[start + 16] for name, start, _ in chunks(data) if name == b"IHDR"), 8)


def may_turn(data: bytes) -> bool:
    """Whether the file may hold an orientation; if not, it need not be parsed for one."""
    return any(
        name == b"eXIf" or (name in TEXTS and data.startswith(TURNING, start + 8))
        for name, start, _ in chunks(data)
    )


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield every chunk's name with its start and stop in `data`, up to a torn chunk."""
    start = len(SIGNATURE)
    while start + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, start)
        stop = start + 12 + length
        if stop > len(data):
            return
        yield name, start, stop
        start = stop


def without_texts(data: bytes) -> bytes:
    """Return the same picture without texts and colour profile; everything else, even damage, stays."""
    kept = [SIGNATURE]
    end = len(SIGNATURE)
    for name, start, stop in chunks(data):
        end = stop
        if name not in TEXTS:
            kept.append(data[start:stop])
    return b"".join([*kept, data[end:]])


def encode(image: Image.Image) -> bytes:
    """Encode the image as a PNG with its colour profile."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=0)
    plain = file.getvalue()
    parts = [(name, plain[start + 8 : stop - 4]) for name, start, stop in chunks(plain)]
    rows = zlib.decompress(b"".join(content for name, content in parts if name == b"IDAT"))
    kept = [SIGNATURE]
    for name, content in parts:
        if name == b"iCCP":  # Pillow has compressed the profile as well
            title, _, rest = content.partition(b"\0")
            content = title + b"\0" + rest[:1] + _deflated(zlib.decompress(rest[1:]))
        if name not in (b"IDAT", b"IEND"):
            kept.append(_chunk(name, content))
    return b"".join([*kept, _chunk(b"IDAT", _deflated(rows)), _chunk(b"IEND", b"")])


def _deflated(plain: bytes) -> bytes:
    """Compress bytes to a zlib stream."""
    import pyarrow as pa  # here, because most datasets keep their images as they are

    packed: bytes = pa.Codec("gzip", compression_level=LEVEL).compress(plain, asbytes=True)
    deflated = packed[_GZIP_HEADER:-_GZIP_TRAILER]
    return b"\x78\x9c" + deflated + struct.pack(">I", zlib.adler32(plain))


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
