"""Images as shards hold them: read whole to prove them sound, stored as given or re-encoded.

The format is known by the first bytes, and the file is handed to that format's decoder alone, not to
`Image.open`: it is never tried as PostScript or the like, the pixel count is checked before anything is
decoded, and Pillow's process-wide limits and warnings stay untouched.

What is kept is kept to the byte, EXIF rotation included, which the loader applies. Of a file with several
frames or pictures (animated WebP and PNG, MPO) the first is the image, as it is for whoever opens it to
train; the others are neither decoded nor removed.
"""

from __future__ import annotations

import codecs
import io
import logging
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tasks.core.schema import ImageRules
from tasks.core.schema.dataset import MOST_PIXELS
from tasks.dataset.formats import jpeg, png
from tasks.dataset.rejects import Reject

logger = logging.getLogger(__name__)

MEMBERS = ("jpg", "png", "webp")
"""Suffixes that an image may have in a shard; other formats are only read, to be re-encoded."""
SUFFIXES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff")
"""Of files in the formats that are read, in lower case."""
UNREAD = (
    *("heic", "heif", "hif", "avif", "jxl", "jp2", "j2k", "jpf", "jpx", "jxr"),
    *("svg", "svgz", "eps", "psd", "xcf", "ico", "icns", "tga", "pcx", "dds"),
    *("ppm", "pgm", "pbm", "pnm", "pfm", "exr", "hdr"),
    *("dng", "raw", "cr2", "cr3", "crw", "nef", "arw", "orf", "rw2", "raf", "pef", "srw"),
)
"""Of images in formats that are not read; they have to be converted."""
BYTES_PER_PIXEL = 8
"""16-bit RGBA."""
SLACK = 1 << 20

DECODERS: dict[str, Callable[[io.BytesIO], ImageFile]] = {
    "jpg": JpegImageFile,
    "png": PngImageFile,
    "webp": WebPImageFile,
    "bmp": BmpImageFile,
    "gif": GifImageFile,
    "tiff": TiffImageFile,
}
ENCODERS: dict[str, dict[str, object]] = {
    "jpg": {"format": "JPEG", "quality": 92},
    "webp": {"format": "WEBP", "quality": 90},
}
ANY_SIZE = ImageRules(max_pixels=MOST_PIXELS)
"""For readers that do not know what the build allowed; a torn header must still not ask for all memory."""
RANGELESS = ("I", "F")
"""Modes of pixels that may mean anything: only their author knows which value is white."""
RANGE_UNKNOWN = "float or 32-bit grey, whose range is not known"

START = 512
"""Bytes from a file's start by which its kind is described."""
BEGINNINGS = {
    b"%PDF-": "a PDF file",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip",
    b"\xff\x0a": "a JPEG XL image",
    b"\0\0\0\x0cJXL ": "a JPEG XL image",
    b"\0\0\0\x0cjP  ": "a JPEG 2000 image",
}
BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"mif1"), "a HEIC image"),
    **dict.fromkeys((b"avif", b"avis"), "an AVIF image"),
}
"""Of the container that holds MP4 videos too."""
MARKUP = {"<!doctype html": "HTML", "<html": "HTML", "<svg": "SVG", "<": "XML", "{": "JSON", "[": "JSON"}

ORIENTATION, LYING = 0x0112, range(5, 9)
"""EXIF's tag of how a picture is to be turned, and its values that swap width and height."""

Reduce = Callable[[tuple[int, int]], int]
"""From an upright image's (width, height) to how many times smaller it may be decoded: 1, 2, 4 or 8."""
Stored = tuple[str, bytes, tuple[int, int]]
"""An image as a shard holds it: suffix, content, (width, height)."""


def largest_bytes(rules: ImageRules) -> int:
    """What an image file has at most, without any compression; a larger one cannot be within the limits."""
    return rules.max_pixels * BYTES_PER_PIXEL + SLACK


