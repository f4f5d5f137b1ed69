"""Images as shards hold them: read whole to prove them sound, stored as given or re-encoded.

Formats are told by their first bytes and handed to that format's decoder alone, not to `Image.open`: a file
is never tried as PostScript or the like, the pixel count is checked before anything is decoded, and Pillow's
process-wide limits and warnings stay untouched.

What is kept is kept to the byte, EXIF rotation included, which the loader applies. Of a file with several
frames or pictures (animated WebP and PNG, MPO) the first is the image, as it is for whoever opens it to
train; the others are neither decoded nor removed.
"""

from __future__ import annotations

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
from tasks.dataset.formats import jpeg, png, signatures
from tasks.dataset.rejects import Reject

logger = logging.getLogger(__name__)

MEMBERS = ("jpg", "png", "webp")
"""Suffixes an image may have in a shard; the others are only read, to be re-encoded."""
SUFFIXES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff")
"""Of files in these formats, in lower case."""
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
"""For whoever does not know what the build allowed; a torn header must still not ask for all the memory."""
RANGELESS = ("I", "F")
"""Modes of pixels that may mean anything: which value is white, only whoever wrote them knows."""
RANGE_UNKNOWN = "float or 32-bit grey, whose range is not known"


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


def decode(data: bytes, rules: ImageRules) -> tuple[str, ImageFile]:
    """The image's format and its decoded pixels; Reject when it is not sound or not within the limits."""
    kind, image = _parse(data, rules)
    _load(kind, image, data)
    return kind, image


def _parse(data: bytes, rules: ImageRules) -> tuple[str, ImageFile]:
    """The image's format and its header, nothing decoded."""
    if not data:
        raise Reject("image.empty", "0 bytes")
    kind = kind_of(data)
    if kind is None:
        raise Reject("image.not_an_image", f"it is {signatures.described(data)}")
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


def check(data: bytes, rules: ImageRules) -> str:
    """The format of an image that can be decoded; Reject as `decode`, for less where no pixels are wanted."""
    found = jpeg.frame(data)
    if found is not None and found.is_plain:
        _check_size(found.size, rules)
        if jpeg.surely_decodes(data, found):
            return "jpg"
    kind, image = _parse(data, rules)
    _prove(kind, image, data)
    return kind


def _prove(kind: str, image: ImageFile, data: bytes) -> None:
    """Reject unless the image can be decoded."""
    found = jpeg.frame(data)
    if found is not None and jpeg.surely_decodes(data, found):
        return
    _load(kind, image, data)


def _is_whole(kind: str, image: ImageFile, data: bytes) -> bool:
    """Whether the end of the file is there, which a torn one lacks; False if only decoding can tell."""
    if kind == "png":
        return png.has_end(data)
    if kind == "webp":
        return True  # its parser has compared the sizes that its chunks tell
    if kind == "jpg":
        assert image.fp is not None
        return jpeg.has_end(data, image.fp.tell())
    return False


def _undecodable(kind: str, error: Exception) -> Reject:
    return Reject("image.undecodable", f"{kind}: {type(error).__name__}: {str(error)[:200]}")


def _check_size(size: tuple[int, int], rules: ImageRules) -> None:
    width, height = size
    if width * height > rules.max_pixels:
        raise Reject("image.too_large", f"{width} x {height}, more than {rules.max_pixels:,} pixels")
    if min(width, height) < rules.min_side:
        raise Reject("image.too_small", f"{width} x {height}, shorter than {rules.min_side}")


def store(data: bytes, rules: ImageRules) -> tuple[str, bytes, tuple[int, int]]:
    """Suffix, bytes and (width, height) of the image as the rules want it stored; Reject as `decode`.

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


def _store(data: bytes, rules: ImageRules) -> tuple[str, bytes, tuple[int, int]]:
    found = jpeg.frame(data)
    if found is not None and found.is_plain and _is_kept("jpg", found.size, rules):
        _check_size(found.size, rules)
        decodes = rules.check == "decode"
        if jpeg.surely_decodes(data, found) if decodes else jpeg.has_end(data, found.scan):
            return "jpg", data, found.size
    kind, image = _parse(data, rules)
    size = image.size
    if _is_kept(kind, size, rules):
        if rules.check == "decode" or not _is_whole(kind, image, data):
            _prove(kind, image, data)
        return kind, data, size
    _load(kind, image, data)
    if rules.encode == "keep" and kind not in MEMBERS:
        fix = "set dataset.image.encode"
        raise Reject("image.undecodable", f"shards hold {', '.join(MEMBERS)}, not {kind}: {fix}")
    suffix = kind if rules.encode == "keep" else rules.encode
    return suffix, *_encode(image, suffix, rules.max_side)


def _is_kept(kind: str, size: tuple[int, int], rules: ImageRules) -> bool:
    """Whether the file goes into the shard as it is."""
    fits = rules.max_side is None or max(size) <= rules.max_side
    return fits and kind in MEMBERS and rules.encode in ("keep", kind)


def _encode(image: Image.Image, suffix: str, max_side: int | None) -> tuple[bytes, tuple[int, int]]:
    """Upright, scaled down to `max_side` and encoded, as `to_rgb` shows what is not plain grey or RGB(A)."""
    image = upright(image)
    if image.mode not in ("L", "P", "RGB", "RGBA"):
        image.info.pop("icc_profile", None)  # it tells about inks or so, and the pixels will be RGB
    keeps_alpha = image.mode == "RGBA" and suffix != "jpg"
    if not keeps_alpha and (image.mode != "L" or image.has_transparency_data):
        image = to_rgb(image)
    if max_side is not None:
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    if suffix == "png":
        return png.encode(image), image.size
    file = io.BytesIO()
    image.save(file, **ENCODERS[suffix])  # type: ignore[arg-type]
    return file.getvalue(), image.size


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
