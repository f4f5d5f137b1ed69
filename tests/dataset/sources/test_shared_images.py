"""Rows that share an image are one sample with all their captions."""

from __future__ import annotations

import json
import random
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset import filters
from tasks.dataset.building.builder import build
from tasks.dataset.sources import RawSample, open_sources
from tasks.dataset.sources.fields import TableRow
from tasks.dataset.sources.protocol import of_files
from tasks.dataset.sources.shared_images import MOST_ROWS, RowJoiner, captions_in
from tasks.dataset.verify.verifier import verify
from tests.dataset import raw
from tests.dataset.raw import png

ROWS = [  # as Flickr30k writes them, those of one image not all side by side
    {"file": "0.png", "number": 0, "text": "a cat", "split": "train"},
    {"file": "0.png", "number": 1, "text": " a small cat ", "split": "train"},
    {"file": "1.png", "number": 0, "text": "a dog", "split": "train"},
    {"file": "./0.png", "number": 2, "text": "", "split": "train"},
    {"file": "0.png", "number": 3, "text": "a kitten", "split": "train"},
]


def config_of(folder: Path, rows: list[dict[str, Any]], **dataset: Any) -> Config:
    folder.mkdir(exist_ok=True)
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(number))
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "table", "path": str(folder / "a.jsonl"), "image": "file", "caption": "text"}
    source |= {"captions": "all", **dataset.pop("source", {})}
    return raw.config(folder, folder.with_name("out"), source=source, **dataset)


def items_of(config: Config) -> list[RawSample]:
    (source,) = open_sources(config.dataset)
    source.columns()
    return [item for container in source.containers() for item in source.items(container)]


def members_of(config: Config, item: RawSample) -> tuple[str, Any]:
    (source,) = open_sources(config.dataset)
    members = item.members or of_files(source).read(item.file, item.content)
    return bytes(members["txt"]).decode(), json.loads(bytes(members["json"]))


def test_an_image_has_its_first_caption_as_txt_and_all_in_its_json(tmp_path: Path) -> None:
    config = config_of(tmp_path / "raw", ROWS)
    cat, dog = items_of(config)
    assert (cat.place, cat.original_key, cat.file) == ("a.jsonl:1", "0.png", "0.png")
    captions = ["a cat", "a small cat", "a kitten"]
    assert members_of(config, cat) == (
        "a cat",
        {"captions": captions, "number": [0, 1, 2, 3], "split": "train"},
    )
    assert members_of(config, dog) == ("a dog", {"captions": ["a dog"], "number": 0, "split": "train"})


def test_other_tools_read_jpg_and_txt(tmp_path: Path) -> None:
    built = build(config_of(tmp_path / "raw", ROWS, splits={"from": "split"}))
    assert (built.read, built.accepted) == (2, 2)
    assert verify(built.version, level="full").ok
    with tarfile.open(built.version / "train" / "000000.tar") as tar:
        members = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    assert members["0.txt"] == b"a cat" and members["1.txt"] == b"a dog"
    assert members["0.png"] == png(0) and "0.json" in members


def test_a_rule_drops_captions_and_an_image_only_without_any(tmp_path: Path) -> None:
    config = config_of(tmp_path / "raw", ROWS, filter={"number": 1})
    cat, dog = items_of(config)
    assert members_of(config, cat)[1]["captions"] == ["a small cat", "a kitten"]
    assert filters.passes(config.dataset.filter, cat.fields)
    assert not filters.passes(config.dataset.filter, dog.fields)
    built = build(config)
    assert (built.read, built.accepted, built.filtered) == (2, 1, 1)


def test_rows_of_one_image_in_two_splits_are_rejected(tmp_path: Path) -> None:
    rows = [*ROWS[:2], {**ROWS[4], "split": "test"}]
    (item,) = items_of(config_of(tmp_path / "raw", rows, splits={"from": "split"}))
    assert item.fault == ("source.unreadable", "rows of its image differ in split: train, test")


