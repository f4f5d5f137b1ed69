"""Images in shards: decoded completely to prove that they are sound, and stored as given or re-encoded.

The first bytes give the format, and only that format's decoder gets the file, not `Image.open`. So a file is
never tried as PostScript or similar, the pixel count is checked before decoding, and Pillow's process-wide
limits and warnings stay untouched.

Images are kept byte for byte, except those that EXIF turns or mirrors: these are stored upright and without
EXIF, because most programs that read shards ignore it. PNG and lossless WebP lose nothing by that. JPEG and
other WebP are re-encoded, JPEG with its own quantisation tables, so a picture whose sides are multiples of
16, as a camera's are, loses little more than rounding (55 dB).

HEIC is read by pillow-heif, an optional package, which turns a picture as its container says and ignores its
EXIF, as the format wants it.

A JPEG that is stored much smaller is decoded smaller, from fewer terms of its cosine transform, if the result
is as near to scaling the whole picture without any shortcut as Pillow's `thumbnail` is. Both stay within 44
dB, and mostly 50 dB, on photographs of 0.2 to 8 megapixels.

If a file has several frames or pictures (animated WebP and PNG, MPO), the first is the image, as it is for
training code that opens the file. The others are not decoded, and stay in the file if it is kept.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import NamedTuple

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
from tasks.dataset.formats import jpeg, measures, png
from tasks.dataset.formats.signatures import described, image_kind, is_lossless_webp
from tasks.dataset.version.rejects import Reject

logger = logging.getLogger(__name__)

MEMBERS = ("jpg", "png", "webp")
"""Suffixes of images in shards; other formats can be read, and are re-encoded."""
HEIC = ("heic", "heif", "hif")
GET_HEIC = "pip install 'tarmac[heic]'"
SUFFIXES = ("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "avif", "bmp", "gif", "tif", "tiff", *HEIC)
"""Suffixes of files in formats that can be read, in lower case."""
UNREAD = (
    *("jxl", "jp2", "j2k", "jpf", "jpx", "jxr"),
    *("svg", "svgz", "eps", "psd", "xcf", "ico", "icns", "tga", "pcx", "dds"),
    *("ppm", "pgm", "pbm", "pnm", "pfm", "exr", "hdr"),
    *("dng", "raw", "cr2", "cr3", "crw", "nef", "arw", "orf", "rw2", "raf", "pef", "srw"),
)
"""Suffixes of images in formats that cannot be read; the user has to convert them."""
BYTES_PER_PIXEL = 8
"""The size of a pixel in 16-bit RGBA."""
SLACK = 1 << 20


def can_read_heic() -> bool:
    """Whether the package that reads HEIC is installed."""
    return find_spec("pillow_heif") is not None


def _open_heic(file: io.BytesIO) -> ImageFile:
    if not can_read_heic():
        raise Reject("image.undecodable", f"heic is read with pillow-heif: {GET_HEIC}")
    from pillow_heif import HeifImageFile  # its library is loaded only where there is such an image

    image: ImageFile = HeifImageFile(file)  # type: ignore[no-untyped-call]
    return image


DECODERS: dict[str, Callable[[io.BytesIO], ImageFile]] = {
    "jpg": JpegImageFile,
    "png": PngImageFile,
    "webp": WebPImageFile,
    "avif": AvifImageFile,
    "bmp": BmpImageFile,
    "gif": GifImageFile,
    "tiff": TiffImageFile,
    "heic": _open_heic,
}
ENCODERS: dict[str, dict[str, object]] = {
    "jpg": {"format": "JPEG", "quality": 92},
    "webp": {"format": "WEBP", "quality": 90},
}
ANY_SIZE = ImageRules(max_pixels=MOST_PIXELS)
"""Limits for readers that do not know the build's; even so, a torn header must not allocate all memory."""
SCALED = ((8, 4), (4, 4), (2, 2))
"""How many times smaller a JPEG may be decoded, and how many times the stored side it must still have."""
_PROFILE, _SRGB = b"ICC_PROFILE\0", (b"sRGB", "sRGB".encode("utf-16-be"))
"""The mark of a colour profile in a JPEG's header, and how profiles spell the name of sRGB."""
RANGELESS = ("I", "F")
"""Pixel modes without a fixed range: only the author knows which value is white."""
RANGE_UNKNOWN = "float or 32-bit grey, whose range is unknown"

