"""Arrow files, as Hugging Face's `datasets` writes them with `save_to_disk`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from flows.cli import main
from tasks.core.errors import DataError
from tasks.dataset.building.builder import build
from tasks.dataset.init import survey
from tasks.dataset.sources.tabular import open_table
from tasks.dataset.version.manifest import read_manifest
from tasks.loader.indexed import IndexedReader
from tests.dataset import raw
from tests.dataset.init.kinds import config_of
from tests.dataset.raw import table as tables
from tests.web import web_server

NAMES = ["cat", "dog", "tall ship"]


def saved(first: int, count: int, caption: bool = True) -> Any:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    columns = {
        "image": [{"bytes": raw.png(n), "path": None} for n in range(first, first + count)],
        "label": [n % 3 for n in range(first, first + count)],
    }
    if caption:
        features["text"] = datasets.Value("string")
        columns["text"] = [f"a picture of {n}" for n in range(first, first + count)]
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.mark.parametrize("caption", [True, False])
def test_the_splits_and_the_names_of_a_saved_dataset_are_kept(
    caption: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    both = datasets.DatasetDict({"train": saved(0, 40, caption), "test": saved(40, 8, caption)})
    both.save_to_disk("pets", num_shards={"train": 3, "test": 1})
    # What `datasets` leaves beside a dataset that it has mapped or filtered.
    (tmp_path / "pets/train/cache-1a2b.arrow").write_bytes(
        Path("pets/test/data-00000-of-00001.arrow").read_bytes()
    )
    assert main(["init", "pets", "--out", "x.yaml"]) == 0
    assert (
        "path      pets/{test,train}/data-*.arrow: 4 tables, 48 rows; columns image"
        in capsys.readouterr().out
    )
    whole = tables.config("pets", tmp_path / "whole", caption="text" if caption else "label")
    assert build(whole).accepted == 48
    version = build(config_of(survey("pets"), tmp_path)).version
    splits = {name: split.samples for name, split in read_manifest(version).splits.items()}
    assert splits == {"train": 40, "test": 8}
    reader = IndexedReader(version, "test")
    found = [reader.read(number).members for number in range(8)]
    assert {json.loads(members["json"])["label"] for members in found} == set(NAMES)
    assert sorted(members["png"] for members in found) == sorted(raw.png(n) for n in range(40, 48))
    texts = {members["txt"].decode() for members in found}
    expected = (
        {f"a picture of {n}" for n in range(40, 48)} if caption else {f"a photo of a {n}" for n in NAMES}
    )
    assert texts == expected


def test_one_saved_split_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(0, 24).save_to_disk("pets", num_shards=2)
    config = config_of(survey("pets"), tmp_path)
    assert config.dataset.source.path == "pets/data-*.arrow"  # type: ignore[union-attr]
    assert build(config).accepted == 24


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("is_remote", [True, False])
def test_both_of_arrows_formats_are_read(is_stream: bool, is_remote: bool, tmp_path: Path) -> None:
    tables.write_arrow(tmp_path / "t.arrow", tables.rows(7), is_stream=is_stream)
    with web_server(tmp_path, True) as (address, _):
        table = open_table(f"{address if is_remote else tmp_path}/t.arrow", "x", image="image")
        assert (table.columns, table.binary) == (["image", "text", "label"], {"image"})
        assert table.count == (7 if is_stream and not is_remote else None)
        assert [(row.line, row.fields) for row in table.rows] == list(enumerate(tables.rows(7), 1))


@pytest.mark.parametrize("lost", [1, 8, 100, "a batch"])
def test_a_file_that_was_cut_is_an_error(lost: int | str, tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    tables.write_arrow(path, tables.rows(6))
    if lost == "a batch":  # cut between two of them, where a reader sees a shorter stream
        shorter = tmp_path / "shorter.arrow"
        tables.write_arrow(shorter, tables.rows(4))
        lost = path.stat().st_size - shorter.stat().st_size + 8
    os.truncate(path, path.stat().st_size - int(lost))
    with pytest.raises(DataError, match=r"t\.arrow is no Arrow file, or was cut: .*copy it again"):
        build(tables.config(path, tmp_path.parent / "out"))


def test_a_file_of_something_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.arrow").write_bytes(b"ARROW1 but no more")
    with pytest.raises(DataError, match=r"t\.arrow is no Arrow file"):
        open_table(tmp_path / "t.arrow", "dataset.source.path")


def test_damage_within_a_file_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    tables.write_arrow(path, tables.rows(6))
    with pa.ipc.open_stream(path) as reader:
        reader.read_next_batch()
    content = path.read_bytes()
    third = content.rindex(b"\xff\xff\xff\xff", 0, len(content) - 8)
    path.write_bytes(content[:third] + b"\xff\xff\xff\xff\x10\0\0\0" + content[third + 8 :])
    with pytest.raises(DataError, match=r"t\.arrow: row \d and on cannot be read"):
        list(open_table(path, "dataset.source.path", image="image").rows)


def test_a_saved_dataset_takes_the_memory_of_a_batch(tmp_path: Path) -> None:
    image = {"bytes": os.urandom(1 << 20), "path": None}
    rows = [{"image": image, "text": "x", "label": n} for n in range(200)]
    tables.write_arrow(tmp_path / "t.arrow", rows, batch=10)
    program = """
import re, sys
from pathlib import Path
from tests.dataset.raw import table as tables
from tasks.dataset.sources.table import TableImages
def peak_mb():
    return int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
config = tables.config(sys.argv[1], Path("out"))
source = TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")
source.columns()
before = peak_mb()
count = sum(len(i.members["image"]) for c in source.containers() for i in source.items(c))
print(count, peak_mb() - before)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "t.arrow")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, grown_mb = map(int, done.stdout.split())
    assert count == 200 << 20 and grown_mb < 80, grown_mb
