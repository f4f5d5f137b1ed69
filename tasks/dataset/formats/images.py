"""Images as shards hold them: read whole to prove them sound, stored as given or re-encoded.

The format is known by the first bytes, and the file is handed to that format's decoder alone, not to
`Image.open`: it is never tried as PostScript or the like, the pixel count is checked before anything is
decoded, and Pillow's process-wide limits and warnings stay untouched.

What is kept is kept to the byte, except for a picture that its EXIF turns or mirrors: that is stored upright
and without EXIF, because most programs that read shards do not look at it. PNG and lossless WebP lose nothing
by that. JPEG and other WebP are encoded anew, JPEG by its own quantisation tables: a picture whose sides are
multiples of 16, as a camera's are, then loses little more than rounding (55 dB).

Of a file with several frames or pictures (animated WebP and PNG, MPO) the first is the image, as it is for
whoever opens it to train; the others are neither decoded nor, where the file is kept, removed.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image, ImageOps
from PIL.AvifImagePlugin import AvifImageFile
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
from tasks.dataset.formats.signatures import described, image_kind, is_lossless_webp
from tasks.dataset.rejects import Reject

logger = logging.getLogger(__name__)

MEMBERS = ("jpg", "png", "webp")
"""Suffixes that an image may have in a shard; other formats are only read, to be re-encoded."""
SUFFIXES = ("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "avif", "bmp", "gif", "tif", "tiff")
"""Of files in the formats that are read, in lower case."""
UNREAD = (
    *("heic", "heif", "hif", "jxl", "jp2", "j2k", "jpf", "jpx", "jxr"),
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
    "avif": AvifImageFile,
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

ORIENTATION, UPRIGHT, MOVED, LYING = 0x0112, 1, range(2, 9), range(5, 9)
"""EXIF's tag of how a picture is to be turned or mirrored: its value for one that is not, its values for
those that are, and those of them that swap width and height."""

Reduce = Callable[[tuple[int, int]], int]
"""From an upright image's (width, height) to how many times smaller it may be decoded: 1, 2, 4 or 8."""
Stored = tuple[str, bytes, tuple[int, int]]
"""An image as a shard holds it: suffix, content, (width, height)."""


def largest_bytes(rules: ImageRules) -> int:
    """What an image file has at most, without any compression; a larger one cannot be within the limits."""
    return rules.max_pixels * BYTES_PER_PIXEL + SLACK


def decode(data: bytes, rules: ImageRules, reduce: Reduce | None = None) -> tuple[str, ImageFile]:
    """The image's format and its decoded pixels; Reject when it is not sound or not within the limits.

    With `reduce` a JPEG is decoded smaller, by fewer terms of its cosine transform; others come whole.
    """
    kind, image = _parse(data, rules)
    if reduce is not None and (factor := reduce(upright_size(image))) > 1:
        image.draft(None, (image.width // factor, image.height // factor))
    _load(kind, image, data)
    return kind, image


def check_image(data: bytes, rules: ImageRules) -> str:
    """The format of an image that can be decoded; Reject as `decode`, at less cost, as no pixels are kept."""
    kind, _, image, frame = _inspect(data, rules)
    _prove(data, rules, kind, image, frame)
    return kind


def size_of(data: bytes, rules: ImageRules) -> tuple[int, int]:
    """Width and height by the header alone; Reject."""
    return _inspect(data, rules)[1]


def store(data: bytes, rules: ImageRules, *, turns: bool = True) -> Stored:
    """The image as the rules want it stored; Reject as `decode`. `turns` False leaves it as it lies.

    A PNG that only its texts or colour profile keep from being decoded is stored without them.
    """
    try:
        return _store(data, rules, turns)
    except Reject as reject:
        if reject.reason != "image.undecodable" or not data.startswith(png.SIGNATURE):
            raise
        plain = png.without_texts(data)
        if plain == data:
            raise
    return _store(plain, rules, turns)


def _store(data: bytes, rules: ImageRules, turns: bool) -> Stored:
    kind, size, image, frame = _inspect(data, rules)
    fits = rules.max_side is None or max(size) <= rules.max_side
    if fits and kind in MEMBERS:
        if turns and (orientation := _orientation(kind, data, image)) != UPRIGHT:
            return _turned(data, rules, orientation)
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
) -> tuple[str, tuple[int, int], ImageFile | None, jpeg.JpegHeader | None]:
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
    kind = image_kind(data)
    if kind is None:
        raise Reject("image.not_an_image", f"it is {described(data)}")
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
    data: bytes, rules: ImageRules, kind: str, image: ImageFile | None, frame: jpeg.JpegHeader | None
) -> None:
    """Reject unless the image can be decoded."""
    if frame is not None and jpeg.surely_decodes(data, frame):
        return
    if image is None:
        kind, image = _parse(data, rules)
    _load(kind, image, data)


def _is_whole(kind: str, data: bytes, image: ImageFile | None, frame: jpeg.JpegHeader | None) -> bool:
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
    return _saved(image, suffix, ENCODERS.get(suffix, {}))


def _saved(image: Image.Image, suffix: str, options: Mapping[str, object]) -> Stored:
    """With its colour profile, without its EXIF."""
    if suffix == "png":
        return "png", png.encode(image), image.size
    file = io.BytesIO()
    image.save(file, **options, icc_profile=image.info.get("icc_profile"))  # type: ignore[arg-type]
    return suffix, file.getvalue(), image.size


def _turned(data: bytes, rules: ImageRules, orientation: int) -> Stored:
    """In its own format, upright, with as little lost as that allows."""
    kind, image = decode(data, rules)
    options = ENCODERS.get(kind, {})
    if isinstance(image, JpegImageFile):
        if image.mode not in ("L", "RGB"):
            return _encode(image, kind, None)
        options = {"format": "JPEG", **jpeg.as_encoded(image, is_turned=orientation in LYING)}
    elif kind == "webp" and is_lossless_webp(data):
        options = {**options, "lossless": True, "exact": True}
    return _saved(upright(image), kind, options)


def _orientation(kind: str, data: bytes, image: ImageFile | None) -> int:
    """How EXIF, or XMP in its place, says that the picture lies; `image` is its parsed header."""
    if image is None or (kind == "png" and not png.may_turn(data)):
        return UPRIGHT  # a plain JPEG has neither
    if kind == "png":
        image = PngImageFile(io.BytesIO(data))  # looking into it decodes it
    found = _exif_orientation(image)
    return found if isinstance(found, int) and found in MOVED else UPRIGHT


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
    return (image.height, image.width) if _exif_orientation(image) in LYING else image.size


def _exif_orientation(image: Image.Image) -> object:
    """The tag's value, whatever it holds; None where there is none, or the EXIF is torn."""
    try:
        return image.getexif().get(ORIENTATION)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        logger.debug("EXIF passed over: %s", error)
        return None


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