ORIENTATION, UPRIGHT, MOVED, LYING = 0x0112, 1, range(2, 9), range(5, 9)
"""EXIF's tag for the orientation of a picture, its value for an upright one, its values for turned or
mirrored ones, and those that swap width and height."""


class StoredImage(NamedTuple):
    """An image as it is stored, and what is known of it.

    `size` is (width, height). `luma` is its grey picture as `measures` needs it, None if it was not decoded.
    `frames` counts the pictures of an animation. `colour` is that of its pixels: `grey`, `rgb`, `cmyk`,
    `deep` (more than 8 bits per channel) or `profile` (RGB by another colour profile than sRGB).
    """

    suffix: str
    content: bytes
    size: tuple[int, int]
    luma: Image.Image | None
    frames: int
    colour: str


class ImageHeader(NamedTuple):
    """What is known of an image without decoding: its format, its (width, height), Pillow's image unless a
    plain JPEG did not need Pillow's parser, and a JPEG's own header."""

    kind: str
    size: tuple[int, int]
    image: ImageFile | None
    frame: jpeg.JpegHeader | None


def largest_bytes(rules: ImageRules) -> int:
    """Return the size of the largest allowed image without compression; a larger file cannot be allowed."""
    return rules.max_pixels * BYTES_PER_PIXEL + SLACK


