"""The measures of a picture: its hash is that of imagehash, and each number tells what it is named after."""

import io
from typing import Literal

import imagehash
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from skimage import data as photos
from sklearn.datasets import load_sample_image

from tasks.core.schema import ImageRules
from tasks.dataset.formats import images, measures
from tasks.dataset.formats.measures import PictureMeasures
from tasks.loader.decoders import decode_image

PHOTOS = {
    **{
        name: Image.fromarray(getattr(photos, name)()) for name in ("astronaut", "chelsea", "coffee", "coins")
    },
    **{name: Image.fromarray(load_sample_image(f"{name}.jpg")) for name in ("china", "flower")},
}


def measured(picture: Image.Image) -> PictureMeasures:
    return measures.measure(measures.luma_of(picture))


def differing(one: PictureMeasures, other: PictureMeasures) -> int:
    assert one.phash is not None and other.phash is not None
    return (one.phash ^ other.phash).bit_count()


@pytest.mark.parametrize("name", PHOTOS)
def test_the_hash_of_a_square_is_that_of_imagehash(name: str) -> None:
    square = PHOTOS[name].convert("L").resize((32, 32), Image.Resampling.LANCZOS)
    coarse, _, _ = measures.hashes_of(np.asarray(square).astype(np.float32))
    assert f"{coarse:016x}" == str(imagehash.phash(square))


@pytest.mark.parametrize("name", PHOTOS)
def test_the_hash_of_a_photo_is_nearly_that_of_imagehash(name: str) -> None:
    """The photo is scaled down by its decoder instead of by a filter."""
    file = io.BytesIO()
    PHOTOS[name].convert("RGB").save(file, "JPEG", quality=95)
    stored = images.store(file.getvalue(), ImageRules())
    assert stored.luma is not None
    coarse = measures.measure(stored.luma).phash
    assert coarse is not None
    assert (coarse ^ int(str(imagehash.phash(PHOTOS[name])), 16)).bit_count() <= 6


@pytest.mark.parametrize("name", PHOTOS)
def test_a_changed_copy_differs_in_few_bits_and_another_photo_in_many(name: str) -> None:
    photo = PHOTOS[name].convert("RGB")
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=40)
    copies = (
        Image.open(file),
        photo.resize((200, 150)),
        photo.convert("L"),
        ImageEnhance.Brightness(photo).enhance(1.1),
    )
    for copy in copies:
        assert differing(measured(photo), measured(copy)) <= 6
    others = [other for called, other in PHOTOS.items() if called != name]
    assert min(differing(measured(photo), measured(other)) for other in others) > 12


@pytest.mark.parametrize("name", PHOTOS)
def test_sharpness_falls_by_blur_and_by_enlarging(name: str) -> None:
    photo = PHOTOS[name].convert("RGB").resize((256, 256))
    sharp = measured(photo).sharpness
    blurred = measured(photo.filter(ImageFilter.GaussianBlur(5))).sharpness
    enlarged = measured(photo.resize((28, 28)).resize((256, 256), Image.Resampling.BICUBIC)).sharpness
    assert sharp is not None and blurred is not None and enlarged is not None
    assert max(blurred, enlarged) < 0.3 < sharp


def test_hard_edges_are_sharp_and_a_single_colour_has_no_contrast() -> None:
    drawing = np.zeros((256, 256), np.uint8)
    drawing[60:180, 40:200] = 220
    drawn = measured(Image.fromarray(drawing))
    assert drawn.sharpness is not None and drawn.sharpness > 0.45
    plain = measured(Image.new("RGB", (256, 256), "teal"))
    assert plain.contrast < 0.5 < 20 < drawn.contrast


def logo(mode: str) -> bytes:
    """Return a PNG of a black disc on transparency, which is black below, too."""
    rows, columns = np.ogrid[:128, :128]
    disc = ((rows - 64) ** 2 + (columns - 64) ** 2 < 40**2).astype(np.uint8)
    file = io.BytesIO()
    if mode == "P":
        picture = Image.fromarray(disc, "L").convert("P")
        picture.putpalette([0, 0, 0] * 2)
        picture.save(file, "PNG", transparency=0)
    else:
        picture = Image.new(mode, (128, 128))
        picture.putalpha(Image.fromarray(disc * 255))
        picture.save(file, "PNG")
    return file.getvalue()