def test_a_list_of_captions_in_a_cell_is_taken_whole(tmp_path: Path) -> None:
    """As Hugging Face's Flickr30k and COCO have them, with the images in the table."""
    table = {
        "image": [{"bytes": png(n), "path": f"{n}.png"} for n in (0, 1)],
        "caption": [["a cat", "a small cat"], []],
        "filename": ["x", "y"],
    }
    (tmp_path / "raw").mkdir()
    pq.write_table(pa.table(table), tmp_path / "raw" / "a.parquet")
    source = {"path": str(tmp_path / "raw" / "a.parquet"), "image": "image", "caption": "caption"}
    config = config_of(tmp_path / "raw", [], source=source)
    cat, none = items_of(config)
    assert members_of(config, cat) == ("a cat", {"captions": ["a cat", "a small cat"], "filename": "x"})
    assert none.fault == ("caption.missing", "the row has no caption")


def test_rows_of_bytes_are_joined_side_by_side_and_reported_where_they_are_not(tmp_path: Path) -> None:
    images = [png(0), png(0), png(1), png(0)]
    table = {"image": images, "caption": ["a cat", "a small cat", "a dog", "a kitten"]}
    (tmp_path / "raw").mkdir()
    pq.write_table(pa.table(table), tmp_path / "raw" / "a.parquet")
    source = {"path": str(tmp_path / "raw" / "a.parquet"), "image": "image", "caption": "caption"}
    config = config_of(tmp_path / "raw", [], source=source, reject_budget=0.5)
    cat, dog, again = items_of(config)
    assert members_of(config, cat) == ("a cat", {"captions": ["a cat", "a small cat"]})
    assert (cat.place, dog.place) == ("a.parquet:1", "a.parquet:3")
    assert again.original_key == cat.original_key
    built = build(config)
    (reject,) = pq.read_table(built.version / "rejects.parquet").to_pylist()
    assert (reject["reason"], reject["source"]) == ("key.duplicate", "a.parquet:4")
    assert "captions: all (side by side where they hold it)" in reject["detail"]


def test_what_does_not_fit_names_the_key(tmp_path: Path) -> None:
    config = config_of(tmp_path / "raw", [{**row, "captions": "x"} for row in ROWS])
    with pytest.raises(UsageError) as caught:
        items_of(config)
    assert str(caught.value) == (
        "dataset.source.captions: all lists the captions in the json's field captions, which is also a column; "
        "rename that"
    )
    with pytest.raises(
        UsageError, match=r"templates: captions: all takes the captions as they are; remove one"
    ):
        config_of(tmp_path / "raw", ROWS, source={"templates": ["a photo of a {}"]})


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("a", ["a"]),
        (["a", None, " ", "b "], ["a", "b"]),
        (None, "caption.missing"),
        ("nan", "caption.missing"),
        (["", " "], "caption.empty"),
        ([], "caption.missing"),
        ([{"raw": "a"}], "caption.missing"),
    ],
)
def test_captions_in_a_cell(cell: Any, found: Any) -> None:
    if isinstance(found, list):
        assert captions_in(cell) == found
        return
    with pytest.raises(Exception, match=found):
        captions_in(cell)


def test_a_placeholder_is_no_image_of_thousands_of_captions(tmp_path: Path) -> None:
    rows = [{"file": "0.png", "text": f"caption {n}"} for n in range(MOST_ROWS + 1)]
    (item,) = items_of(config_of(tmp_path / "raw", rows))
    problem = "more than 1,000 rows share its image, as if it were a placeholder"
    assert item.fault == ("source.unreadable", problem)


@pytest.mark.proof
def test_a_long_table_in_any_order_takes_the_memory_of_a_short_one() -> None:
    images = 20_000
    order = [(image, number) for image in range(images) for number in range(5)]
    random.Random(0).shuffle(order)

    def rows() -> Iterator[TableRow]:
        for line, (image, number) in enumerate(order, 1):
            yield TableRow(line, {"file": f"{image}.png", "text": f"caption {number} of {image} " * 20})

    joiner = RowJoiner("file", "text", lambda fields: True, ())
    tracemalloc.start()
    counts = [
        len(one.row.fields["text"]) for one in joiner.by_name(rows(), lambda row: str(row.fields["file"]))
    ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts == [5] * images
    assert peak < 4e6, "the rows are 45 MB of text"
