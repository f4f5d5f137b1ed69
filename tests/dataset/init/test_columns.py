"""What `tarmac init` finds in tables of images and captions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.init import config_text, survey
from tasks.dataset.init.survey import PlaceSurvey
from tasks.loader.indexed import IndexedReader
from tasks.models import recipes
from tests.dataset import raw
from tests.dataset.init.kinds import (
    captions_beside,
    classes,
    config_of,
    img2dataset,
    npz,
    pngs,
    table,
    taken,
    warnings,
)
from tests.dataset.raw import png
from tests.models.examples import train_block
from tests.picture_server import PictureServer, picture_server


def test_columns_are_known_by_what_they_hold(tmp_path: Path) -> None:
    pngs(tmp_path / "raw" / "some images", 6, "ä ")
    header = ("number", "where", "split", "words", "patient_id")
    rows = [
        (n, f"some images/ä {n}.png", ("train", "val")[n > 3], f"a picture of number {n}", f"p{n // 2}")
        for n in range(6)
    ]
    raw.write_table(tmp_path / "raw", rows, header)
    seen = survey("raw")
    config = config_of(seen, tmp_path)
    assert (config.dataset.source.image, config.dataset.source.caption) == ("where", "words")  # type: ignore[union-attr]
    assert config.dataset.splits.column == "split"
    assert "group_by: patient_id" in config_text(seen)
    assert "6 of 6 looked at are there" in seen.best.seen["image"]
    assert taken(config) == 6


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_table_beside_class_folders_is_used(tmp_path: Path, sign: str, encoding: str) -> None:
    classes(tmp_path / "raw")
    rows = [f"{name}/{n}.png{sign}picture {n} of {name}" for name in ("nine", "zero") for n in range(3)]
    (tmp_path / "raw/captions.csv").write_text("\n".join([f"file{sign}text", *rows]), encoding=encoding)
    seen = survey("raw")
    assert (seen.best.kind, seen.best.samples) == ("table", 6)
    assert "6 of 6 looked at are there" in seen.best.seen["image"]


def test_a_table_that_is_of_no_use_beside_class_folders_is_named(tmp_path: Path) -> None:
    classes(tmp_path / "raw")
    (tmp_path / "raw/sizes.csv").write_text("width,height\n12,12\n")
    (tmp_path / "raw/captions.csv").write_text("file,text\nimages/0.png,a picture of a zero\n")
    seen = survey("raw")
    assert seen.best.is_guess
    assert "not used: sizes.csv has no column of images" in warnings(seen)
    said = "not used: captions.csv: file names images that are not there, such as images/0.png (0 of 1 looked"
    assert said in warnings(seen)


def test_images_that_lie_elsewhere_are_found(tmp_path: Path) -> None:
    pngs(tmp_path / "raw" / "pictures")
    raw.write_table(tmp_path / "raw", [(f"{n}.png", f"picture number {n}", "") for n in range(6)])
    for place in ("raw", "raw/captions.csv"):
        seen = survey(place)
        assert seen.best.seen["root"] == (
            "raw/pictures: 6 of 6 looked at are there, and 0 below the table's folder"
        )
        assert warnings(seen) == "" and taken(config_of(seen, tmp_path)) == 6


def test_a_table_goes_before_captions_beside_and_both_are_named(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 6)
    for path in (tmp_path / "raw").glob("*.png"):
        path.with_suffix(".txt").write_text("another caption")
    seen = survey("raw")
    assert [reading.kind for reading in seen.readings] == ["table", "image_folder"]
    assert "captions in .txt" in config_text(seen)


def test_captions_for_more_images_go_before_a_table_of_few(tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    raw.write_table(tmp_path / "raw", [("0.png", "picture number 0", "")])
    assert survey("raw").best.kind == "image_folder"


@pytest.mark.parametrize(
    ("label", "task"), [("label {}", "zero_shot"), ("", "retrieval"), ("{}", "retrieval")]
)
def test_a_column_of_named_classes_becomes_a_zero_shot_task(label: str, task: str, tmp_path: Path) -> None:
    """Numbers of classes are no names, and captions alone become a retrieval task."""
    rows = [(f"{n:04d}.png", f"picture {n}", label.format(n % 3)) for n in range(60)]
    raw.pictures(tmp_path / "raw", 60)
    raw.write_table(tmp_path / "raw", rows)
    config = config_of(survey("raw"), tmp_path)
    assert config.evaluate is not None and config.evaluate.tasks[0].kind == task


@pytest.mark.parametrize(
    ("names", "doubt"), [("{}", "which mean nothing to a model of texts"), ("kind {}", "")]
)
def test_numbers_for_classes_are_doubted_where_they_become_captions(
    names: str, doubt: str, tmp_path: Path
) -> None:
    raw.pictures(tmp_path / "raw", 40)
    rows = [(f"{n:04d}.png", names.format(n % 4)) for n in range(40)]
    raw.write_table(tmp_path / "raw", rows, ("image", "label"))
    seen = survey("raw")
    assert (doubt in warnings(seen), seen.best.grade) == (True, 1 if doubt else 2)
    assert bool(warnings(seen)) == bool(doubt)


def test_few_samples_are_not_evaluated_on(tmp_path: Path) -> None:
    """The share that is held out may be empty, and a training would end in an evaluation that fails."""
    captions_beside(tmp_path / "raw")
    seen = survey("raw")
    assert config_of(seen, tmp_path).evaluate is None and "# evaluate:" in config_text(seen)


def five_captions(folder: Path, *further: str) -> None:
    raw.pictures(folder, 20)
    rows = [(f"{n:04d}.png", f"picture {n}, caption {m}", "x") for n in range(20) for m in range(5)]
    raw.write_table(folder, rows, ("file", "caption", *(further or ("label",))))


def test_images_with_several_captions_are_stored_once(tmp_path: Path) -> None:
    five_captions(tmp_path / "raw")
    seen = survey("raw")
    why = "several rows share an image, which is stored once, with all of theirs"
    assert (seen.best.samples, seen.best.seen["captions"]) == (20, f"all: {why}")
    assert "key" not in seen.best.seen
    result = build(config_of(seen, tmp_path))
    assert (result.accepted, result.rejected) == (20, 0)
    reader = IndexedReader(result.version, "train")
    members = reader.read(0).members
    assert len(json.loads(members["json"])["captions"]) == 5
    batch = recipes.load_recipe(train_block("clip")).transform(True)(members, 1)
    assert set(batch) == {"image", "text"}


def test_with_a_column_of_that_name_each_caption_is_a_sample_in_one_split(tmp_path: Path) -> None:
    five_captions(tmp_path / "raw", "captions")
    seen = survey("raw")
    assert (seen.best.samples, seen.best.seen["key"]) == (100, "several rows share an image")
    result = build(config_of(seen, tmp_path))
    assert (result.accepted, result.rejected) == (100, 0)
    images: dict[str, set[bytes]] = {"train": set(), "val": set()}
    for split, found in images.items():
        reader = IndexedReader(result.version, split)
        found |= {reader.read(number).members["png"] for number in range(len(reader))}
    assert images["val"] and not images["train"] & images["val"]


def test_a_column_of_lists_holds_the_captions_of_an_image(tmp_path: Path) -> None:
    """As Hugging Face's Flickr30k has them."""
    (tmp_path / "raw").mkdir()
    columns = {
        "image": [{"bytes": png(n), "path": f"{n}.png"} for n in range(4)],
        "caption": [[f"a photo of {n}", f"number {n} again"] for n in range(4)],
        "sentids": [["1", "2"] for n in range(4)],
    }
    pq.write_table(pa.table(columns), tmp_path / "raw" / "flickr.parquet")
    seen = survey("raw")
    assert seen.best.seen["caption"] == "caption: “a photo of 0”, 4 different"
    assert seen.best.seen["captions"] == "all: each cell is a list of texts; the first one becomes the txt"
    assert build(config_of(seen, tmp_path)).accepted == 4