def decode(data: bytes, rules: ImageRules, factor: int = 1) -> tuple[str, ImageFile]:
    """Return the image's format and its decoded pixels; Reject if it is not sound or not within the limits.

    A JPEG is decoded `factor` (1, 2, 4 or 8) times smaller, with fewer terms of its cosine transform; other
    formats are not.
    """
    kind, image = _parse(data, rules)
    if factor > 1:
        image.draft(None, (image.width // factor, image.height // factor))
    _load(kind, image, data)
    return kind, image


def check_image(data: bytes, rules: ImageRules) -> str:
    """Return the format of an image; Reject like `decode`, but faster, because no pixels are kept."""
    header = inspect(data, rules)
    _prove(data, rules, header)
    return header.kind


def size_of(data: bytes, rules: ImageRules) -> tuple[int, int]:
    """Return width and height from the header alone; Reject if it is not sound."""
    return inspect(data, rules).size


def store(data: bytes, rules: ImageRules, *, turns: bool = True) -> StoredImage:
    """Return the image as the rules want it stored; Reject like `decode`. With `turns` False it is not turned
    upright.

    A PNG that cannot be decoded because of its texts or colour profile is stored without them.
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


def _store(data: bytes, rules: ImageRules, turns: bool) -> StoredImage:
    header = inspect(data, rules)
    fits = rules.max_side is None or max(header.size) <= rules.max_side
    if fits and header.kind in MEMBERS:
        if turns and (orientation := orientation_of(data, header)) != UPRIGHT:
            return _turned(data, rules, orientation)
        luma = None if rules.check == "header" and _is_whole(data, header) else _prove(data, rules, header)
        return StoredImage(header.kind, data, header.size, luma, *_nature(data, header))
    kind, image = _decoded_near(data, rules, header)
    if rules.encode == "keep" and kind not in MEMBERS:
        fix = "set dataset.image.encode"
        raise Reject("image.undecodable", f"shards hold {', '.join(MEMBERS)}, not {kind}: {fix}")
    return _encode(image, kind if rules.encode == "keep" else rules.encode, rules.max_side)


def inspect(data: bytes, rules: ImageRules) -> ImageHeader:
    """Read the header without decoding; Reject if it is not sound or not within the limits."""
    frame = jpeg.frame(data)
    if frame is not None and frame.is_plain:
        _check_size(frame.size, rules)
        return ImageHeader("jpg", frame.size, None, frame)
    kind, image = _parse(data, rules)
    return ImageHeader(kind, image.size, image, frame)


def _parse(data: bytes, rules: ImageRules) -> tuple[str, ImageFile]:
    """Parse the header with Pillow without decoding, and return the format and Pillow's image."""
    if not data:
        raise Reject("image.empty", "0 bytes")
    kind = image_kind(data)
    if kind is None:
        raise Reject("image.not_an_image", f"it is {described(data)}")
    try:
        image = DECODERS[kind](io.BytesIO(data))
    except (MemoryError, Reject):
        raise  # a fault of this host, not of the image, or one that is described already
    except Image.DecompressionBombError:  # from WebP's decoder, before it makes its canvas
        raise Reject("image.too_large", f"more than {rules.max_pixels:,} pixels") from None
    except Exception as error:  # noqa: BLE001 - decoders raise anything on a torn header
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
    except Exception as error:  # noqa: BLE001 - decoders raise anything on torn pixels
        raise _undecodable(kind, error) from None
    if kind == "png" and not png.has_end(data) and png.END not in data:
        raise Reject("image.undecodable", "png: ends before its last chunk")


def _prove(data: bytes, rules: ImageRules, header: ImageHeader) -> Image.Image:
    """Return the image's luma; Reject unless the image can be decoded."""
    if header.frame is not None:
        luma = jpeg.decoded_luma(data, header.frame, measures.factor(*header.size))
        if luma is not None:
            return luma
    image = header.image or _parse(data, rules)[1]
    _load(header.kind, image, data)
    return _seen_luma(image)


def _seen_luma(image: Image.Image) -> Image.Image:
    """Return the luma of what a training sees of the image."""
    is_grey = image.mode == "L" and not image.has_transparency_data
    return measures.luma_of(image if is_grey else to_rgb(image))


def _nature(data: bytes, header: ImageHeader) -> tuple[int, str]:
    """Return the number of frames and the colour of an image by its header."""
    if header.frame is not None:
        profile = data[: header.frame.scan] if _PROFILE in data[: header.frame.scan] else b""
        return 1, _colour(header.frame.mode, profile)
    image = header.image
    assert image is not None
    is_deep = header.kind == "png" and png.bits(data) > 8  # of colours, Pillow keeps 8 bits, and does not say
    return _frames(image), "deep" if is_deep else _colour(image.mode, image.info.get("icc_profile") or b"")


def _frames(image: Image.Image) -> int:
    return 1 if image.format == "MPO" else getattr(image, "n_frames", 1)


def _colour(mode: str, profile: bytes) -> str:
    """Return the colour of pixels of one of Pillow's modes; `profile` holds their colour profile, if any."""
    if mode.startswith("I"):
        return "deep"
    if mode in ("1", "L", "LA", "La"):
        return "grey"
    if mode == "CMYK":
        return "cmyk"
    return "profile" if profile and not any(name in profile for name in _SRGB) else "rgb"


def _is_whole(data: bytes, header: ImageHeader) -> bool:
    """Whether the file has its end, which a torn one lacks; False if only decoding can tell."""
    if header.kind == "png":
        return png.has_end(data)
    if header.kind == "webp":
        return True  # its parser has checked the sizes of its chunks
    if header.frame is not None:
        return jpeg.has_end(data, header.frame.scan)
    image = header.image
    return image is not None and image.fp is not None and jpeg.has_end(data, image.fp.tell())


def _undecodable(kind: str, error: Exception) -> Reject:
    return Reject("image.undecodable", f"{kind}: {type(error).__name__}: {str(error)[:200]}")


def _check_size(size: tuple[int, int], rules: ImageRules) -> None:
    width, height = size
    if width * height > rules.max_pixels:
        raise Reject("image.too_large", f"{width} x {height}, more than {rules.max_pixels:,} pixels")
    if min(width, height) < rules.min_side:
        raise Reject("image.too_small", f"{width} x {height}, shorter than {rules.min_side}")


def _decoded_near(data: bytes, rules: ImageRules, header: ImageHeader) -> tuple[str, Image.Image]:
    """Return the image's format and its pixels, scaled down if it is a JPEG that is stored much smaller.
    Libjpeg scales only if all sampling factors divide the largest."""
    longest, most = max(header.size), rules.max_side or math.inf
    times = next((times for times, gap in SCALED if longest >= times * gap * most), 1)
    if times == 1 or rules.max_side is None or header.frame is None or not header.frame.samples_evenly:
        return decode(data, rules)
    kind, image = decode(data, rules, times)
    width, height = header.size
    return kind, _scaled_down(image, rules.max_side, (width / times, height / times))


def _scaled_down(image: Image.Image, max_side: int, size: tuple[float, float]) -> Image.Image:
    """Return the image with its longer side scaled to at most `max_side`. Its picture fills `size` pixels,
    which are not whole numbers where a decoder made it smaller and completed the last row or column."""
    longest = max(size)
    if longest <= max_side:
        return image
    width, height = (max(round(side * max_side / longest), 1) for side in size)
    return image.resize((width, height), Image.Resampling.LANCZOS, box=(0, 0, *size), reducing_gap=2.0)


def _encode(image: Image.Image, suffix: str, max_side: int | None) -> StoredImage:
    """Turn the image upright, scale it down to `max_side` and encode it, converted by `to_rgb` unless it is
    plain grey or RGB(A)."""
    frames = _frames(image)
    image = upright(image)
    if image.mode not in ("L", "P", "RGB", "RGBA"):
        image.info.pop("icc_profile", None)  # it describes inks or the like, but the pixels will be RGB
    keeps_alpha = image.mode == "RGBA" and suffix != "jpg"
    if not keeps_alpha and (image.mode != "L" or image.has_transparency_data):
        image = to_rgb(image)
    if max_side is not None:
        image = _scaled_down(image, max_side, image.size)
    return _saved(image, suffix, ENCODERS.get(suffix, {}), frames)


def _saved(image: Image.Image, suffix: str, options: Mapping[str, object], frames: int = 1) -> StoredImage:
    """Encode the image with its colour profile and without its EXIF; `frames` is how many pictures it had."""
    profile = image.info.get("icc_profile")
    if suffix == "png":
        content = png.encode(image)
    else:
        file = io.BytesIO()
        image.save(file, **options, icc_profile=profile)  # type: ignore[arg-type]
        content = file.getvalue()
    colour = _colour(image.mode, profile or b"")
    return StoredImage(suffix, content, image.size, _seen_luma(image), frames, colour)


def _turned(data: bytes, rules: ImageRules, orientation: int) -> StoredImage:
    """Turn the image upright in its own format, with as little loss as the format allows."""
    kind, image = decode(data, rules)
    options = ENCODERS.get(kind, {})
    if isinstance(image, JpegImageFile):
        if image.mode not in ("L", "RGB"):
            return _encode(image, kind, None)
        options = {"format": "JPEG", **jpeg.as_encoded(image, is_turned=orientation in LYING)}
    elif kind == "webp" and is_lossless_webp(data):
        options = {**options, "lossless": True, "exact": True}
    return _saved(upright(image), kind, options, _frames(image))


def orientation_of(data: bytes, header: ImageHeader) -> int:
    """Return the orientation in EXIF, or in XMP if there is no EXIF."""
    image = header.image
    if image is None or (header.kind == "png" and not png.may_turn(data)):
        return UPRIGHT  # a plain JPEG has neither EXIF nor XMP
    if header.kind == "png":
        image = PngImageFile(io.BytesIO(data))  # a copy, because reading EXIF decodes it
    found = _exif_orientation(image)
    return found if isinstance(found, int) and found in MOVED else UPRIGHT


def upright(image: Image.Image) -> Image.Image:
    """Return the image itself, decoded and turned by its EXIF; unturned if the EXIF is torn."""
    image.load()
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - torn EXIF raises anything
        logger.debug("EXIF passed over: %s", error)
    return image


def _exif_orientation(image: Image.Image) -> object:
    """Return the tag's value of whatever type; None if there is none or the EXIF is torn."""
    try:
        return image.getexif().get(ORIENTATION)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - torn EXIF raises anything
        logger.debug("EXIF passed over: %s", error)
        return None


def to_rgb(image: Image.Image) -> Image.Image:
    """Return the picture as a viewer would show it: transparent parts on white, 16-bit grey scaled to 8 bits.

    Pillow's plain conversion drops the alpha channel, which shows hidden colours, and clips 16 bits to white.
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
