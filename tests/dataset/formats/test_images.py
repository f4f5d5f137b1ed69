import gzip
import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile, get_sampling
from PIL.PngImagePlugin import PngInfo
from skimage import data as photos

from tasks.core.schema import ImageRules
from tasks.dataset.formats import images
from tasks.dataset.version.rejects import Reject
from tasks.loader.decoders import decode_image
from tests.dataset.raw import giant_png, png, png_chunk, png_file

RULES = ImageRules()


def reason(data: bytes, rules: ImageRules = RULES) -> str:
    with pytest.raises(Reject) as caught:
        images.store(data, rules)
    assert " at 0x" not in caught.value.detail
    return caught.value.reason


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"root:x:0:0:secret\n", "text"),
        (b"\xef\xbb\xbf<!DOCTYPE html><p>secret", "HTML"),
        (b"<?xml version='1.0'?><secret/>", "XML"),
        (b'{"token": "secret"}', "JSON"),
        (b"PK\x03\x04secret", "a zip archive"),
        (gzip.compress(b"secret", mtime=0), "gzip"),
        (b"%PDF-1.7 secret", "a PDF file"),
        (b"\0\0\0\x18ftypisom\0\0\0\0secret", "a video"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "a Git LFS pointer and not the file itself (run git lfs pull where it was cloned)",
        ),
        (b"secret\0\x01\x02", "no known kind of file"),
        ("gêheim".encode("latin-1"), "no known kind of file"),
        (("é" * 400).encode()[1:], "no known kind of file"),
        (b"x" + ("é" * 400).encode(), "text"),
    ],
)
def test_what_is_no_image_is_named_and_not_shown(data: bytes, kind: str) -> None:
    with pytest.raises(Reject) as caught:
        images.store(data, RULES)
    assert (caught.value.reason, caught.value.detail) == ("image.not_an_image", f"it is {kind}")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_truncated_image_is_undecodable(kind: str, share: float) -> None:
    data = png(1, 64, kind)
    assert reason(data[: int(len(data) * share)]) == "image.undecodable"


def test_a_png_without_its_end_is_undecodable() -> None:
    data = png(1)
    for cut in range(1, 30):
        assert reason(data[:-cut]) == "image.undecodable"


def test_limits_are_checked_before_decoding() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow's own limits warn; nothing of them may show
        assert reason(giant_png(60_000, 60_000)) == "image.too_large"
        assert reason(png(1, 20), ImageRules(max_pixels=399)) == "image.too_large"
        assert images.store(png(1, 20), ImageRules(max_pixels=400))[0] == "png"
        assert reason(png(1, 20), ImageRules(min_side=21)) == "image.too_small"
        data = giant_png(12_000, 9_000)
        assert reason(data, ImageRules(max_pixels=200_000_000)) == "image.undecodable"
    assert Image.MAX_IMAGE_PIXELS is not None


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "AVIF"])
def test_other_formats_are_stored_re_encoded_only(kind: str) -> None:
    data = png(1, 20, kind)
    assert reason(data) == "image.undecodable"
    suffix, stored, size = images.store(data, ImageRules(encode="png"))[:3]
    assert (suffix, size) == ("png", (20, 20))
    assert Image.open(io.BytesIO(stored)).size == (20, 20)


def test_max_side_scales_down_and_keeps_small_images_untouched() -> None:
    suffix, stored, size = images.store(png(1, 40), ImageRules(max_side=10))[:3]
    assert (suffix, size) == ("png", (10, 10))
    assert Image.open(io.BytesIO(stored)).size == (10, 10)
    data = png(1, 10)
    assert images.store(data, ImageRules(max_side=10))[1] == data


