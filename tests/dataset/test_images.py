import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from tasks.core.schema import ImageRules
from tasks.dataset import images
from tasks.dataset.reasons import Reject
from tests.dataset.raw import png

RULES = ImageRules()


def reason(data: bytes, rules: ImageRules = RULES) -> str:
    with pytest.raises(Reject) as caught:
        images.store(data, rules)
    assert " at 0x" not in caught.value.detail
    return caught.value.reason


def giant(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be huge."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("kind", "suffix"), [("PNG", "png"), ("JPEG", "jpg"), ("WEBP", "webp")])
def test_keep_stores_the_bytes_as_they_came(kind: str, suffix: str) -> None:
    data = png(1, 20, kind)
    assert images.store(data, RULES) == (suffix, data, (20, 20))


def test_what_is_no_image_is_told_from_what_is_damaged() -> None:
    assert reason(b"") == "image.empty"
    assert reason(b"<html>not found</html>") == "image.not_an_image"
    assert reason(b"just text") == "image.not_an_image"
    assert reason(b"%!PS-Adobe-3.0 EPSF") == "image.not_an_image"
    assert reason(b"\x89PNG\r\n\x1a\n") == "image.undecodable"
    assert reason(b"\xff\xd8\xff\xe0 torn") == "image.undecodable"


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
        assert reason(giant(60_000, 60_000)) == "image.too_large"
        assert reason(png(1, 20), ImageRules(max_pixels=399)) == "image.too_large"
        assert images.store(png(1, 20), ImageRules(max_pixels=400))[0] == "png"
        assert reason(png(1, 20), ImageRules(min_side=21)) == "image.too_small"
        data = giant(12_000, 9_000)
        assert reason(data, ImageRules(max_pixels=200_000_000)) == "image.undecodable"
    assert Image.MAX_IMAGE_PIXELS is not None


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF"])
def test_other_formats_are_stored_re_encoded_only(kind: str) -> None:
    data = png(1, 20, kind)
    assert reason(data) == "image.undecodable"
    suffix, stored, size = images.store(data, ImageRules(encode="png"))
    assert (suffix, size) == ("png", (20, 20))
    assert Image.open(io.BytesIO(stored)).size == (20, 20)


def test_max_side_scales_down_and_keeps_small_images_untouched() -> None:
    suffix, stored, size = images.store(png(1, 40), ImageRules(max_side=10))
    assert (suffix, size) == ("png", (10, 10))
    assert Image.open(io.BytesIO(stored)).size == (10, 10)
    data = png(1, 10)
    assert images.store(data, ImageRules(max_side=10))[1] == data


def test_encode_turns_the_image_upright() -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 10), "red").save(file, "JPEG", exif=exif)
    assert images.store(file.getvalue(), ImageRules(encode="png"))[2] == (10, 30)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_can_be_encoded(mode: str) -> None:
    file = io.BytesIO()
    Image.new(mode, (9, 9)).save(file, "TIFF" if mode == "CMYK" else "PNG")
    for encode in ("jpg", "png", "webp"):
        suffix, _, size = images.store(file.getvalue(), ImageRules(encode=encode))
        assert (suffix, size) == (encode, (9, 9))


def test_the_same_image_is_encoded_to_the_same_bytes() -> None:
    rules = ImageRules(encode="jpg", max_side=16)
    assert images.store(png(3, 40), rules) == images.store(png(3, 40), rules)


@pytest.mark.parametrize("encode", ["jpg", "webp"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(encode: str) -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((9, 9), 0x8000, np.uint16)).save(file, "PNG")
    _, stored, _ = images.store(file.getvalue(), ImageRules(encode=encode))
    level = Image.open(io.BytesIO(stored)).convert("RGB").getpixel((4, 4))
    assert isinstance(level, tuple) and abs(level[0] - 128) <= 2


@pytest.mark.parametrize(("mode", "hidden"), [("RGBA", (255, 0, 0, 0)), ("LA", (10, 0))])
def test_what_is_transparent_lies_on_white(mode: str, hidden: tuple[int, ...]) -> None:
    file = io.BytesIO()
    Image.new(mode, (9, 9), hidden).save(file, "PNG")
    _, stored, _ = images.store(file.getvalue(), ImageRules(encode="jpg"))
    assert Image.open(io.BytesIO(stored)).convert("RGB").getpixel((4, 4)) == (255, 255, 255)
    _, stored, _ = images.store(file.getvalue(), ImageRules(encode="png"))
    assert images.to_rgb(Image.open(io.BytesIO(stored))).getpixel((4, 4)) == (255, 255, 255)


def test_a_lack_of_memory_is_no_fault_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(file: io.BytesIO) -> None:
        raise MemoryError

    monkeypatch.setitem(images.DECODERS, "png", short)
    with pytest.raises(MemoryError):
        images.store(png(1), RULES)
