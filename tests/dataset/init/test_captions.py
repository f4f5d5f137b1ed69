"""What `tarmac init` finds in folders of images."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.building.check import check_sources
from tasks.dataset.init import survey
from tests.dataset.init.kinds import (
    captions_beside,
    classes,
    config_of,
    json_beside,
    pngs,
    taken,
    warnings,
)
from tests.dataset.raw import png


def test_folder_names_as_captions_are_reported_as_a_guess(tmp_path: Path) -> None:
    classes(tmp_path / "raw")
    seen = survey("raw")
    assert "the captions are a guess, made of the folders' names: nine, zero" in warnings(seen)
    assert config_of(seen, tmp_path).dataset.source.captions == "folder"  # type: ignore[union-attr]


def test_folders_named_after_splits_are_the_splits(tmp_path: Path) -> None:
    for split in ("train", "val"):
        classes(tmp_path / "raw" / split)
    config = config_of(survey("raw"), tmp_path)
    assert config.dataset.splits.column == "folder"
    assert taken(config) == 12


def test_a_loose_image_costs_itself_and_not_the_classes(tmp_path: Path) -> None:
    for name in ("nine", "zero"):
        pngs(tmp_path / "raw" / name, 12)
    (tmp_path / "raw" / "cover.png").write_bytes(png(99))
    (tmp_path / "raw" / "nine" / "@eaDir" / "0.png").mkdir(parents=True)
    (tmp_path / "raw" / "nine" / "@eaDir" / "0.png" / "THUMB_M.jpg").write_bytes(png(98))
    seen = survey("raw")
    assert seen.inventory.described == "25 .png; 1 thumbnail of a system passed over (@eaDir)"
    loose = "1 image in no class folder (cover.png), which the build rejects: move it into one"
    assert loose in warnings(seen)
    built = build(config_of(seen, tmp_path))
    assert (built.read, built.accepted) == (25, 24)
    (reject,) = pq.read_table(built.version / "rejects.parquet").to_pylist()
    assert (reject["source"], reject["reason"]) == ("cover.png", "caption.missing")
    assert reject["detail"] == "lies in no folder that names its class: move it into one"


def test_as_many_loose_images_as_others_are_no_classes(tmp_path: Path) -> None:
    classes(tmp_path / "raw")
    pngs(tmp_path / "raw", 6)
    with pytest.raises(UsageError, match="no captions for 12 images"):
        survey("raw")


def test_the_level_that_is_taken_for_the_class_is_shown(tmp_path: Path) -> None:
    classes(tmp_path / "flat")
    assert (
        survey("flat")
        .best.seen["captions"]
        .endswith("of 3 images each; the folder that an image lies in, such as nine for nine/0.png")
    )
    for place in ("birds/owl", "birds/owl/young", "cats/young"):
        pngs(tmp_path / "deep" / place, 4)
    seen = survey("deep")
    assert seen.best.seen["captions"] == (
        "folder: 2 classes, owl, young, of 4 to 8 images each; the last of 2 to 3 folders that an image lies in, "
        "such as young for birds/owl/young/0.png"
    )
    assert "folders of one name make one class: birds/owl/young, cats/young" in warnings(seen)


@pytest.mark.parametrize(
    "places",
    [
        ("2019/05", "2019/06", "2020/01"),
        ("2019", "2020"),
        ("a/2019-05-01 Rome", "b/20190601"),
        ("2021/May",) * 2,
    ],
)
def test_folders_named_by_dates_are_no_classes(tmp_path: Path, places: Sequence[str]) -> None:
    for number, place in enumerate(places):
        pngs(tmp_path / "raw" / place, 4, prefix=str(number))
    with pytest.raises(
        UsageError, match=f"folders named by dates .{places[0].removeprefix('a/')}. name no classes"
    ):
        survey("raw")


def test_numbers_and_models_with_a_year_are_classes(tmp_path: Path) -> None:
    for place in ("0", "7", "12", "2012 Marlin", "Audi R8 2012"):
        pngs(tmp_path / "raw" / place, 4)
    assert survey("raw").best.is_guess


def test_images_that_lack_a_caption_are_counted(tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    (tmp_path / "raw" / "0.txt").unlink()
    (tmp_path / "raw" / "1.txt").write_bytes(b"\xff\xfe")
    seen = survey("raw")
    assert "5 of 6 images have a .txt beside, such as “a picture called 2”" in seen.best.seen["captions"]


@pytest.mark.parametrize(("make", "field"), [(captions_beside, None), (json_beside, "title")])
def test_captions_in_upper_case_and_with_a_byte_order_mark(
    make: Callable[[Path], None], field: str | None, tmp_path: Path
) -> None:
    make(tmp_path / "raw")
    for path in list((tmp_path / "raw").iterdir()):
        content = path.read_bytes()
        path.rename(path.with_suffix(path.suffix.upper()))
        if path.suffix != ".png":
            path.with_suffix(path.suffix.upper()).write_bytes(b"\xef\xbb\xbf" + content)
    seen = survey("raw")
    config = config_of(seen, tmp_path)
    assert (config.dataset.source.field, warnings(seen)) == (field, "")  # type: ignore[union-attr]
    assert "“a picture called" in seen.best.seen["captions"]
    assert taken(config) == 6


def test_captions_for_few_images_are_no_captions_for_all(tmp_path: Path) -> None:
    for name in ("nine", "zero"):
        pngs(tmp_path / "raw" / name)
    (tmp_path / "raw/nine/0.txt").write_text("a nine")
    (tmp_path / "raw/nine/1.txt").write_text("another nine")
    seen = survey("raw")
    assert seen.best.is_guess
    assert "2 of 12 images have a .txt beside" in seen.readings[1].seen["captions"]


@pytest.mark.parametrize(("suffix", "encode"), [("avif", "jpg"), ("mpo", "keep")])
def test_a_folder_of_what_phones_and_cameras_write(suffix: str, encode: str, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "raw" / f"class{number % 2}").mkdir(parents=True, exist_ok=True)
        picture = png(number, kind=suffix.upper())
        (tmp_path / "raw" / f"class{number % 2}" / f"{number}.{suffix}").write_bytes(picture)
    config = config_of(survey("raw"), tmp_path)
    assert config.dataset.image.encode == encode
    built = build(config)
    assert built.accepted == 6
    assert sum(name.endswith(".jpg") for name in members(built.version)) == 6


def test_formats_that_shards_do_not_hold_are_encoded(tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    (tmp_path / "raw" / "0.png").unlink()
    (tmp_path / "raw" / "0.bmp").write_bytes(png(1, kind="BMP"))
    config = config_of(survey("raw"), tmp_path)
    assert config.dataset.image.encode == "jpg"
    built = build(config)
    assert built.accepted == 6
    stored = members(built.version)
    assert [name for name in stored if name.endswith(".jpg")] == ["0.jpg"]
    for number in range(1, 6):
        assert stored[f"{number}.png"] == png(number), "what shards can hold is not touched"


@pytest.mark.parametrize(("suffix", "shard"), [("gif", {"samples": 5}), ("png", {"bytes": "256MB"})])
def test_what_is_proposed_for_large_images_can_be_built(suffix: str, shard: object, tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    (tmp_path / "raw" / "0.png").rename(tmp_path / "raw" / f"0.{suffix}")
    for number in range(6, 60):
        (tmp_path / "raw" / f"{number}.png").touch()
        (tmp_path / "raw" / f"{number}.txt").write_text("a picture")
        os.truncate(tmp_path / "raw" / f"{number}.png", 60_000_000)
    seen = survey("raw")
    assert next(one.value for one in seen.best.dataset if one.key == "shard") == shard
    check_sources(config_of(seen, tmp_path).dataset)


def members(version: Path) -> dict[str, bytes]:
    """Every member of the version's tars."""
    found = {}
    for path in version.rglob("*.tar"):
        with tarfile.open(path) as tar:
            for one in tar:
                file = tar.extractfile(one)
                assert file is not None
                found[one.name] = file.read()
    return found
