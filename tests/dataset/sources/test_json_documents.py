"""JSON documents as tables: lists of objects, COCO's annotations, Karpathy's splits."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError
from tasks.dataset.sources import json_documents
from tasks.dataset.sources.fields import TableRow
from tasks.dataset.sources.tabular import OpenTable, open_table
from tests.dataset.raw import collections


def written(folder: Path, document: Any, name: str = "t.json") -> Path:
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return folder / name


def opened(folder: Path, document: Any) -> OpenTable:
    return open_table(written(folder, document), "dataset.source.path", ["file"])


def rows(folder: Path, document: Any) -> list[TableRow]:
    return list(opened(folder, document).rows)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
def test_an_annotation_is_a_row_with_the_fields_of_its_image(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_documents, "CHUNK", chunk)
    table = opened(tmp_path, collections.coco_captions(range(3), "train2017"))
    assert table.count == 15 and {"file", "caption", "file_name", "image_id", "id"} <= set(table.columns)
    found = list(table.rows)
    assert [row.line for row in found] == list(range(1, 16)) and not any(row.fault for row in found)
    for fields in (row.fields for row in found):
        number = fields["image_id"]
        assert fields["file"] == f"train2017/{number:012d}.jpg"
        assert fields["caption"] == collections.text(number, fields["id"] - 5 * number)


def test_a_number_may_go_on_in_what_is_yet_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_documents, "CHUNK", 1)
    assert [row.fault for row in rows(tmp_path, "[123 , 45]")] == ["no JSON object"] * 2


def test_the_order_of_a_document_does_not_matter(tmp_path: Path) -> None:
    document = collections.coco_instances(range(3), "val2017")
    turned = dict(reversed(document.items()))
    assert rows(tmp_path, turned) == rows(tmp_path, document)
    assert [row.fields["category"] for row in rows(tmp_path, document)][:2] == ["person", "traffic light"]


def test_a_name_without_a_folder_is_the_file(tmp_path: Path) -> None:
    images = [
        {"id": "a", "file_name": "x/1.png"},
        {"id": "b", "file_name": "2.png", "coco_url": "http://h/d/3.png"},
    ]
    annotations = [{"image_id": "a", "caption": "one"}, {"image_id": "b", "caption": "two"}]
    found = rows(tmp_path, {"images": images, "annotations": annotations})
    assert [row.fields["file"] for row in found] == ["x/1.png", "2.png"]


def test_an_annotation_without_its_image_costs_its_own_row(tmp_path: Path) -> None:
    images = [
        {"id": 1, "file_name": "1.png"},
        {"id": 2, "file_name": "2.png"},
        {"id": 2, "file_name": "3.png"},
    ]
    annotations = [{"image_id": 1, "caption": "one"}, {"image_id": 2}, {"image_id": 7}, {}, 5]
    found = rows(tmp_path, {"images": images, "annotations": annotations})
    assert [row.fault for row in found] == [
        None,
        "2 of the images has its image_id 2",
        "none of the images has its image_id 7",
        "none of the images has its image_id None",
        "no JSON object",
    ]


@pytest.mark.parametrize("folders", [True, False])
def test_a_sentence_is_a_row_in_the_split_of_its_image(folders: bool, tmp_path: Path) -> None:
    table = opened(tmp_path, collections.karpathy(range(4), folders))
    found = [row.fields for row in table.rows]
    assert table.count == len(found) == 20
    assert [fields["split"] for fields in found[::5]] == ["train", "train", "val", "test"]
    assert found[6]["caption"] == collections.text(1, 1) and found[6]["sentid"] == 6
    assert found[6]["file"] == ("val2014/" if folders else "") + "000000000001.jpg"
    assert not {"tokens", "sentences", "raw"} & set(table.columns)


def test_a_list_of_objects_is_a_table(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(120):
        deep = [deep]
    found = rows(tmp_path, [{"file": "a.png", "caption": "größer"}, 7, {"deep": deep}, {"file": "b.png"}])
    assert [row.fault for row in found] == [None, "no JSON object", "nested too deeply", None]
    assert found[0].fields == {"file": "a.png", "caption": "größer"}
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'[{"file": "a.png"}]'))
    assert [row.fields for row in open_table(path, "x").rows] == [{"file": "a.png"}]


COCO = json.dumps(collections.coco_captions(range(3), "train2017"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (COCO[:-100], r"from character 1,\d+ on, no valid JSON; mend it, or copy it again if it was cut"),
        (COCO[:400], r"from character \d+ on, no valid JSON; .*copy it again if it was cut"),
        (COCO.replace('"licenses"', "licenses"), r"from character \d+ on, no valid JSON"),
        (COCO.replace("}, {", "} {"), r"from character \d+ on, no valid JSON: , is missing"),
        ('{"images": [{"id": ' + "[" * 5000, "nested too deeply"),
        ('{"images": [{"id": 1}]}', "holds 'images'; documents that are read: a list of objects, COCO's"),
        ("{}", "holds nothing; documents that are read"),
        ('"text"', "is none of the documents that are read"),
        ("", "is none of the documents that are read"),
    ],
)
def test_a_document_that_is_torn_or_another_is_one_line(document: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"t\.json:? .*{message}") as caught:
        rows(tmp_path, document)
    assert "\n" not in str(caught.value)


def test_an_endless_value_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_documents, "LONGEST_VALUE", 10_000)
    monkeypatch.setattr(json_documents, "CHUNK", 1000)
    with pytest.raises(DataError, match="a value of over 10,000 characters, as no table has it"):
        rows(tmp_path, '[{"file": "' + "x" * 100_000)


def test_a_long_document_takes_little_memory(tmp_path: Path) -> None:
    """Fifteen megabytes, which Python's own reader turns into more than a hundred."""
    path = written(tmp_path, collections.coco_captions(range(16_000), "train2017"))
    program = """
import re, sys
from pathlib import Path
from tasks.dataset.sources.tabular import open_table
def peak_mb():
    return int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
before = peak_mb()
print(sum(1 for row in open_table(sys.argv[1], "x").rows if row.fault is None), peak_mb() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    count, grown_mb = map(int, done.stdout.split())
    assert count == 80_000 and grown_mb < 40, grown_mb


def test_numbered_captions_are_rows_without_a_header(tmp_path: Path) -> None:
    content = '1_ab.jpg#0\tA "child , here\n1_ab.jpg#4\tA dog .\nno number\n\nb.jpg#x\ty\n'
    (tmp_path / "Flickr8k.token.txt").write_text(content)
    table = open_table(tmp_path / "Flickr8k.token.txt", "x")
    found = list(table.rows)
    assert table.columns == ["image", "number", "caption"]
    assert found[0] == TableRow(1, {"image": "1_ab.jpg", "number": 0, "caption": 'A "child , here'})
    assert found[1].fields["number"] == 4
    assert [(row.line, row.fault is not None) for row in found[2:]] == [(3, True), (5, True)]
    assert re.search("IMAGE#NUMBER", found[2].fault or "")
