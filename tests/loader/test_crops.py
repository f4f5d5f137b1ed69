"""Crops for training: close to what Pillow cuts and resizes, whichever decoder made the pixels."""

import io

import numpy as np
import pytest
import skimage.data
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from tasks.dataset.formats.pixels import Box
from tasks.loader.crops import cut, reduction
from tasks.loader.decoders import open_image

SIDE = 224
PHOTOS = ("astronaut", "coffee", "rocket")


def encoded(photo: str, size: tuple[int, int], kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(getattr(skimage.data, photo)()).resize(size, Image.Resampling.BICUBIC)
    picture.save(file, kind, quality=90)
    return file.getvalue()


def cut_by_pillow(data: bytes, box: Box, mode: InterpolationMode) -> np.ndarray:
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(F.resized_crop(whole, *box, (SIDE, SIDE), mode))


def on_grid(box: Box, factor: int) -> Box:
    """The box whose edges are moved to the nearest pixels of a picture that is `factor` times smaller."""
    top, left = round(box.top / factor) * factor, round(box.left / factor) * factor
    bottom = round((box.top + box.height) / factor) * factor
    right = round((box.left + box.width) / factor) * factor
    return Box(top, left, bottom - top, right - left)


@pytest.mark.parametrize("photo", PHOTOS)
@pytest.mark.parametrize(
    ("size", "factor", "levels"),
    [((150, 180), 1, 2), ((256, 256), 1, 2), ((512, 512), 1, 2), ((1024, 768), 2, 6), ((2048, 1536), 4, 6)],
)
@pytest.mark.parametrize("mode", [InterpolationMode.BICUBIC, InterpolationMode.BILINEAR])
def test_a_crop_is_pillows_but_for_a_few_levels(
    photo: str, size: tuple[int, int], factor: int, levels: int, mode: InterpolationMode
) -> None:
    data, differences = encoded(photo, size), []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        height, width = (int(side * rng.uniform(0.95, 1)) for side in reversed(size))
        box = Box(
            int(rng.integers(size[1] - height + 1)), int(rng.integers(size[0] - width + 1)), height, width
        )
        assert reduction(box, (SIDE, SIDE)) == factor
        mine = cut(open_image(data), box, (SIDE, SIDE), mode).numpy().astype(int)
        differences.append(np.abs(mine - cut_by_pillow(data, on_grid(box, factor), mode)))
    assert np.median(differences) == 0
    assert np.quantile(differences, 0.999) <= levels


@pytest.mark.parametrize(("sides", "factor"), [((771, 1021), 2), ((1539, 1001), 2), ((2689, 2689), 8)])
def test_sides_that_no_reduction_divides_move_no_edge_further(sides: tuple[int, int], factor: int) -> None:
    """An edge near the end of a picture, across each side: it moves by a third of a pixel at most."""
    width, height = sides
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[height - 89 :], pixels[:, width - 89 :] = 255, 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    box = Box(0, 0, height, width)
    assert reduction(box, (SIDE, SIDE)) == factor
    bilinear = InterpolationMode.BILINEAR
    mine = cut(open_image(file.getvalue()), box, (SIDE, SIDE), bilinear).numpy()[..., 0] / 255
    exact = cut_by_pillow(file.getvalue(), box, bilinear)[..., 0] / 255
    assert abs((mine[0] - exact[0]).sum()) <= 1 / 3 and abs((mine[:, 0] - exact[:, 0]).sum()) <= 1 / 3


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_other_formats_are_cut_alike(kind: str) -> None:
    data, box = encoded("coffee", (700, 500), kind), Box(3, 7, 490, 650)
    mine = cut(open_image(data), box, (SIDE, SIDE), InterpolationMode.BICUBIC).numpy().astype(int)
    assert np.abs(mine - cut_by_pillow(data, box, InterpolationMode.BICUBIC)).max() <= 2


def test_edges_move_by_a_third_of_a_resulting_pixel_at_most() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        height, width = (int(side) for side in rng.integers(700, 4000, 2))
        box = Box(*(int(edge) for edge in rng.integers(0, 99, 2)), height, width)
        factor = reduction(box, (SIDE, SIDE))
        moved = on_grid(box, factor)
        assert abs(moved.top - box.top) / (height / SIDE) <= 1 / 3
        assert abs(moved.left + moved.width - box.left - width) / (width / SIDE) <= 1 / 3