def kind_of(data: bytes) -> str | None:
    """The format's name by its signature; None when it is no known image."""
    if data.startswith(jpeg.SIGNATURE):
        return "jpg"
    if data.startswith(png.SIGNATURE):
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith((b"II*\0", b"MM\0*")):
        return "tiff"
    return "bmp" if data.startswith(b"BM") else None


def decode(data: bytes, rules: ImageRules, reduce: Reduce | None = None) -> tuple[str, ImageFile]:
    """The image's format and its decoded pixels; Reject when it is not sound or not within the limits.

    With `reduce` a JPEG is decoded smaller, by fewer terms of its cosine transform; others come whole.
    """
    kind, image = _parse(data, rules)
    if reduce is not None and (factor := reduce(upright_size(image))) > 1:
        image.draft(None, (image.width // factor, image.height // factor))
    _load(kind, image, data)
    return kind, image


def check(data: bytes, rules: ImageRules) -> str:
    """The format of an image that can be decoded; Reject as `decode`, at less cost, as no pixels are kept."""
    kind, _, image, frame = _inspect(data, rules)
    _prove(data, rules, kind, image, frame)
    return kind


def size_of(data: bytes, rules: ImageRules) -> tuple[int, int]:
    """Width and height by the header alone; Reject."""
    return _inspect(data, rules)[1]


def store(data: bytes, rules: ImageRules) -> Stored:
    """The image as the rules want it stored; Reject as `decode`.

    A PNG that only its texts or colour profile keep from being decoded is stored without them.
    """
    try:
        return _store(data, rules)
    except Reject as reject:
        if reject.reason != "image.undecodable" or not data.startswith(png.SIGNATURE):
            raise
        plain = png.without_texts(data)
        if plain == data:
            raise
    return _store(plain, rules)


def _store(data: bytes, rules: ImageRules) -> Stored:
    kind, size, image, frame = _inspect(data, rules)
    fits = rules.max_side is None or max(size) <= rules.max_side
    if fits and kind in MEMBERS and rules.encode in ("keep", kind):
        if rules.check == "decode" or not _is_whole(kind, data, image, frame):
            _prove(data, rules, kind, image, frame)
        return kind, data, size
    kind, image = decode(data, rules)
    if rules.encode == "keep" and kind not in MEMBERS:
        fix = "set dataset.image.encode"
        raise Reject("image.undecodable", f"shards hold {', '.join(MEMBERS)}, not {kind}: {fix}")
    return _encode(image, kind if rules.encode == "keep" else rules.encode, rules.max_side)


def _inspect(
    data: bytes, rules: ImageRules
) -> tuple[str, tuple[int, int], ImageFile | None, jpeg.Frame | None]:
    """Format and (width, height) by the header, nothing decoded; what Pillow has parsed, unless a plain JPEG
    needed no parser; and a JPEG's frame."""
    frame = jpeg.frame(data)
    if frame is not None and frame.is_plain:
        _check_size(frame.size, rules)
        return "jpg", frame.size, None, frame
    kind, image = _parse(data, rules)
    return kind, image.size, image, frame


def _parse(data: bytes, rules: ImageRules) -> tuple[str, ImageFile]:
    """The image's format and its header by Pillow's parser, nothing decoded."""
    if not data:
        raise Reject("image.empty", "0 bytes")
    kind = kind_of(data)
    if kind is None:
        raise Reject("image.not_an_image", f"it is {_described(data)}")
    try:
        image = DECODERS[kind](io.BytesIO(data))
    except MemoryError:
        raise  # of this host, not of the image
    except Image.DecompressionBombError:  # WebP's decoder looks before it makes its canvas
        raise Reject("image.too_large", f"more than {rules.max_pixels:,} pixels") from None
    except Exception as error:  # noqa: BLE001 - decoders raise whatever a torn header leads them to
        raise _undecodable(kind, error) from None
    _check_size(image.size, rules)
    if kind == "tiff" and image.mode in RANGELESS:
        raise Reject("image.undecodable", f"tiff: {RANGE_UNKNOWN}")
    return kind, image


def _load(kind: str, image: ImageFile, data: bytes) -> None:
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above, for torn pixels
        raise _undecodable(kind, error) from None
    if kind == "png" and not png.has_end(data) and png.END not in data:
        raise Reject("image.undecodable", "png: ends before its last chunk")


def _prove(
    data: bytes, rules: ImageRules, kind: str, image: ImageFile | None, frame: jpeg.Frame | None
) -> None:
    """Reject unless the image can be decoded."""
    if frame is not None and jpeg.surely_decodes(data, frame):
        return
    if image is None:
        kind, image = _parse(data, rules)
    _load(kind, image, data)


def _is_whole(kind: str, data: bytes, image: ImageFile | None, frame: jpeg.Frame | None) -> bool:
    """Whether the end of the file is there, which a torn one lacks; False if only decoding can tell."""
    if kind == "png":
        return png.has_end(data)
    if kind == "webp":
        return True  # its parser has compared the sizes of its chunks
    if frame is not None:
        return jpeg.has_end(data, frame.scan)
    return image is not None and image.fp is not None and jpeg.has_end(data, image.fp.tell())


def _undecodable(kind: str, error: Exception) -> Reject:
    return Reject("image.undecodable", f"{kind}: {type(error).__name__}: {str(error)[:200]}")


def _check_size(size: tuple[int, int], rules: ImageRules) -> None:
    width, height = size
    if width * height > rules.max_pixels:
        raise Reject("image.too_large", f"{width} x {height}, more than {rules.max_pixels:,} pixels")
    if min(width, height) < rules.min_side:
        raise Reject("image.too_small", f"{width} x {height}, shorter than {rules.min_side}")


def _described(data: bytes) -> str:
    """What a file is that is no image, by its kind alone: its bytes may be anything, such as a password file
    that a row named by mistake, and reports of rejects are read by many."""
    start = data[:START]
    for beginning, name in BEGINNINGS.items():
        if start.startswith(beginning):
            return name
    if start[4:8] == b"ftyp":
        return BRANDS.get(start[8:12], "a video")
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return "no known kind of file"
    if any(char < " " and not char.isspace() for char in text):
        return "no known kind of file"
    written = text.lstrip().lower()
    return next((name for beginning, name in MARKUP.items() if written.startswith(beginning)), "text")


def _encode(image: Image.Image, suffix: str, max_side: int | None) -> Stored:
    """Upright, scaled down to `max_side` and encoded, as `to_rgb` shows what is not plain grey or RGB(A)."""
    image = upright(image)
    if image.mode not in ("L", "P", "RGB", "RGBA"):
        image.info.pop("icc_profile", None)  # it is about inks or so, and the pixels will be RGB
    keeps_alpha = image.mode == "RGBA" and suffix != "jpg"
    if not keeps_alpha and (image.mode != "L" or image.has_transparency_data):
        image = to_rgb(image)
    if max_side is not None:
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    if suffix == "png":
        return "png", png.encode(image), image.size
    file = io.BytesIO()
    image.save(file, **ENCODERS[suffix])  # type: ignore[arg-type]
    return suffix, file.getvalue(), image.size


def upright(image: Image.Image) -> Image.Image:
    """The image itself, decoded and turned as its EXIF says; as it lies where the EXIF is torn."""
    image.load()
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as torn headers do
        logger.debug("EXIF passed over: %s", error)
    return image


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of what `upright` gives, by the header alone."""
    try:
        lies = image.getexif().get(ORIENTATION) in LYING
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        logger.debug("EXIF passed over: %s", error)
        lies = False
    return (image.height, image.width) if lies else image.size


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture as a viewer would show it: what is transparent lies on white, 16-bit grey is scaled to 8.

    Pillow's plain conversion drops the alpha channel (so hidden colours show) and clips 16 bits to white.
    ValueError for grey of more than 16 bits.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode in RANGELESS:
        raise ValueError(RANGE_UNKNOWN)
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")
