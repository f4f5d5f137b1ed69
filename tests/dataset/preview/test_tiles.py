"""Tiles of every modality: what they show of a sample, of a faulty one, and of a damaged shard."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.core.errors import DataError
from tasks.dataset.building.builder import build
from tasks.dataset.formats.volumes import stored
from tasks.dataset.preview.page import gather_page
from tasks.dataset.preview.pictures import MOST_BYTES, planes_of, thumbnail
from tasks.dataset.preview.samples import choose_rows
from tasks.dataset.preview.tiles import Tile
from tasks.dataset.sample_reader import salvage, spread
from tasks.dataset.tar.format import header
from tests.dataset import raw
from tests.dataset.handmade import Members, write_version
from tests.dataset.preview.pages import SECRET, a_version, attributes, page, picture, words
from tests.dataset.raw.shards import entry


def tiles_of(folder: Path, modality: str, samples: Sequence[tuple[str, Members]]) -> Mapping[str, Tile]:
    version = write_version(folder / "version", modality, {"train": samples})
    return {tile.key: tile for tile in gather_page(version).gallery["train"]}


def faults(tile: Tile) -> str:
    return "; ".join(tile.faults)


def test_torn_samples_are_tiles_with_their_fault(tmp_path: Path) -> None:
    version = a_version(tmp_path)
    altered, cut, gone = (version / f"train/{n:06d}.tar" for n in range(3))
    content = bytearray(altered.read_bytes())
    content[600] ^= 1
    altered.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:4000])
    gone.unlink()
    text = words(page(version))
    assert "train/000000.tar: the sample's bytes at 0 changed after the build" in text
    assert "train/000001.tar is truncated" in text
    assert "train/000002.tar cannot be read: No such file" in text
    assert "with a fault: see tarmac verify" in text and "caption 89" in text


def test_members_that_cannot_be_shown_are_named_on_their_tile(tmp_path: Path) -> None:
    samples = [
        ("torn", {"jpg": picture(1)[:900], "txt": b"a torn picture"}),
        ("no_picture", {"txt": b"no picture"}),
        ("latin", {"jpg": picture(1), "txt": b"caf\xe9"}),
        ("blank", {"jpg": picture(1), "txt": b" "}),
    ]
    tiles = tiles_of(tmp_path, "image_text", samples)
    assert "cannot be decoded" in faults(tiles["torn"])
    assert "no image among txt" in faults(tiles["no_picture"])
    assert "not UTF-8 at byte 3" in faults(tiles["latin"]) and "blank" in faults(tiles["blank"])


def test_pictures_are_small_upright_and_bare() -> None:
    noisy = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 900, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    exif[0x010E] = SECRET
    file = io.BytesIO()
    noisy.save(file, "JPEG", exif=exif, quality=95)
    shown = thumbnail(file.getvalue(), "noise")
    assert (shown.width, shown.height) == (600, 900)
    assert len(shown.uri) < 1.4 * MOST_BYTES + 100
    file = io.BytesIO()
    noisy.resize((90, 60)).save(file, "PNG", exif=b"Exif\0\0garbage garbage")
    assert thumbnail(file.getvalue(), "with torn EXIF").width == 90
    with pytest.raises(DataError, match="no image format"):
        thumbnail(b"%!PS", "none")


def test_reinforced_samples_show_crops_and_synthetic_captions(tmp_path: Path) -> None:
    crops = [[[10, 20, 30, 40], [[1, 2]]], [[0, 0, 60, 90], None]]
    members = {
        "jpg": picture(1),
        "txt": b"a cat",
        "syn.json": json.dumps({"syn_text": ["a small cat", "<script>"]}).encode(),
    }
    as_list, as_text = ({"param_aug": value} for value in (crops, json.dumps(crops)))
    samples = [
        ("a", {**members, "paug.json": json.dumps(as_list).encode()}),
        ("b", {**members, "paug.json": json.dumps(as_text).encode()}),
        ("c", {**members, "paug.json": b'{"param_aug": 1}'}),
        ("d", {**members, "paug.json": b'{"param_aug": [[[[1, 2]]]]}', "syn.json": b'{"syn_text": [1]}'}),
    ]
    tiles = tiles_of(tmp_path, "reinforced", samples)
    drawn = ((20, 10, 40, 30), (0, 0, 90, 60))
    assert [tiles[key].pictures[0].crops for key in "abcd"] == [drawn, drawn, (), ()]
    assert "2 crops" in tiles["a"].notes
    assert faults(tiles["c"]) == "paug.json: param_aug is no list of augmentations"
    assert "augmentation 0 has no" in faults(tiles["d"]) and "holds an empty caption" in faults(tiles["d"])
    tags = page(tmp_path / "version")
    assert len([attrs for attrs in attributes(tags, "rect") if attrs.get("class") == "crop"]) == 4
    assert "a small cat" in tags.text


@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_a_volume_is_three_planes_in_two_windows_with_the_aspect_of_its_spacing(
    tmp_path: Path, encoding: str
) -> None:
    voxels = np.full((10, 20, 40), -1000, np.int16)
    voxels[5] = 40
    facts = json.dumps(
        {"spacing_mm": [4.0, 2.0, 1.0], "axes": "zyx", "labels": {"effusion": 1, "nodule": 0}}
    ).encode()
    name, content = stored.encode(voxels, encoding)
    members = {name: bytes(content), "txt": b"Clear lungs.", "json": facts}
    bare = {**members, "json": b"{}"}
    torn = {**members, name: members[name][:100]}
    turned = {**members, "json": b'{"axes": "yzx"}'}
    samples = [("a", members), ("b", bare), ("c", torn), ("d", turned)]
    tiles = tiles_of(tmp_path, "volume_report", samples)
    pictures = tiles["a"].pictures
    assert [one.label for one in pictures[:3]] == ["axial, lung", "coronal, lung", "sagittal, lung"]
    assert len(pictures) == 6 and {one.width / one.height for one in pictures} == {1.0}
    assert [round(one.width / one.height, 2) for one in tiles["b"].pictures[:3]] == [2.0, 4.0, 2.0]
    assert "labels: effusion of 2" in tiles["a"].notes and "10 × 20 × 40 voxels (z, y, x)" in tiles["a"].notes
    assert any("no spacing" in note for note in tiles["b"].notes)
    assert "10 × 20 × 40 voxels of no stated order, shown as (z, y, x)" in tiles["b"].notes
    assert "10 × 20 × 40 voxels (y, z, x)" in tiles["d"].notes
    assert [round(one.width / one.height, 2) for one in tiles["d"].pictures[:3]] == [4.0, 2.0, 0.5]
    assert f"{name} cannot be read" in faults(tiles["c"]) and tiles["c"].caption == "Clear lungs."


@pytest.mark.parametrize("axes", ["zyx", "zxy", "xyz"])
def test_planes_lie_as_a_radiologist_has_them(axes: str) -> None:
    """What lies towards the head, the back and the left of a body stands where it should in each plane, in
    whatever order its axes are stored."""
    body = np.zeros((5, 9, 7), np.int16)  # z, y, x
    body[3:, 4, :], body[:, 4, 5:] = 1, 2  # in the coronal plane: head, then left
    body[3:, 5:, 3] += 4  # in the sagittal one: head and back
    body[2, 6:, 5:] = 8  # in the axial one: back and left
    name, content = stored.encode(body.transpose([" zyx".index(axis) - 1 for axis in axes]), "npy")
    scan = stored.open_volume(name, content)
    planes = {view: plane for view, plane, _ in planes_of(scan, axes, (1.0, 1.0, 1.0))}
    assert (planes["axial"] == body[2]).all() and (planes["axial"][6:, 5:] == 8).all()
    assert (planes["coronal"] == body[::-1, 4]).all() and (planes["coronal"][:2, :5] == 1).all()
    assert (planes["sagittal"] == body[::-1, :, 3]).all() and (planes["sagittal"][:2, 5:] == 4).all()


def test_a_chat_is_its_turns_with_their_images(tmp_path: Path) -> None:
    turns = [{"user": f"question {n} <script>", "assistant": f"answer {n}"} for n in range(3)]
    document = {"messages": turns, "ratings": {"relevance": [4, None, 5]}}
    members = {
        "000.jpg": picture(1),
        "001.png": picture(2, kind="PNG"),
        "json": json.dumps(document).encode(),
    }
    samples = [("a", members), ("b", {"json": b'{"messages": 3}'})]
    tags = page(write_version(tmp_path / "version", "chat", {"train": samples}))
    text = words(tags)
    assert "question 1" in text and "answer 1" in text and "2 more messages" in text
    assert "relevance 4, –, 5" in text and "there is no list of messages" in text
    assert len(attributes(tags, "img")) == 2 and not attributes(tags, "script")


def test_samples_are_spread_evenly_and_bounded() -> None:
    assert spread(4, 10) == [0, 1, 2, 3]
    assert spread(10**9, 4) == [125_000_000, 375_000_000, 625_000_000, 875_000_000]
    chosen = choose_rows({f"split{n}": 10**6 for n in range(30)}, "image_text")
    assert sum(map(len, chosen.values())) <= 180 and all(chosen.values())


def test_of_a_damaged_shard_is_salvaged_what_has_a_sound_header(tmp_path: Path) -> None:
    tar = tmp_path / "000000.tar"
    torn = bytearray(entry("a.json", b"torn"))
    torn[124] ^= 1
    tar.write_bytes(
        entry("../../etc/passwd")
        + entry("a.png", b"one")
        + bytes(torn)
        + entry("b.png", b"another's")
        + entry("a.txt", b"two")
        + entry("a.png", b"three")
        + header("c.txt", 2000)
        + b"cut"
    )
    found = salvage(tar, {"a", "c", "gone"})
    assert {key: sample.members for key, sample in found.items()} == {"a": {"png": b"one", "txt": b"two"}}
    assert salvage(tmp_path / "none.tar", {"a"}) == {} == salvage(Path("a\0b"), {"a"})


def test_a_tile_has_the_place_that_the_sample_came_from(tmp_path: Path) -> None:
    rows = [(f"img/{number}.png", f"picture {number}", "x") for number in range(4)]
    (tmp_path / "raw" / "img").mkdir(parents=True)
    for name, *_ in rows:
        (tmp_path / "raw" / name).write_bytes(raw.png(len(name)))
    raw.write_table(tmp_path / "raw", rows)
    version = build(raw.config(tmp_path / "raw", tmp_path / "data", splits={"val": 0.5})).version
    shown = gather_page(version).gallery
    origins = {tile.caption: tile.origin for tiles in shown.values() for tile in tiles}
    assert origins == {
        f"picture {number}": f"img/{number}.png, captions.csv:{number + 2}" for number in range(4)
    }
    assert "img/3.png, captions.csv:5" in words(page(version))
