"""The fast header reader and the check at an eighth of the size must find what Pillow finds in a JPEG."""

import io
import random
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from tasks.core.schema import ImageRules
from tasks.dataset.formats import images, jpeg
from tasks.dataset.version.rejects import Reject


def picture(mode: str, width: int, height: int, **options: Any) -> bytes:
    layers = {"L": 1, "RGB": 3, "CMYK": 4}[mode]
    ramp = np.linspace(0, 180, width * height * layers).reshape(height, width, layers)
    pixels = (ramp + np.random.default_rng(0).integers(0, 60, ramp.shape)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if layers == 1 else pixels, mode).save(file, "JPEG", **options)
    return file.getvalue()


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">HH", marker, len(content) + 2) + content


def segments(data: bytes) -> list[tuple[int, int, int]]:
    """Marker, start and stop of every segment up to the first scan's data."""
    found: list[tuple[int, int, int]] = []
    start = 2
    while not found or found[-1][0] != 0xFFDA:
        marker, length = struct.unpack_from(">HH", data, start)
        found.append((marker, start, start + 2 + length))
        start += 2 + length
    return found


def frame_of(data: bytes) -> int:
    return next(start for marker, start, _ in segments(data) if marker in (0xFFC0, 0xFFC1, 0xFFC2))


def lossless(width: int, height: int) -> bytes:
    """Plain grey, every pixel as predicted; its frame is SOF3."""
    bits = width * height
    code = segment(0xFFC4, bytes([0, 1, *[0] * 15, 0]))
    data = bytearray(-(-bits // 8))
    data[-1] |= (1 << (-bits % 8)) - 1
    frame = segment(0xFFC3, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")
    return b"\xff\xd8" + frame + code + segment(0xFFDA, b"\1\1\0\1\0\0") + bytes(data) + b"\xff\xd9"


SOUND = {
    "grey": picture("L", 40, 33),
    "one pixel": picture("L", 1, 1),
    "4:2:0": picture("RGB", 100, 37, subsampling="4:2:0"),
    "4:4:4, 17 x 17": picture("RGB", 17, 17, subsampling="4:4:4", quality=98),
    "4:2:2, restarts": picture("RGB", 64, 31, subsampling="4:2:2", restart_marker_blocks=3),
    "progressive": picture("RGB", 50, 50, progressive=True),
    "progressive, restarts": picture("RGB", 33, 70, progressive=True, restart_marker_rows=1),
    "progressive grey": picture("L", 9, 8, progressive=True),
    "not YCbCr": picture("RGB", 16, 16, keep_rgb=True),
    "CMYK": picture("CMYK", 31, 20),
    "progressive CMYK": picture("CMYK", 20, 31, progressive=True),
    "YCCK": picture("CMYK", 20, 20).replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2"),
    "profile and comment": picture("RGB", 24, 24, icc_profile=b"p" * 300, comment=b"a comment", dpi=(72, 72)),
    "more than Pillow reads at once": picture("RGB", 300, 200, quality=98, subsampling="4:4:4"),
}


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The file with one of many changes."""
    scan = segments(data)[-1][2]
    at, in_scan = rng.randrange(3, len(data)), rng.randrange(scan, len(data))
    length = rng.randint(1, 100)
    marker = bytes([0xFF, rng.randrange(256)])
    flipped = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 20])):
        flipped[rng.randrange(rng.choice([2, scan]), len(data))] ^= 1 << rng.randrange(8)
    _, start, stop = rng.choice(segments(data))
    frame = frame_of(data)
    odd = bytes([rng.choice([0, 1, 2, 4, 7, 8, 0x11, 0x21, 0x22, 0x41, 255])])
    place = frame + rng.randrange(1, 14)
    return rng.choice(
        [
            data[:at],
            data[:in_scan],
            data[:in_scan] + b"\xff\xd9",
            data[:in_scan] + bytes(len(data) - in_scan),
            data[:in_scan] + b"\xff" * (len(data) - in_scan),
            data[:at] + bytes(length) + data[at + length :],
            data[:at] + data[at + length :],
            data[:in_scan] + marker + data[in_scan:],
            data[:in_scan] + marker + data[in_scan + 2 :],
            data[:in_scan] + rng.randbytes(length) + data[in_scan + length :],
            data[:start] + data[stop:],
            data[:stop] + data[start:],
            data[:in_scan] + data[start:stop] + data[in_scan:],
            data[:start] + rng.choice(ODD) + data[start:],
            data[:place] + odd + data[place + 1 :],
            bytes(flipped),
        ]
    )


ODD = (
    *(b"\xff", b"\xff\x01", b"junk", b"\xff\xd0", b"\xff\xe0\0\0", b"\xff\xe0\0\2", b"\xff\xdc\0\4\0\x10"),
    *(segment(0xFFE1, b"Exif\0\0torn"), segment(0xFFE2, b"ICC_PROFILE\0\1"), segment(0xFFEE, b"Adobe")),
    segment(0xFFED, b"Photoshop 3.0\0" + b"8BIM\4\4"),
    *(segment(0xFFDD, b"\0\1"), segment(0xFFDB, bytes(64)), segment(0xFFDB, bytes(range(65)))),
)


def cases(count: int) -> Iterator[bytes]:
    rng = random.Random(0)
    for data in SOUND.values():
        yield data
        for _ in range(count):
            yield damaged(data, rng)


def opened(data: bytes) -> JpegImageFile | None:
    try:
        return JpegImageFile(io.BytesIO(data))
    except Exception:  # noqa: BLE001 - whatever it is
        return None


def decodes(image: JpegImageFile) -> bool:
    try:
        image.load()
    except Exception:  # noqa: BLE001 - whatever it is
        return False
    return True


@pytest.mark.parametrize("scale", [8, 4, 2, 1])
def test_a_small_luma_finds_what_whole_decoding_finds(scale: int) -> None:
    """Both read every byte of every scan; the scale only shapes what is computed of what was read."""
    verdicts: Counter[bool] = Counter()
    left_to_pillow = 0
    for data in cases(120):
        whole, found = opened(data), jpeg.frame(data)
        if whole is None or found is None:
            continue
        if found.mode == "CMYK":
            assert jpeg.decoded_luma(data, found, scale) is None, "libjpeg makes no grey of inks"
            continue
        is_sound = decodes(whole)
        if (jpeg.decoded_luma(data, found, scale) is not None) != is_sound:
            assert is_sound, data.hex()
            left_to_pillow += 1
        verdicts[is_sound] += 1
    assert left_to_pillow < 5
    assert min(verdicts[True], verdicts[False]) > 150


def test_a_header_that_passes_is_one_that_pillow_takes() -> None:
    passed = 0
    for data in cases(120):
        found = jpeg.frame(data)
        if found is not None and found.is_plain:
            image = opened(data)
            assert image is not None and (image.size, image.mode) == (found.size, found.mode), data.hex()
            assert image.fp is not None and image.fp.tell() == found.scan
            passed += 1
    assert passed > 500


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_needs_neither_parser_nor_pixels(name: str) -> None:
    data = SOUND[name]
    image, found = opened(data), jpeg.frame(data)
    assert image is not None and found is not None
    assert (found.size, found.mode) == (image.size, image.mode)
    assert found.is_plain and jpeg.has_end(data, found.scan)
    assert (jpeg.decoded_luma(data, found, 8) is None) == (found.mode == "CMYK")


@pytest.mark.parametrize("check", ["decode", "header"])
@pytest.mark.parametrize("name", SOUND)
def test_the_stored_size_is_that_of_the_whole_image(name: str, check: Any) -> None:
    data = SOUND[name]
    size = Image.open(io.BytesIO(data)).size
    assert images.store(data, ImageRules(check=check))[:3] == ("jpg", data, size)


@pytest.mark.parametrize("check", ["decode", "header"])
def test_lossless_jpeg_is_left_to_whole_decoding(check: Any) -> None:
    """libjpeg does not scale it, so an eighth has no room for it."""
    data = lossless(640, 48)
    assert jpeg.frame(data) is None
    assert images.store(data, ImageRules(check=check))[:3] == ("jpg", data, (640, 48))


def changed(data: bytes, offset: int, content: bytes) -> bytes:
    return data[:offset] + content + data[offset + len(content) :]


GREY = SOUND["grey"]
FRAME = frame_of(GREY)
UNUSUAL = {
    "no scan": GREY[: segments(GREY)[-1][1]],
    "cut in its header": GREY[: FRAME + 5],
    "filled between segments": GREY[:FRAME] + b"\xff" + GREY[FRAME:],
    "two frames": GREY[:FRAME] + GREY[FRAME : segments(GREY)[-1][1]] + GREY[FRAME:],
    "arithmetic coding": changed(GREY, FRAME, b"\xff\xc9"),
    "12 bits": changed(GREY, FRAME + 4, b"\x0c"),
    "no width": changed(GREY, FRAME + 7, b"\0\0"),
    "two components": changed(GREY, FRAME + 9, b"\2"),
}


def chroma_of_two_thirds() -> bytes:
    """Three samples of luma to two of chroma, which libjpeg cannot sample up."""
    data = picture("RGB", 64, 64, subsampling="4:4:4")
    frame = frame_of(data)
    return changed(changed(data, frame + 11, b"\x31"), frame + 14, b"\x21")


def test_chroma_that_cannot_be_sampled_up_is_found_in_the_header() -> None:
    """In grey, libjpeg would not need the chroma."""
    data = chroma_of_two_thirds()
    found = jpeg.frame(data)
    assert opened(data) is not None and found is not None
    assert jpeg.decoded_luma(data, found, 8) is None


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_file_is_left_to_pillow(name: str) -> None:
    assert jpeg.frame(UNUSUAL[name]) is None


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(
    "comment", [b"\xff\xda", b"\xff\xda\x00\x0c" + bytes(20), b"\xff\xda\xff\xff", b"-" * 5000]
)
def test_a_mark_in_a_comment_starts_no_scan(mode: str, comment: bytes) -> None:
    data = picture(mode, 24, 16)
    before, after = jpeg.frame(data), jpeg.frame(data[:2] + segment(0xFFFE, comment) + data[2:])
    assert before is not None and after == before._replace(scan=before.scan + 4 + len(comment))


def test_a_header_with_exif_is_left_to_pillow() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    data = picture("RGB", 30, 10, exif=turned.tobytes())
    found = jpeg.frame(data)
    assert found is not None and not found.is_plain
    assert images.store(data, ImageRules(check="header"))[:3:2] == ("jpg", (10, 30))


TORN = [SOUND["4:2:0"][: int(len(SOUND["4:2:0"]) * share)] for share in (0.3, 0.6, 0.9)]


@pytest.mark.parametrize("data", [*TORN, chroma_of_two_thirds()], ids=["30 %", "60 %", "90 %", "chroma"])
def test_a_rejection_has_the_words_of_whole_decoding(data: bytes) -> None:
    with pytest.raises(Reject) as checked:
        images.check_image(data, ImageRules())
    with pytest.raises(Reject) as decoded:
        images.decode(data, ImageRules())
    assert str(checked.value) == str(decoded.value)