@pytest.mark.parametrize("encode", ["jpg", "png", "webp"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_encode_leaves_alone_what_shards_can_hold(kind: str, encode: Any) -> None:
    data = png(1, 20, kind)
    assert images.store(data, ImageRules(encode=encode, max_side=20))[1] == data
    assert images.store(data, ImageRules(encode=encode, max_side=19))[0] == encode


def plain_pixels(data: bytes) -> np.ndarray[Any, Any]:
    """The pixels that a reader gets which ignores EXIF."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("encode", ["keep", "png"])
@pytest.mark.parametrize(
    ("kind", "options", "most"),
    [
        ("PNG", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("WEBP", {"quality": 80}, 12),
        ("JPEG", {"quality": 80}, 3),
        ("JPEG", {"quality": 80, "subsampling": 1}, 3),
        ("JPEG", {"quality": 80, "progressive": True}, 3),
        ("AVIF", {}, 0),
    ],
)
def test_a_picture_is_stored_as_its_exif_turns_it(
    kind: str, options: dict[str, Any], most: int, encode: Any, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    waves = np.add.outer(np.arange(48), np.arange(96))[..., None] * [1, 2, 1] % 256
    photo = Image.fromarray(waves.astype(np.uint8)).resize((97, 51))
    data = encoded(photo, kind, exif=exif, **options)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")).astype(int)
    suffix, stored, size = images.store(data, ImageRules(encode="png" if kind == "AVIF" else encode))[:3]
    assert suffix == {"JPEG": "jpg", "AVIF": "png"}.get(kind, kind.lower())
    assert size == ((51, 97) if orientation > 4 else (97, 51))
    assert np.abs(plain_pixels(stored) - upright).mean() <= most
    assert np.array_equal(np.asarray(decode_image(stored)), plain_pixels(stored))  # which is not turned twice
    assert (stored == data) == (orientation == 1 and kind != "AVIF")


@pytest.mark.parametrize(("subsampling", "after"), [(0, 0), (1, 0), (2, 2)])
def test_a_turned_jpeg_is_quantised_as_it_was(subsampling: int, after: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = b"profile " * 40
    data = encoded(noise("RGB"), "JPEG", quality=83, subsampling=subsampling, exif=exif, icc_profile=profile)
    stored = Image.open(io.BytesIO(images.store(data, RULES)[1]))
    before = Image.open(io.BytesIO(data))
    assert isinstance(stored, JpegImageFile) and isinstance(before, JpegImageFile)
    tables = {
        number: np.reshape(table, (8, 8)).T.ravel().tolist() for number, table in before.quantization.items()
    }
    assert stored.quantization == tables != before.quantization
    assert get_sampling(stored) == after and stored.info["icc_profile"] == profile


def test_xmp_turns_a_picture_as_exif_does() -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    for kind, options in (("JPEG", {"xmp": xmp}), ("WEBP", {"xmp": xmp}), ("PNG", {"pnginfo": info})):
        data = encoded(Image.new("RGB", (30, 10), "red"), kind, **options)
        assert images.store(data, RULES)[2] == (10, 30)
        assert images.store(data, RULES, turns=False)[1:3] == (data, (30, 10))


def test_the_same_image_is_encoded_to_the_same_bytes() -> None:
    rules = ImageRules(encode="jpg", max_side=16)
    assert images.store(png(3, 40), rules) == images.store(png(3, 40), rules)


@pytest.mark.parametrize("encode", ["jpg", "webp"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(encode: str) -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((9, 9), 0x8000, np.uint16)).save(file, "PNG")
    _, stored, _ = images.store(file.getvalue(), ImageRules(encode=encode, max_side=8))[:3]
    level = Image.open(io.BytesIO(stored)).convert("RGB").getpixel((4, 4))
    assert isinstance(level, tuple) and abs(level[0] - 128) <= 2


@pytest.mark.parametrize("check", ["decode", "header"])
def test_sixteen_bits_are_deep_until_they_are_re_encoded(check: Any) -> None:
    for colour in (0, 2, 6):
        assert images.store(sixteen_bit(colour), ImageRules(check=check)).colour == "deep"
    assert images.store(sixteen_bit(2), ImageRules(encode="jpg", max_side=1)).colour == "rgb"


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_grey_of_no_known_range_is_rejected_rather_than_black(dtype: Any) -> None:
    file = io.BytesIO()
    Image.fromarray(np.linspace(0, 1000, 81).reshape(9, 9).astype(dtype)).save(file, "TIFF")
    for rules in (ImageRules(encode="png"), ImageRules(encode="jpg", check="header")):
        with pytest.raises(Reject, match=r"image\.undecodable.*float or 32-bit grey") as caught:
            images.store(file.getvalue(), rules)
        assert "ValueError" not in caught.value.detail


@pytest.mark.parametrize(("mode", "hidden"), [("RGBA", (255, 0, 0, 0)), ("LA", (10, 0))])
def test_what_is_transparent_lies_on_white(mode: str, hidden: tuple[int, ...]) -> None:
    file = io.BytesIO()
    Image.new(mode, (9, 9), hidden).save(file, "PNG")
    _, stored, _ = images.store(file.getvalue(), ImageRules(encode="jpg", max_side=8))[:3]
    assert Image.open(io.BytesIO(stored)).convert("RGB").getpixel((4, 4)) == (255, 255, 255)
    _, stored, _ = images.store(file.getvalue(), ImageRules(encode="png", max_side=8))[:3]
    assert images.to_rgb(Image.open(io.BytesIO(stored))).getpixel((4, 4)) == (255, 255, 255)


def test_a_lack_of_memory_is_no_fault_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(file: io.BytesIO) -> None:
        raise MemoryError

    monkeypatch.setitem(images.DECODERS, "png", short)
    with pytest.raises(MemoryError):
        images.store(png(1), RULES)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(mode: str, side: int = 40) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def with_text(data: bytes, *, at_end: bool = False, count: int = 1) -> bytes:
    """A PNG with compressed texts of 2 MB each."""
    text = png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2 << 20))) * count
    place = len(data) - 12 if at_end else 33
    return data[:place] + text + data[place:]


def interlaced() -> bytes:
    """A 2 x 2 grey PNG in Adam7; Pillow writes none."""
    head = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 1)
    rows = b"\0\x10" + b"\0\x20" + b"\0\x30\x40"
    return png_file(png_chunk(b"IHDR", head), png_chunk(b"IDAT", zlib.compress(rows)))


def sixteen_bit(colour: int) -> bytes:
    """A 2 x 2 PNG of 16 bits a channel: grey (0), RGB (2) or RGBA (6)."""
    channels = {0: 1, 2: 3, 6: 4}[colour]
    head = struct.pack(">IIBBBBB", 2, 2, 16, colour, 0, 0, 0)
    rows = (b"\0" + b"\x80\x01" * (2 * channels)) * 2
    return png_file(png_chunk(b"IHDR", head), png_chunk(b"IDAT", zlib.compress(rows)))


def two_pictures() -> bytes:
    return encoded(noise("RGB"), "MPO", save_all=True, append_images=[noise("RGB", 60)])


def turned(kind: str, exif: bytes = b"") -> bytes:
    sideways = Image.Exif()
    sideways[0x0112] = 6
    return encoded(Image.new("RGB", (30, 10), "red"), kind, exif=exif or sideways.tobytes())


def animated(kind: str) -> bytes:
    return encoded(noise("RGB"), kind, save_all=True, append_images=[noise("RGB").rotate(90)])


FINE: dict[str, tuple[bytes, str]] = {
    "PNG": (encoded(noise("RGB"), "PNG"), "png"),
    "JPEG": (encoded(noise("RGB"), "JPEG"), "jpg"),
    "WebP": (encoded(noise("RGB"), "WEBP"), "webp"),
    "grey and alpha PNG": (encoded(noise("RGB").convert("LA"), "PNG"), "png"),
    "1 x 1": (encoded(Image.new("RGB", (1, 1)), "PNG"), "png"),
    "16-bit grey PNG": (sixteen_bit(0), "png"),
    "16-bit RGB PNG": (sixteen_bit(2), "png"),
    "16-bit RGBA PNG": (sixteen_bit(6), "png"),
    "palette PNG": (encoded(noise("P"), "PNG"), "png"),
    "transparent palette PNG": (encoded(noise("P"), "PNG", transparency=3), "png"),
    "alpha PNG": (encoded(noise("RGBA"), "PNG"), "png"),
    "bilevel PNG": (encoded(noise("1"), "PNG"), "png"),
    "interlaced PNG": (interlaced(), "png"),
    "animated PNG": (animated("PNG"), "png"),
    "alpha WebP": (encoded(noise("RGBA"), "WEBP"), "webp"),
    "lossless WebP": (encoded(noise("RGB"), "WEBP", lossless=True), "webp"),
    "animated WebP": (animated("WEBP"), "webp"),
    "grey JPEG": (encoded(noise("L"), "JPEG"), "jpg"),
    "CMYK JPEG": (encoded(noise("CMYK"), "JPEG"), "jpg"),
    "progressive JPEG": (encoded(noise("RGB"), "JPEG", progressive=True), "jpg"),
    "JPEG with 10 kB after its end": (encoded(noise("RGB"), "JPEG") + b"junk" * 2500, "jpg"),
    "two pictures in one": (two_pictures(), "jpg"),
    "torn EXIF in PNG": (turned("PNG", b"Exif\0\0garbage garbage"), "png"),
    "torn EXIF in WebP": (turned("WEBP", b"Exif\0\0garbage garbage"), "webp"),
}


@pytest.mark.parametrize("check", ["decode", "header"])
@pytest.mark.parametrize("name", FINE)
def test_odd_but_fine_images_are_kept_to_the_byte(name: str, check: Any) -> None:
    data, suffix = FINE[name]
    assert images.store(data, ImageRules(check=check))[:2] == (suffix, data)
    assert images.decode(data, RULES)[0] == suffix
    decode_image(data)  # as the loader does


@pytest.mark.parametrize("encode", ["jpg", "png", "webp"])
@pytest.mark.parametrize("name", FINE)
def test_odd_but_fine_images_can_be_encoded(name: str, encode: Any) -> None:
    data, kind = FINE[name]
    is_small = max(Image.open(io.BytesIO(data)).size) <= 2
    suffix, stored, size = images.store(data, ImageRules(encode=encode, max_side=20))[:3]
    assert suffix == (kind if is_small else encode) and max(size) <= 20
    assert Image.open(io.BytesIO(stored)).size == size
    assert images.store(stored, RULES)[:2] == (suffix, stored)


ANIMATED = ["GIF", "PNG", "WEBP"]


@pytest.mark.parametrize("kind", ANIMATED)
def test_of_an_animation_the_first_frame_is_the_image(kind: str) -> None:
    data = animated(kind)
    first = Image.open(io.BytesIO(data)).convert("RGB")
    _, stored, _ = images.store(data, ImageRules(encode="png", max_side=30))[:3]
    opened = Image.open(io.BytesIO(stored))
    first.thumbnail((30, 30), Image.Resampling.LANCZOS)
    assert getattr(opened, "n_frames", 1) == 1
    assert opened.convert("RGB").tobytes() == first.tobytes()


BAD: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "image.empty"),
    "HTML": (b"<!DOCTYPE html><html><body>404</body></html>", "image.not_an_image"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "image.not_an_image"),
    "zeros": (bytes(5000), "image.not_an_image"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF", "image.not_an_image"),
    "a signature alone": (b"\x89PNG\r\n\x1a\n", "image.undecodable"),
    "a start alone": (b"\xff\xd8\xff\xe0 torn", "image.undecodable"),
    "30,000 x 30,000 PNG": (giant_png(30_000, 30_000), "image.too_large"),
    "30,000 x 30,000 JPEG": (
        encoded(Image.new("L", (8, 8)), "JPEG").replace(b"\0\x08\0\x08", b"\x75\x30\x75\x30", 1),
        "image.too_large",
    ),
    "16,383 x 16,383 WebP": (
        b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f" + (16382 | 16382 << 14).to_bytes(4, "little") + bytes(9),
        "image.too_large",
    ),
    "half a JPEG": (encoded(noise("RGB"), "JPEG")[:-1500], "image.undecodable"),
    "half a progressive JPEG": (encoded(noise("RGB"), "JPEG", progressive=True)[:-1500], "image.undecodable"),
    "half a WebP": (encoded(noise("RGB"), "WEBP")[:500], "image.undecodable"),
    "half a PNG": (encoded(noise("RGB"), "PNG")[:-1500], "image.undecodable"),
    "half a PNG with texts": (with_text(encoded(noise("RGB"), "PNG")[:-1500]), "image.undecodable"),
    "PNG without pixels": (
        png_file(png_chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0))),
        "image.undecodable",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_rejected_with_their_reason(name: str) -> None:
    data, expected = BAD[name]
    assert reason(data) == expected
    assert reason(data, ImageRules(encode="png")) == expected


@pytest.mark.parametrize("name", [name for name in BAD if name != "PNG without pixels"])
def test_a_header_shows_what_is_no_image_or_ends_too_early(name: str) -> None:
    data, expected = BAD[name]
    assert reason(data, ImageRules(check="header")) == expected


@pytest.mark.parametrize("check", ["decode", "header"])
def test_no_cut_of_a_webp_passes(check: Any) -> None:
    data = encoded(noise("RGB"), "WEBP")
    for length in range(12, len(data)):
        assert reason(data[:length], ImageRules(check=check)) == "image.undecodable"


def test_a_header_check_decodes_nothing_unless_it_must() -> None:
    data = bytearray(encoded(noise("RGB", 64), "PNG"))
    data[2000:2100] = bytes(100)
    rules = ImageRules(check="header")
    assert images.store(bytes(data), rules)[:2] == ("png", bytes(data))
    assert reason(bytes(data)) == "image.undecodable"
    assert reason(bytes(data), ImageRules(check="header", max_side=10)) == "image.undecodable"


def test_the_end_of_a_preview_is_not_the_end_of_a_jpeg() -> None:
    preview = encoded(noise("RGB", 16), "JPEG")
    data = encoded(noise("RGB"), "JPEG", comment=preview)
    assert images.store(data, ImageRules(check="header"))[1] == data
    torn = data[: data.index(preview) + len(preview) + 800]
    assert reason(torn, ImageRules(check="header")) == "image.undecodable"


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("count", [1, 40])
def test_texts_that_no_decoder_takes_are_left_out(at_end: bool, count: int) -> None:
    plain = encoded(noise("RGB"), "PNG")
    suffix, stored, size = images.store(with_text(plain, at_end=at_end, count=count), RULES)[:3]
    assert (suffix, stored, size) == ("png", plain, (40, 40))


def test_small_texts_are_kept() -> None:
    text = png_chunk(b"tEXt", b"Comment\0a small one")
    plain = encoded(noise("RGB"), "PNG")
    data = plain[:33] + text + plain[33:]
    assert images.store(data, RULES)[1] == data


def test_a_large_colour_profile_is_left_out() -> None:
    profile = png_chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(2 << 20)))
    plain = encoded(noise("RGB"), "PNG")
    assert images.store(plain[:33] + profile + plain[33:], RULES)[1] == plain


def test_an_ink_profile_does_not_go_with_rgb_pixels() -> None:
    data = encoded(noise("CMYK"), "JPEG", icc_profile=b"ink" * 50)
    _, stored, _ = images.store(data, ImageRules(encode="png", max_side=20))[:3]
    assert "icc_profile" not in Image.open(io.BytesIO(stored)).info


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_png_is_compressed_by_the_zlib_that_is_pinned(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = noise(mode).resize((60, 60))
    profile = b"profile " * 40
    data = encoded(picture, "TIFF", icc_profile=profile)
    _, stored, _ = images.store(data, ImageRules(encode="png"))[:3]
    opened = Image.open(io.BytesIO(stored))
    assert opened.tobytes() == picture.tobytes() and opened.info["icc_profile"] == profile
    assert len(stored) < len(encoded(picture, "PNG", compress_level=0))
    save, compress = Image.Image.save, zlib.compress

    def save_otherwise(image: Image.Image, file: Any, kind: str, **options: Any) -> None:
        save(image, file, kind, **{**options, "compress_level": 9})

    monkeypatch.setattr(Image.Image, "save", save_otherwise)  # another zlib's work
    monkeypatch.setattr(zlib, "compress", lambda content: compress(content, 1))
    assert images.store(data, ImageRules(encode="png"))[1] == stored


def photograph(name: str) -> Image.Image:
    return Image.fromarray(getattr(photos, name)())


def decibels(one: bytes, other: bytes) -> float:
    """The peak signal-to-noise ratio of two pictures."""
    error = plain_pixels(one) - plain_pixels(other)
    return float(10 * np.log10(255**2 / max(float((error**2).mean()), 1e-9)))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("side", [4, 5.5, 16])
@pytest.mark.parametrize("sampling", [0, 1, 2])
def test_a_photograph_that_is_decoded_smaller_looks_the_same(
    orientation: int, side: float, sampling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were decoded whole, also where its sides are odd and it is turned: a shift by half a pixel
    would cost 10 dB. Pillow's `thumbnail` is as far from scaling without a shortcut."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("astronaut", "chelsea", "coffee"):
        photo = photograph(name)
        photo = photo.crop((0, 0, photo.width - 1 + photo.width % 2, photo.height - 1 + photo.height % 2))
        data = encoded(photo, "JPEG", quality=92, subsampling=sampling, exif=exif)
        rules = ImageRules(max_side=int(max(photo.size) / side), encode="png")
        stored = images.store(data, rules)
        with monkeypatch.context() as whole:
            whole.setattr(images, "SCALED", ())
            expected = images.store(data, rules)
        assert stored.content != expected.content and max(stored.size) == rules.max_side
        assert stored.size == expected.size and stored[4:] == expected[4:] == (1, "rgb")
        assert stored.luma is not None and stored.luma.size == stored.size
        assert decibels(stored.content, expected.content) > 44


def test_a_picture_far_larger_than_stored_is_decoded_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    draft = JpegImageFile.draft
    monkeypatch.setattr(JpegImageFile, "draft", lambda *of: asked.append(of[2]) or draft(*of))
    for kind in ("JPEG", "PNG"):
        data = encoded(photograph("astronaut"), kind)
        for side in (129, 128, 33, 32, 17, 16):
            images.store(data, ImageRules(max_side=side))
    assert asked == [(256, 256)] * 2 + [(128, 128)] * 2 + [(64, 64)]


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_inks_are_decoded_smaller_as_well(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(photograph("astronaut").convert(mode), "JPEG", quality=92, icc_profile=b"ink")
    stored = images.store(data, ImageRules(max_side=100)).content
    monkeypatch.setattr(images, "SCALED", ())
    expected = images.store(data, ImageRules(max_side=100)).content
    for content in (stored, expected):
        opened = Image.open(io.BytesIO(content))
        assert opened.mode == ("L" if mode == "L" else "RGB")
        assert opened.info.get("icc_profile") == (b"ink" if mode == "L" else None)
    assert stored != expected and decibels(stored, expected) > 42


def test_a_torn_photograph_is_rejected_at_any_size() -> None:
    data = encoded(photograph("astronaut"), "JPEG", quality=92)
    for side in (400, 128, 32, 16):
        assert reason(data[: len(data) // 2], ImageRules(max_side=side)) == "image.undecodable"
