import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
from PIL import Image
from pydantic import ValidationError

from tasks.core.errors import DataError
from tasks.core.schema import ImageRules
from tasks.dataset.formats import images, pixels
from tasks.dataset.formats.pixels import REDUCTIONS, by_pillow, by_simplejpeg
from tasks.loader.decoders import (
    captions_of,
    decode_image,
    decode_json,
    decode_pixels,
    decode_text,
    image_of,
    open_image,
)
from tasks.loader.worker_state import WorkerStates, read_all


def saved(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_common_pictures_become_rgb(kind: str, mode: str) -> None:
    picture = decode_image(saved(Image.new(mode, (6, 4), 200 if mode == "L" else (200, 200, 200)), kind))
    assert (picture.mode, picture.size) == ("RGB", (6, 4))
    assert abs(picture.getpixel((1, 1))[0] - 200) <= 2


def test_transparency_lies_on_white() -> None:
    hidden = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    assert decode_image(saved(hidden)).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert decode_image(saved(palette)).getpixel((0, 0)) == (255, 0, 0)
    assert decode_image(saved(palette, transparency=1)).getpixel((0, 0)) == (255, 255, 255)
    assert decode_image(saved(Image.new("LA", (2, 2), (10, 0)))).getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    levels = np.array([[0, 0x8000, 0xFFFF]], np.uint16)
    picture = decode_image(saved(Image.fromarray(levels)))
    assert [picture.getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


def test_cmyk_jpeg_is_converted() -> None:
    assert decode_image(saved(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")).getpixel((3, 3)) == (255,) * 3


def test_the_cameras_orientation_is_applied() -> None:
    picture = Image.new("RGB", (16, 8))
    exif = picture.getexif()
    exif[0x0112] = 6
    assert decode_image(saved(picture, "JPEG", exif=exif)).size == (8, 16)


@pytest.mark.parametrize(
    ("kind", "turned", "shape"), [("JPEG", 1, (15, 20)), ("JPEG", 6, (20, 15)), ("PNG", 1, (60, 80))]
)
def test_a_jpeg_alone_is_decoded_smaller_and_its_size_is_known_before(
    kind: str, turned: int, shape: tuple[int, int]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = turned
    image = open_image(saved(Image.new("RGB", (80, 60), "red"), kind, exif=exif))
    assert image.size == ((80, 60) if turned == 1 else (60, 80))
    assert decode_pixels(image, 4).shape == (*shape, 3)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(256, 192), (97, 61)])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
def test_all_decoders_give_the_same_pixels_at_every_scale(
    mode: str, size: tuple[int, int], options: dict[str, Any]
) -> None:
    astronaut = Image.fromarray(skimage.data.astronaut()).resize(size).convert(mode)
    image = open_image(saved(astronaut, "JPEG", quality=85, **options))
    assert image.suits_simplejpeg
    for factor in (1, *REDUCTIONS):
        first, second = by_simplejpeg(image, factor), by_pillow(image, factor)
        assert first is not None and np.array_equal(first, second)
    assert np.array_equal(decode_pixels(image), np.asarray(decode_image(image.data)))


def test_a_jpeg_that_one_decoder_refuses_is_decoded_by_the_other_and_counted(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    whole = saved(noise, "JPEG")
    stuffed = whole[:-2] + bytes(100) + whole[-2:]  # libjpeg passes over these bytes, and warns
    WorkerStates(tmp_path, 0, "train").keep(0)
    image = open_image(stuffed)
    assert by_simplejpeg(image, 1) is None
    assert np.array_equal(decode_pixels(image), np.asarray(decode_image(whole)))
    (state,) = read_all(tmp_path)
    assert state.refused == 1
    with pytest.raises(DataError, match="picture cannot be decoded"):
        decode_pixels(open_image(whole[: len(whole) // 2]))


def test_pillow_decodes_where_there_is_no_other_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    image = open_image(saved(Image.new("RGB", (80, 60), "red"), "JPEG"))
    usual = decode_pixels(image, 2)
    monkeypatch.setattr(pixels, "simplejpeg", None)
    assert not image.suits_simplejpeg
    assert np.array_equal(decode_pixels(image, 2), usual)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>not found</html>",
        saved(Image.new("RGB", (64, 64)), "BMP"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
    ids=["empty", "html", "other kind", "postscript"],
)
def test_what_is_no_picture_is_a_data_error(data: bytes) -> None:
    with pytest.raises(DataError, match="picture cannot be decoded"):
        decode_image(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_truncated_picture_is_a_data_error(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    data = saved(noise, kind)
    with pytest.raises(DataError, match="picture cannot be decoded"):
        decode_image(data[: len(data) // 2])


def test_whatever_the_build_may_allow_is_decoded_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # of the whole process, and not the build's
    data = saved(Image.new("L", (100, 100)))
    assert decode_image(data).size == (100, 100)
    with pytest.raises(ValidationError, match="max_pixels"):
        ImageRules(max_pixels=images.ANY_SIZE.max_pixels + 1)
    monkeypatch.setattr(images, "ANY_SIZE", ImageRules(max_pixels=9_999))
    with pytest.raises(DataError, match="100 x 100, more than 9,999 pixels"):
        decode_image(data)


def test_a_sample_without_a_picture_says_what_it_has() -> None:
    with pytest.raises(DataError, match="no member jpg, png or webp; it has json, txt"):
        image_of({"txt": b"", "json": b""})


def test_text_is_utf8_or_an_error() -> None:
    assert decode_text("Käfer".encode()) == "Käfer"
    with pytest.raises(DataError, match="not UTF-8: byte 1 is 0xe4"):
        decode_text("Käfer".encode("latin-1"))


def test_json() -> None:
    assert decode_json(b'{"a": [1]}') == {"a": [1]}
    with pytest.raises(DataError, match="JSON cannot be read"):
        decode_json(b"{")
    with pytest.raises(DataError, match="JSON cannot be read"):
        decode_json(b"[" * 100_000)


@pytest.mark.parametrize(
    ("facts", "captions"),
    [
        (None, ["a cat"]),
        ({"captions": ["a cat", "a kitten"]}, ["a cat", "a kitten"]),
        ({"captions": ["a kitten", "a cat"]}, ["a cat"]),  # of another tool, whose txt is something else
        ({"captions": "a cat"}, ["a cat"]),
        ({"captions": ["a cat", 1]}, ["a cat"]),
        (["captions"], ["a cat"]),
    ],
)
def test_captions_are_those_whose_first_is_the_txt(facts: Any, captions: list[str]) -> None:
    members = {"txt": b"a cat"} if facts is None else {"txt": b"a cat", "json": json.dumps(facts).encode()}
    assert captions_of(members) == captions