@pytest.mark.parametrize("make", [table, captions_beside, img2dataset, npz])
def test_a_broken_table_is_named_and_left_out(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "raw")
    (tmp_path / "raw" / "torn.csv").write_text('file,caption\n"0.png,x\n')
    seen = survey("raw")
    assert seen.best.samples == 6
    assert warnings(seen).count("torn.csv is not used, as it cannot be read: torn.csv:2") == 1


@pytest.mark.parametrize("image", ["https://x/{}.jpg", "{}.png"])
def test_a_first_row_of_data_is_noticed(tmp_path: Path, image: str) -> None:
    pngs(tmp_path / "raw")
    lines = [f"picture number {n}\t{image.format(n)}\n" for n in range(6)]
    (tmp_path / "raw/t.tsv").write_text("".join(lines))
    seen = survey("raw/t.tsv")
    assert "the first row of t.tsv looks like data" in warnings(seen) and seen.best.grade < 2
    (tmp_path / "raw/t.tsv").write_text("".join(["text\t0.jpg\n", *lines]))
    assert "looks like data" not in warnings(survey("raw/t.tsv"))


def test_a_first_row_of_data_is_noticed_where_nothing_fits(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a picture\thttps://x/1\nanother one\thttps://x/2\n")
    with pytest.raises(UsageError, match=r"looks like data.*add a line before it that names the columns"):
        survey("t.tsv")


@pytest.mark.parametrize(
    ("limit", "tables", "among"),
    [(None, 2, ""), ("MOST_ROWS", 2, " in 120 rows looked at"), ("MOST_TABLES", 3, " in 240 rows looked at")],
)
def test_figures_cover_all_tables_looked_at_and_name_their_number_of_rows(
    limit: str | None, tables: int, among: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        monkeypatch.setattr(f"tasks.dataset.init.columns.{limit}", 2 if limit == "MOST_TABLES" else 60)
    for part in range(tables):
        rows = [(f"{part}{n}.png", f"picture {part} {n}", "cd"[n % 2]) for n in range(120)]
        path = raw.write_table(tmp_path / f"{part}", rows)
        (tmp_path / "raw").mkdir(exist_ok=True)
        path.rename(tmp_path / "raw" / f"{part}.csv")
        for name, _, _ in rows:
            (tmp_path / "raw" / name).touch()
    seen = survey("raw")
    different = 120 if limit == "MOST_ROWS" else 240
    assert seen.best.seen["caption"].endswith(f", {different} different{among}")
    assert seen.best.seen["label"] == f"label: 2 values{among}, c, d"


def test_long_tables_are_not_read_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.dataset.init.columns.MOST_ROWS", 100)
    raw.write_table(tmp_path / "raw", [(f"{n}.png", f"picture number {n}", "x") for n in range(5000)])
    for n in range(200):
        (tmp_path / "raw" / f"{n}.png").touch()
    seen = survey("raw/captions.csv")
    assert seen.best.seen["path"].startswith("raw/captions.csv: about ")
    assert 4000 < seen.best.samples < 6000


def addresses(folder: Path, server: PictureServer, fault: Callable[[int], str]) -> PlaceSurvey:
    names = [f"{server.address}/{fault(n)}{n}.jpg" for n in range(20)]
    raw.write_table(folder / "raw", [(name, f"a picture of number {n}", "") for n, name in enumerate(names)])
    return survey("raw")


def test_some_addresses_of_a_table_are_tried(tmp_path: Path) -> None:
    with picture_server() as server:
        seen = addresses(tmp_path, server, lambda number: "")
        assert seen.best.seen["image"].endswith(
            "web addresses, which the build fetches: 20 of 20 tried gave an image"
        )
        assert (seen.best.grade, seen.best.warnings) == (2, [])
        assert "  reject_budget: 0.05 " in config_text(seen) and "shard: {samples: " in config_text(seen)
        assert set(server.asked.values()) == {1}
        faults = {0: "404/", 1: "404/", 2: "404/", 3: "503/", 4: "html/"}
        seen = addresses(tmp_path, server, lambda number: faults.get(number, ""))
    found = "15 of 20 tried gave an image, 3 gone, 1 without an answer, 1 gave something else"
    assert seen.best.seen["image"].endswith(found)
    assert warnings(seen) == (
        f"5 of 20 addresses tried gave no image (127.0.0.1:{server.port} answers 404 Not Found): the build rejects "
        "such rows, and reject_budget allows 40%"
    )
    assert "  reject_budget: 0.4 " in config_text(seen)


def test_addresses_of_which_none_gives_an_image_are_no_good_source(tmp_path: Path) -> None:
    with picture_server() as server:
        seen = addresses(tmp_path, server, lambda number: "404/")
    assert seen.best.grade == 0
    none = f"none of 20 addresses tried gave an image: 127.0.0.1:{server.port} answers 404 Not Found"
    assert warnings(seen) == none and "  reject_budget: 0.05 " in config_text(seen)
