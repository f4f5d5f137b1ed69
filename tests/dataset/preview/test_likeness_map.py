"""The map: a grid on which what looks alike lies near each other, whatever vectors it is made of."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.core.screen import no_progress
from tasks.dataset.preview.likeness_map import MOST, describe, grid_of, likeness_map, project
from tests.dataset.handmade import write_version
from tests.dataset.preview.pages import a_version, attributes, page, pairs, picture, words
from tests.dataset.quality import planted


@pytest.mark.parametrize("number", [1, 2, 5, 37, 192])
@pytest.mark.parametrize("width", [1, 2, 768])
def test_any_vectors_have_a_cell_each(number: int, width: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(number, width)).astype(np.float32)
    columns, cells = grid_of(vectors)
    assert len({tuple(cell) for cell in cells.tolist()}) == number
    assert (
        cells.min() >= 0
        and cells[:, 0].max() < columns
        and (cells[:, 1].max() + 1) * columns < number + 2 * columns
    )
    assert (grid_of(vectors)[1] == cells).all()
    grid_of(np.ones_like(vectors))  # no direction at all


def test_the_projection_is_that_of_the_principal_components() -> None:
    rng = np.random.default_rng(1)
    plane = rng.normal(size=(200, 2)) * (5, 2)
    turned, _ = np.linalg.qr(rng.normal(size=(9, 9)))
    found = project((plane @ turned[:2] + 7).astype(np.float32))
    centred = plane - plane.mean(axis=0)
    assert np.allclose(found.std(axis=0), np.linalg.svd(centred, compute_uv=False) / np.sqrt(200), rtol=1e-4)


def test_neighbours_look_more_alike_than_others() -> None:
    """Four photographs: on the map, most neighbours of a piece are pieces of the same photograph."""
    chosen = ("retina", "hubble_deep_field", "gravel", "chelsea")
    tiles = [(name, window) for name, window in planted.tiles() if name in chosen]
    random.Random(0).shuffle(tiles)
    vectors = np.stack([describe(window) for _, window in tiles])
    _, cells = grid_of(vectors)
    at = {tuple(cell): name for cell, (name, _) in zip(cells.tolist(), tiles, strict=True)}
    pairs_of = [
        (name, at[x + right, y + down])
        for (x, y), name in at.items()
        for right, down in ((1, 0), (0, 1))
        if (x + right, y + down) in at
    ]
    same = np.mean([one == other for one, other in pairs_of])
    names = [name for name, _ in tiles]
    by_chance = np.mean([one == other for one in names for other in names])
    assert same > 0.8 > by_chance + 0.2


def test_the_map_is_bounded_and_marks_splits_and_copies(tmp_path: Path) -> None:
    version = write_version(
        tmp_path / "version", "image_text", {"train": pairs(900), "val": pairs(100, start=900)}, shard=500
    )
    made = likeness_map(version, {"train": 900, "val": 100}, "image_text", {("val", 2)}, no_progress)
    assert made is not None and MOST - 2 <= len(made.spots) <= MOST and made.splits == ["train", "val"]
    assert sum(spot.split == "val" for spot in made.spots) == 19
    assert [spot.name for spot in made.spots if spot.is_copy] == ["patient-Meier_0902, val"]
    assert sum(len(spot.picture.uri) for spot in made.spots) < 1_000_000
    tags = page(version)
    assert f"{len(made.spots)} of 1,000 samples" in words(tags)
    held = [attrs for attrs in attributes(tags, "li") if attrs.get("class") == "held"]
    assert len(held) == 19 and all("grid-area" in str(attrs["style"]) for attrs in held)


def test_what_cannot_be_read_has_no_place_on_the_map(tmp_path: Path) -> None:
    version = a_version(tmp_path)
    (version / "train" / "000002.tar").unlink()
    made = likeness_map(version, {"train": 90, "val": 10}, "image_text", (), no_progress)
    assert made is not None and len(made.spots) == 84


def test_conversations_without_pictures_and_volumes_have_no_map(tmp_path: Path) -> None:
    talk = b'{"messages": [{"user": "hello", "assistant": "hi"}]}'
    silent = write_version(
        tmp_path / "silent", "chat", {"train": [(f"k{n}", {"json": talk}) for n in range(9)]}
    )
    assert "Map" not in words(page(silent))
    shown = [(f"k{n}", {"json": talk, "000.jpg": picture(n)}) for n in range(9)]
    assert "9 of 9 samples" in words(page(write_version(tmp_path / "shown", "chat", {"train": shown})))


def test_a_description_has_colour_and_structure() -> None:
    red, blue = (Image.new("RGB", (30, 20), colour) for colour in ("red", "blue"))
    half = Image.new("RGB", (30, 20), "red")
    half.paste("black", (0, 0, 15, 20))
    assert np.abs(describe(red) - describe(blue)).max() > 1
    assert describe(half).reshape(3, 6, 6)[0, :, 0].max() < describe(half).reshape(3, 6, 6)[0, :, 5].min()
