"""What `tarmac init` makes of well-known collections, as they are unpacked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import main
from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.init import survey
from tasks.dataset.version.manifest import read_manifest
from tasks.loader.indexed import IndexedReader
from tests.dataset import raw
from tests.dataset.init.kinds import captions_beside, config_of, warnings
from tests.dataset.raw import collections

NAMES = [f"{number:012d}.jpg" for number in range(20)]
SPLITS = {"train2017": range(16), "val2017": range(16, 20)}


def samples_of(place: str, folder: Path) -> dict[str, int]:
    """The samples of each split that a build makes of what `init` proposes."""
    seen = survey(place)
    assert warnings(seen) == ""
    result = build(config_of(seen, folder))
    assert result.rejected == 0
    for split in read_manifest(result.version).splits:
        reader = IndexedReader(result.version, split)
        for members in (reader.read(number).members for number in range(len(reader))):
            number = re.search(r"A child, number (\d+), told", members["txt"].decode())
            assert number is not None and members["jpg"] == raw.png(int(number[1]), kind="JPEG")
    return {name: split.samples for name, split in read_manifest(result.version).splits.items()}


@pytest.mark.parametrize("place", ["", "images"])
@pytest.mark.parametrize("given", ["coco", "coco/annotations"])
def test_coco_as_it_is_unpacked(
    place: str, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collections.coco(tmp_path / "coco", SPLITS, place)
    assert main(["init", given, "--out", "x.yaml"]) == 0
    said = capsys.readouterr().out
    assert (
        "coco/annotations/{captions_train2017,captions_val2017}.json: 2 tables, 100 rows; columns file"
        in said
    )
    root = f"coco/{place}".rstrip("/")
    assert f"root      {root}: 20 of 20 looked at are there" in said and "  label" not in said
    text = Path("x.yaml").read_text()
    assert "captions: all" in text and "splits: {from: split}" in text
    built = build(config_of(survey(given), tmp_path))
    splits = {name: split.samples for name, split in read_manifest(built.version).splits.items()}
    assert splits == {"train": 16, "val": 4} and built.rejected == 0


def test_one_file_of_captions_stores_an_image_once(tmp_path: Path) -> None:
    collections.coco(tmp_path / "coco", {"train2017": range(20)})
    config = config_of(survey("coco/annotations/captions_train2017.json"), tmp_path)
    assert config.dataset.splits.group_by is None
    built = build(config)
    assert built.accepted == 20
    members = IndexedReader(built.version, "train").read(0).members
    assert len(json.loads(members["json"])["captions"]) == 5


def test_captions_beside_images_in_one_folder(tmp_path: Path) -> None:
    """The document states the folder `train2017`, and the images lie in another one."""
    collections.images(tmp_path / "mine" / "photos", NAMES)
    document = collections.coco_captions(range(20), "train2017")
    (tmp_path / "mine" / "captions.json").write_text(json.dumps(document))
    config = config_of(survey("mine"), tmp_path)
    assert (config.dataset.source.image, config.dataset.source.root) == ("file_name", "mine/photos")  # type: ignore[union-attr]
    assert build(config).accepted == 20


def test_boxes_are_no_captions(tmp_path: Path) -> None:
    collections.images(tmp_path / "coco" / "val2017", NAMES)
    (tmp_path / "coco" / "instances_val2017.json").write_text(
        json.dumps(collections.coco_instances(range(20), "val2017"))
    )
    with pytest.raises(
        UsageError, match=r"instances_val2017\.json gives an image several classes: give the table"
    ):
        survey("coco/instances_val2017.json")


def test_one_class_per_image_is_read_by_its_name(tmp_path: Path) -> None:
    collections.images(tmp_path / "inat" / "train2017", NAMES)
    document = collections.coco_instances(range(20), "train2017", each=1)
    (tmp_path / "inat" / "train.json").write_text(json.dumps(document))
    version = build(config_of(survey("inat"), tmp_path)).version
    reader = IndexedReader(version, "train")
    texts = {reader.read(number).members["txt"].decode() for number in range(len(reader))}
    assert texts == {"a photo of a person", "a photo of a traffic light"}


def csv_text(folder: Path) -> None:
    lines = [f'{name},"{collections.text(n, k)}"' for n, name in enumerate(NAMES) for k in range(5)]
    (folder / "captions.txt").write_text("\n".join(["image,caption", *lines]))


def token_text(folder: Path) -> None:
    lines = [f"{name}#{k}\t{collections.text(n, k)}" for n, name in enumerate(NAMES) for k in range(5)]
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines))
    (folder / "Flickr_8k.trainImages.txt").write_text("\n".join(NAMES[:15]))


def token(folder: Path) -> None:
    token_text(folder)
    (folder / "Flickr8k.token.txt").rename(folder / "results_20130124.token")


@pytest.mark.parametrize("make", [csv_text, token_text, token])
def test_flickr_as_it_is_unpacked(make: Callable[[Path], None], tmp_path: Path) -> None:
    collections.images(tmp_path / "flickr" / "Images", NAMES)
    make(tmp_path / "flickr")
    (tmp_path / "flickr" / "readme.txt").write_text(
        "This is Flickr8k, with five captions each.\nCite us, please.\n"
    )
    found = samples_of("flickr", tmp_path)
    assert sum(found.values()) == 20 and set(found) <= {"train", "val"}
    assert survey("flickr").best.seen["root"].startswith("flickr/Images: 20 of 20")


@pytest.mark.parametrize("folders", [True, False])
def test_karpathys_splits_are_kept(folders: bool, tmp_path: Path) -> None:
    collections.images(tmp_path / "k" / ("val2014" if folders else "images"), NAMES)
    (tmp_path / "k" / "dataset_coco.json").write_text(json.dumps(collections.karpathy(range(20), folders)))
    assert samples_of("k", tmp_path) == {"train": 10, "val": 5, "test": 5}


def test_other_texts_and_documents_are_passed_over(tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    (tmp_path / "raw" / "readme.txt").write_text("some words, with a comma\nand more\n")
    (tmp_path / "raw" / "settings.json").write_text('{"images": 5, "size": [1, 2]}')
    (tmp_path / "raw" / "list.json").write_text("[1, 2, 3]")
    seen = survey("raw")
    assert seen.best.kind == "image_folder"
    assert "readme" not in warnings(seen) and "list" not in warnings(seen)


def test_a_torn_document_is_named(tmp_path: Path) -> None:
    collections.coco(tmp_path / "coco", SPLITS)
    path = tmp_path / "coco" / "annotations" / "captions_val2017.json"
    path.write_bytes(path.read_bytes()[:-50])
    assert "captions_val2017.json is not used, as it cannot be read" in warnings(survey("coco"))


@pytest.mark.parametrize("name", ["data [1]", "what? *yes*"])
def test_several_tables_in_a_folder_with_signs_of_a_pattern(name: str, tmp_path: Path) -> None:
    for part in ("a", "b"):
        raw.write_table(folder := tmp_path / name / part, raw.pictures(folder, 12))
    for part, folder in (("a", tmp_path / name / "a"), ("b", tmp_path / name / "b")):
        rows = (folder / "captions.csv").read_text().replace(".png", ".png").splitlines()
        rows[1:] = [f"{part}/{row}" for row in rows[1:]]
        (tmp_path / name / f"{part}.csv").write_text("\n".join(rows) + "\n")
        (folder / "captions.csv").unlink()
    built = build(config_of(survey(str(tmp_path / name)), tmp_path))
    assert (read_manifest(built.version).read, built.rejected) == (24, 0)


@pytest.mark.parametrize("names", [("x{1,2}/a.csv", "x{1,2}/b.csv"), ("a,1.csv", "b,2.csv")])
def test_names_that_no_pattern_can_hold_are_said(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        raw.write_table(
            tmp_path / "raw" / Path(name).parent, raw.pictures(tmp_path / "raw" / Path(name).parent, 4)
        )
        (tmp_path / "raw" / Path(name).parent / "captions.csv").rename(tmp_path / "raw" / name)
    (tmp_path / "raw/notes.csv").write_text("author,year\nMeier,2001\n")
    with pytest.raises(UsageError, match="holds a brace or a comma, which mean choices in a pattern"):
        survey(str(tmp_path / "raw"))