def deep_grey() -> bytes:
    """Return a PNG with 16 bits, of which the lower ones alone would be white."""
    file = io.BytesIO()
    shades = np.kron(np.arange(1, 17, dtype=np.uint16).reshape(4, 4) * 4000, np.ones((32, 32), np.uint16))
    Image.fromarray(shades).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "picture", [*map(logo, ("RGBA", "LA", "P")), deep_grey()], ids=["RGBA", "LA", "P", "16 bits"]
)
@pytest.mark.parametrize("encode", ["keep", "webp"])
def test_what_is_measured_is_what_a_training_sees(picture: bytes, encode: Literal["keep", "webp"]) -> None:
    """The plain conversion makes these black or white."""
    stored = images.store(picture, ImageRules(encode=encode))
    assert stored.luma is not None
    found, seen = measures.measure(stored.luma), measured(decode_image(picture))
    assert found.contrast > 50 and found.contrast == pytest.approx(seen.contrast, abs=1)
    assert differing(found, seen) <= 2


def framed(picture: Image.Image, top: int, bottom: int, left: int = 0) -> Image.Image:
    frame = Image.new("RGB", (256, 256), "white")
    frame.paste(picture.resize((256 - left, 256 - top - bottom)), (left, top))
    return frame


@pytest.mark.parametrize(("top", "bottom", "left"), [(32, 32, 0), (0, 64, 0), (32, 32, 64), (64, 0, 0)])
def test_bars_are_measured_by_their_share_of_the_area(top: int, bottom: int, left: int) -> None:
    picture = framed(PHOTOS["coffee"].convert("RGB"), top, bottom, left)
    share = 1 - (256 - top - bottom) * (256 - left) / 256**2
    assert measured(picture).border == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("name", PHOTOS)
def test_a_photo_without_a_frame_has_no_border(name: str) -> None:
    assert measured(PHOTOS[name]).border < 0.05


@pytest.mark.parametrize(("name", "top"), [("coffee", 70), ("china", 46), ("astronaut", 73)])
def test_a_bar_is_measured_where_scaling_mixes_its_last_line_with_the_picture(name: str, top: int) -> None:
    picture = Image.new("RGB", (500, 375), "white")
    picture.paste(PHOTOS[name].convert("RGB").resize((500, 375 - 2 * top)), (0, top))
    assert measured(picture).border == pytest.approx(2 * top / 375, abs=0.06)


def test_an_object_on_a_plain_ground_has_no_border() -> None:
    ground = Image.new("L", (256, 256), 255)
    ImageDraw.Draw(ground).rounded_rectangle((8, 56, 248, 200), 72, fill=90)
    assert measured(ground).border == 0


def test_a_plain_sky_has_no_border() -> None:
    night = np.repeat(np.maximum(np.arange(256) - 100, 0)[:, None], 256, axis=1)
    fog = np.full((256, 256), 190)
    fog[100:] = 180 - np.random.default_rng(0).integers(0, 12, (156, 256))
    assert [measured(Image.fromarray(sky.astype(np.uint8))).border for sky in (night, fog)] == [0, 0]


def test_a_tiny_picture_has_no_hash() -> None:
    tiny = measured(PHOTOS["coins"].resize((31, 200)))
    assert tiny._replace(contrast=0) == (None, None, None, 0, None, None)


def test_a_volume_is_like_its_copy_and_unlike_another() -> None:
    rng = np.random.default_rng(0)
    coarse = [np.kron(rng.integers(-900, 600, (4, 6, 6)), np.ones((8, 16, 16))) for _ in range(2)]
    one, other = (volume + rng.normal(0, 20, volume.shape) for volume in coarse)
    again = one + rng.normal(0, 20, one.shape)
    hashes = [measures.volume_hashes(volume.astype(np.int16)) for volume in (one, again, other)]
    bits = [(hashes[0][0] ^ hashed[0]).bit_count() for hashed in hashes]
    fine = [(int.from_bytes(hashes[0][1]) ^ int.from_bytes(hashed[1])).bit_count() for hashed in hashes]
    assert bits[0] == 0 and bits[1] <= 6 < 15 < bits[2]
    assert fine[1] <= 50 < fine[2]
