"""The page of a version: what one sees, what one must not see, and what a fault does to it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flows.cli import main
from tasks.core.errors import DataError
from tasks.dataset.formats.volumes import stored
from tasks.dataset.preview import page_path, write_look
from tasks.dataset.preview.choice import choose, spread
from tasks.dataset.preview.columns import read_columns
from tasks.dataset.preview.content import gather
from tasks.dataset.preview.histogram import Histogram
from tasks.dataset.preview.pictures import MOST_BYTES, thumbnail
from tasks.dataset.preview.scans import _planes
from tests.core.test_pages import Tags
from tests.dataset.handmade import Members, write_version

HOSTILE = "<img src=x onerror=alert(1)></p><script>alert(2)</script>\"'"
SECRET = "patient-Meier"


def picture(seed: int, width: int = 90, height: int = 60, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def pairs(count: int, caption: str = "caption", start: int = 0) -> list[tuple[str, Members]]:
    one = picture(1)
    return [
        (f"{SECRET}_{n:04d}", {"jpg": one, "txt": f"{caption} {n}".encode()})
        for n in range(start, start + count)
    ]


def look(version: Path, **options: object) -> Tags:
    made = write_look(version, version.parent / "look.html", **options)  # type: ignore[arg-type]
    return Tags(re.sub(r"<style>.*?</style>", "", made.path.read_text(encoding="utf-8"), flags=re.S))


def words(page: Tags) -> str:
    return " ".join(" ".join(page.pieces).split())


def attributes(page: Tags, tag: str) -> list[dict[str, str | None]]:
    return [attrs for name, attrs in page.tags if name == tag]


def a_version(folder: Path, **options: object) -> Path:
    rejects = [("image.empty", f"{SECRET}_9{n:03d}", "0 bytes", f"secret.csv:{n}") for n in range(12)]
    splits = {"train": pairs(90), "val": pairs(10, start=90)}
    statistics = {"width": [90] * 100, "caption_length": list(range(100))}
    return write_version(folder / "version", "image_text", splits, statistics, rejects, **options)  # type: ignore[arg-type]


def test_counts_samples_rejects_and_numbers_are_on_one_page(tmp_path: Path) -> None:
    page = look(a_version(tmp_path), title_note="pilot: the first 100 samples")
    text = words(page)
    assert "112 read = 100 accepted + 0 filtered + 12 rejected" in text
    assert "pilot: the first 100 samples" in text
    assert "train 60 of 90" in text and "val 10 of 10" in text
    assert len(attributes(page, "img")) == 70 and "caption 99" in text and "90 × 60" in text
    assert f"all 12 under {SECRET}_90* : one cause?" in text and "0 bytes (secret.csv:3)" in text
    assert "Caption length" in text and "Size of a shard" in text
    assert [attrs["aria-label"] for attrs in attributes(page, "svg") if "Caption" in attrs["aria-label"]] == [
        "Caption length: 100 samples from 0 to 99.0 characters, half of them at or below 49.0."
    ]


def test_the_page_runs_nothing_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    version = write_version(
        tmp_path / "version",
        "image_text",
        {"train": pairs(3, HOSTILE)},
        rejects=[("caption.empty", HOSTILE, HOSTILE, HOSTILE)] * 6,
    )
    page = look(version, title_note=HOSTILE)
    assert "<script>alert(2)</script>" in page.text
    assert not attributes(page, "script") and not attributes(page, "link") and not attributes(page, "iframe")
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    for _, attrs in page.tags:
        for name in ("src", "href"):
            assert not attrs.get(name) or str(attrs[name]).startswith(("data:image/", "#"))


@pytest.mark.parametrize("private", [True, None])
def test_a_private_version_shows_counts_only(tmp_path: Path, private: bool | None) -> None:
    version = a_version(tmp_path, private=private)
    for tar in version.rglob("*.tar"):
        tar.unlink()  # not even opened
    page = look(version, count_tokens=len)
    html = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert SECRET not in html and "secret.csv" not in html and "0 bytes" in html
    assert "caption 1" not in html and "data:image" not in html
    text = words(page)
    assert "image.empty" in text and "112 read" in text and "Caption length" in text
    assert ("No sample was opened" in text) == (private is True)
    assert ("private is not known" in text) == (private is None)


def test_torn_samples_are_tiles_that_say_so(tmp_path: Path) -> None:
    version = a_version(tmp_path)
    altered, cut, gone = (version / f"train/{n:06d}.tar" for n in range(3))
    content = bytearray(altered.read_bytes())
    content[600] ^= 1
    altered.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:4000])
    gone.unlink()
    text = words(look(version))
    assert "train/000000.tar: the sample's bytes at 0 changed after the build" in text
    assert "train/000001.tar is truncated" in text
    assert "train/000002.tar cannot be read: No such file" in text
    assert "with a fault: see tarmac verify" in text and "caption 89" in text


def test_members_that_cannot_be_shown_are_named_on_their_tile(tmp_path: Path) -> None:
    samples = {
        "torn": {"jpg": picture(1)[:900], "txt": b"a torn picture"},
        "no_picture": {"txt": b"no picture"},
        "latin": {"jpg": picture(1), "txt": b"caf\xe9"},
        "blank": {"jpg": picture(1), "txt": b" "},
    }
    content = gather(
        write_version(tmp_path / "version", "image_text", {"train": list(samples.items())}), None
    )
    faults = {tile.key: " ".join(map(str, tile.faults)) for tile in content.gallery["train"]}
    assert "cannot be decoded" in faults["torn"] and "no image among txt" in faults["no_picture"]
    assert "not UTF-8 at byte 3" in faults["latin"] and "blank" in faults["blank"]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("samples/train.parquet", "No distributions are shown: samples/train.parquet cannot be read"),
        ("shards.parquet", "No shards are shown: shards.parquet cannot be read"),
        ("rejects.parquet", "No examples of rejects are shown: rejects.parquet cannot be read"),
        ("index/train.npy", "No samples of train are shown: index/train.npy"),
    ],
)
def test_a_broken_table_costs_its_own_section(tmp_path: Path, file: str, says: str) -> None:
    version = a_version(tmp_path)
    (version / file).write_bytes(b"PAR1 torn")
    text = words(look(version))
    assert says in text and "112 read" in text and "val 10 of 10" in text


def test_pictures_are_small_upright_and_bare(tmp_path: Path) -> None:
    noisy = Image.fromarray(np.random.default_rng(0).integers(0, 256, (800, 1200, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    exif[0x010E] = SECRET
    file = io.BytesIO()
    noisy.save(file, "JPEG", exif=exif, quality=95)
    shown = thumbnail(file.getvalue(), "noise")
    assert (shown.width, shown.height) == (800, 1200)
    assert len(shown.uri) < 1.4 * MOST_BYTES + 100
    file = io.BytesIO()
    noisy.save(file, "PNG", exif=b"Exif\0\0garbage garbage")
    assert thumbnail(file.getvalue(), "with torn EXIF").width == 1200
    with pytest.raises(DataError, match="no image format"):
        thumbnail(b"%!PS", "none")


def test_reinforced_samples_show_crops_and_synthetic_captions(tmp_path: Path) -> None:
    crops = [[[10, 20, 30, 40], [[1, 2]]], [[0, 0, 60, 90], None]]
    members = {
        "jpg": picture(1),
        "txt": b"a cat",
        "syn.json": json.dumps({"syn_text": ["a small cat", HOSTILE]}).encode(),
    }
    as_list, as_text = ({"param_aug": value} for value in (crops, json.dumps(crops)))
    samples = [
        ("a", {**members, "paug.json": json.dumps(as_list).encode()}),
        ("b", {**members, "paug.json": json.dumps(as_text).encode()}),
        ("c", {**members, "paug.json": b'{"param_aug": 1}'}),
        ("d", {**members, "paug.json": b'{"param_aug": [[[[1, 2]]]]}', "syn.json": b'{"syn_text": [1]}'}),
    ]
    version = write_version(tmp_path / "version", "reinforced", {"train": samples})
    tiles = gather(version, None).gallery["train"]
    drawn = ((20, 10, 40, 30), (0, 0, 90, 60))
    assert [tile.pictures[0].crops for tile in tiles] == [drawn, drawn, (), ()]
    assert [str(fault) for fault in tiles[2].faults] == ["paug.json: param_aug is no list of augmentations"]
    assert [str(fault).partition(" has no")[0] for fault in tiles[3].faults] == [
        "augmentation 0",
        "syn.json: syn_text holds an empty caption",
    ]
    page = look(version)
    assert len([attrs for attrs in attributes(page, "rect") if attrs.get("class") == "crop"]) == 4
    assert "a small cat" in page.text


@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_a_volume_is_three_planes_in_two_windows_with_the_aspect_of_its_spacing(
    tmp_path: Path, encoding: str
) -> None:
    voxels = np.full((10, 40, 20), -1000, np.int16)
    voxels[5] = 40
    facts = json.dumps({"spacing_mm": [4.0, 1.0, 2.0], "labels": {"effusion": 1, "nodule": 0}}).encode()
    name, content = stored.encode(voxels, encoding)
    members = {name: bytes(content), "txt": b"Clear lungs.", "json": facts}
    bare = {**members, "json": b"{}"}
    torn = {**members, name: members[name][:100]}
    version = write_version(
        tmp_path / "version", "volume_report", {"train": [("a", members), ("b", bare), ("c", torn)]}
    )
    tiles = gather(version, None).gallery["train"]
    pictures = tiles[0].pictures
    assert [one.label for one in pictures[:3]] == ["axial, lung", "coronal, lung", "sagittal, lung"]
    assert len(pictures) == 6 and {one.width / one.height for one in pictures} == {1.0}
    assert [round(one.width / one.height, 2) for one in tiles[1].pictures[:3]] == [2.0, 4.0, 2.0]
    assert "labels: effusion of 2" in tiles[0].notes and "10 × 40 × 20 voxels" in tiles[0].notes
    assert any("no spacing" in note for note in tiles[1].notes)
    assert f"{name} cannot be read" in str(tiles[2].faults[0]) and tiles[2].caption == "Clear lungs."
    assert "Clear lungs." in look(version).text


def test_planes_lie_as_a_radiologist_has_them() -> None:
    """What lies towards the head, the left and the back of a body stands where it should in each plane."""
    body = np.zeros((5, 7, 9), np.int16)
    body[3:, :, 4], body[:, 5:, 4] = 1, 2  # seen in the coronal plane: head, then left
    body[3:, 3, 5:] += 4  # head and back, in the sagittal one
    body[2, 5:, 6:] = 8  # left and back, in the axial one
    name, content = stored.encode(body, "npy")
    planes = {view: plane for view, plane, _ in _planes(stored.open_volume(name, content), (1.0, 1.0, 1.0))}
    assert {view: plane.shape for view, plane in planes.items()} == {
        "axial": (9, 7),
        "coronal": (5, 7),
        "sagittal": (5, 9),
    }
    assert (planes["axial"] == body[2].T).all() and (planes["axial"][6:, 5:] == 8).all()
    assert (planes["coronal"][:2, :5] == 1).all() and (planes["coronal"][:, 5:] == 2).all()
    assert (planes["sagittal"][:2, 5:] == 4).all() and not planes["sagittal"][2:, 5:].any()


def test_a_chat_is_its_turns_with_their_images(tmp_path: Path) -> None:
    turns = [{"user": f"question {n} {HOSTILE}", "assistant": f"answer {n}"} for n in range(3)]
    document = {"messages": turns, "ratings": {"relevance": [4, None, 5]}}
    members = {
        "000.jpg": picture(1),
        "001.png": picture(2, kind="PNG"),
        "json": json.dumps(document).encode(),
    }
    samples = [("a", members), ("b", {"json": b'{"messages": 3}'})]
    version = write_version(tmp_path / "version", "chat", {"train": samples})
    page = look(version)
    text = words(page)
    assert "question 1" in text and "answer 1" in text and "2 more messages" in text
    assert "relevance 4, –, 5" in text and "there is no list of messages" in text
    assert len(attributes(page, "img")) == 2 and not attributes(page, "script")


def test_a_chat_without_images_has_no_sides(tmp_path: Path) -> None:
    text = {"json": json.dumps({"messages": [{"user": "?", "assistant": "!"}]}).encode()}
    samples = [("a", text), ("b", {**text, "000.jpg": picture(1)}), ("c", text)]
    sides = {"images": [0, 1, 0], "width": [0, 90, 0], "height": [0, 60, 0]}
    version = write_version(tmp_path / "version", "chat", {"train": samples}, sides)
    counted = {column.name: column.all for column in read_columns(version, {"train": 3}, "chat")}
    assert (counted["width"].lowest, counted["width"].total, counted["width"].missing) == (90, 1, 2)
    assert (counted["images"].lowest, counted["images"].total) == (0, 3)


def test_tokens_are_counted_on_captions_and_said_to_be_left_out(tmp_path: Path) -> None:
    version = write_version(tmp_path / "version", "image_text", {"train": pairs(40, "long " * 20)})
    assert "Tokens a caption are left out" in words(look(version))
    text = words(look(version, count_tokens=len))
    assert "100.0 % are longer than the 77 that CLIP reads" in text.replace("\u202f", " ")


def test_samples_are_spread_evenly_and_bounded() -> None:
    assert spread(4, 10) == [0, 1, 2, 3]
    assert spread(10**9, 4) == [125_000_000, 375_000_000, 625_000_000, 875_000_000]
    chosen = choose({f"split{n}": 10**6 for n in range(30)}, "image_text")
    assert sum(map(len, chosen.values())) <= 180 and all(chosen.values())


def test_a_histogram_is_bounded_exact_for_small_numbers_and_free_of_tails() -> None:
    values = np.random.default_rng(0).integers(200, 260, 100_000).astype(float)
    histogram = Histogram()
    for part in np.array_split(np.append(values, [20_000, np.nan]), 7):
        histogram.add(part)
    assert histogram.total == 100_001 and histogram.missing == 1
    assert histogram.quantile(0.5) == np.quantile(values, 0.5, method="inverted_cdf")
    view = histogram.view()
    assert view.above == 1 and sum(view.heights) == 100_000
    assert view.edges[0] >= 190 and view.edges[-1] <= 270
    wide = Histogram()
    wide.add(
        np.random.default_rng(0).lognormal(0, 40, 200_000) * np.random.default_rng(1).choice([-1, 1], 200_000)
    )
    assert len(wide._counts) < 70_000


def test_the_page_lies_beside_the_data(tmp_path: Path) -> None:
    dataset = tmp_path / "data"
    version = write_version(dataset / "versions" / "0123456789ab", "image_text", {"train": pairs(2)})
    other = write_version(dataset / "versions" / "ba9876543210", "image_text", {"train": pairs(3)})
    (dataset / "current").symlink_to("versions/0123456789ab")
    assert page_path(dataset / "current") == page_path(version) == dataset / "look.html"
    assert page_path(other) == dataset / "look-ba9876543210.html"
    alone = write_version(tmp_path / "copied", "image_text", {"train": pairs(2)})
    assert page_path(alone) == tmp_path / "look-copied.html"


def test_the_command_prints_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = [("a", {"json": b'{"messages": []}', "000.jpg": picture(1)[:500]})]
    version = write_version(tmp_path / "version", "chat", {"train": chat})
    out = tmp_path / "page.html"
    assert main(["look", str(version), "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{out}\n" and "member.undecodable 1" in said.err
    assert main(["look", str(version), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"] and told["faulty"] == 1 and Path(told["look"]).is_file()
    assert main(["look", str(tmp_path)]) == 2
    assert main(["look", str(version), "--out", str(out / "page.html")]) == 2
    assert "--out:" in capsys.readouterr().err
