"""PNG by its chunks: texts taken out, and pixels compressed to the same bytes on every machine.

Pillow's wheels compress with the zlib of the system, whose output differs from one distribution to the next,
and with some of them from one processor to the next. Arrow brings a zlib of its own, so Pillow filters the
rows and Arrow compresses them. Format: https://www.w3.org/TR/png-3/, section 5.
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
"""Texts and the colour profile: chunks that decoders inflate beside the pixels, and refuse when large."""
TAIL = 4096
"""Bytes at a file's end in which its end mark is looked for."""
TURNING = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
"""How texts begin that may say how the picture is to be turned, as the chunk `eXIf` may."""
LEVEL = 6
_GZIP_HEADER = 10
_GZIP_TRAILER = 8


def has_end(data: bytes) -> bool:
    """Whether the mark of the end is near the end; a file may hold something after it."""
    return data.rfind(END, -TAIL) >= 0


def may_turn(data: bytes) -> bool:
    """False where nothing in the file says how the picture is to be turned; it need not be parsed then."""
    return any(
        name == b"eXIf" or (name in TEXTS and data.startswith(TURNING, start + 8))
        for name, start, _ in chunks(data)
    )


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


def encode(image: Image.Image) -> bytes:
    """The image as a PNG, with its colour profile."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=0)
    plain = file.getvalue()
    parts = [(name, plain[start + 8 : stop - 4]) for name, start, stop in chunks(plain)]
    rows = zlib.decompress(b"".join(content for name, content in parts if name == b"IDAT"))
    first = [
        _chunk(name, _profile(content) if name == b"iCCP" else content)
        for name, content in parts
        if name not in (b"IDAT", b"IEND")
    ]
    return b"".join([SIGNATURE, *first, _chunk(b"IDAT", _deflated(rows)), _chunk(b"IEND", b"")])


def _profile(content: bytes) -> bytes:
    """The content of an `iCCP` chunk, whose profile Pillow has compressed."""
    name, _, rest = content.partition(b"\0")
    return name + b"\0" + rest[:1] + _deflated(zlib.decompress(rest[1:]))


def _deflated(plain: bytes) -> bytes:
    """As a zlib stream."""
    import pyarrow as pa  # here, because most datasets keep their images as they are

    packed: bytes = pa.Codec("gzip", compression_level=LEVEL).compress(plain, asbytes=True)
    deflated = packed[_GZIP_HEADER:-_GZIP_TRAILER]
    return b"\x78\x9c" + deflated + struct.pack(">I", zlib.adler32(plain))


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
