import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.dataset.reasons import Reject
from tasks.dataset.sources.table import TableImages
from tasks.dataset.sources.tabular import open_table
from tests.dataset import raw

ROWS = [("a.png", "a cat, sitting", "x"), ("b.png", 'she said "no"', "y"), ("c.png", "two\nlines", "")]


def source(path: Path, **keys: Any) -> TableImages:
    block = {"kind": "table", "path": str(path), "image": "file", "caption": "caption", **keys}
    config = raw.config(path.parent, path.parent / "out", source=block)
    return TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]


def write(folder: Path, kind: str) -> Path:
    path = folder / f"table.{kind}"
    header = ("file", "caption", "label")
    if kind in ("csv", "tsv"):
        raw.write_table(folder, ROWS)
        text = (folder / "captions.csv").read_text()
        path.write_text(text if kind == "csv" else text.replace(",", "\t").replace("\t sitting", ", sitting"))
    elif kind == "parquet":
        pq.write_table(pa.table({name: [row[n] for row in ROWS] for n, name in enumerate(header)}), path)
    else:
        path.write_text("".join(json.dumps(dict(zip(header, row, strict=True))) + "\n\n" for row in ROWS))
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "ndjson", "parquet"])
def test_every_format_gives_the_same_samples(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind)
    for name, _, _ in ROWS:
        (tmp_path / name).write_bytes(b"image")
    table = source(path)
    members = [table.read(item.file, item.content) for item in table.items()]
    assert [one["txt"].decode() for one in members] == [row[1] for row in ROWS]
    assert [json.loads(one["json"]) for one in members] == [{"label": row[2]} for row in ROWS]
    assert all(one["image"] == b"image" for one in members)


def test_places_are_the_lines_where_rows_begin(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('file,caption\na.png,"one\ntwo"\n\nb.png,three\n')
    assert [item.place for item in source(path).items()] == ["t.csv:2", "t.csv:5"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_text_that_is_not_utf8_costs_only_its_own_row(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_bytes(b"file,caption\na.png,gr\xfcn\nb.png,fine\n")
    elif kind == "jsonl":
        path.write_bytes(b'{"file": "a.png", "caption": "gr\xfcn"}\n{"file": "b.png", "caption": "fine"}\n')
    else:
        captions = pa.Array.from_buffers(
            pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\4\0\0\0\10\0\0\0"), pa.py_buffer(b"gr\xfcnfine")]
        )
        pq.write_table(pa.table({"file": ["a.png", "b.png"], "caption": captions}), path)
    (tmp_path / "b.png").write_bytes(b"image")
    table = source(path)
    bad, good = table.items()
    with pytest.raises(Reject) as caught:
        table.read(bad.file, bad.content)
    assert caught.value.reason == "caption.encoding"
    assert table.read(good.file, good.content)["txt"] == b"fine"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"file": "a.png"}', "caption.missing"),
        ('{"file": "a.png", "caption": null}', "caption.missing"),
        ('{"file": "a.png", "caption": NaN}', "caption.missing"),
        ('{"file": "a.png", "caption": ["x"]}', "caption.missing"),
        ('{"file": "a.png", "caption": "\\ud800"}', "caption.encoding"),
        ('{"file": "a.png", "caption": "x", "more": "\\ud800"}', "caption.encoding"),
        ('{"file": "no.png", "caption": "x"}', "member.missing"),
        ('{"file": "a.png/b", "caption": "x"}', "member.missing"),
        ('{"file": "a\\u0000.png", "caption": "x"}', "member.missing"),
        ('{"file": "folder", "caption": "x"}', "member.missing"),
        ('{"file": "pipe", "caption": "x"}', "member.missing"),
        ('{"file": "' + "n" * 300 + '.png", "caption": "x"}', "member.missing"),
    ],
)
def test_rejects_of_a_row(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.png").write_bytes(b"image")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "t.jsonl").write_text(line + '\n{"caption": ""}\n')
    table = source(tmp_path / "t.jsonl")
    item = next(table.items())
    with pytest.raises(Reject) as caught:
        table.read(item.file, item.content)
    assert caught.value.reason == reason


def test_rows_that_name_no_sample_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"caption": "x", "file": 5}\n[]\n{"torn": \n{"file": "", "caption": "y"}\n')
    faults = [item.fault and item.fault[0] for item in source(path).items()]
    assert faults == ["member.missing", "source.unreadable", "source.unreadable", "member.missing"]
    long = tmp_path / "t.csv"
    long.write_text("file,caption\na.png,one,two\nb.png\n")
    unquoted, short = source(long).items()
    assert unquoted.fault is not None and "quote" in unquoted.fault[1]
    assert short.fault is None


def test_the_key_column_names_the_sample(tmp_path: Path) -> None:
    path = raw.write_table(tmp_path, [("a.png", "one", "k1"), ("a.png", "two", "k2"), ("b.png", "x", "")])
    first, second, third = source(path, key="label").items()
    assert (first.original_key, second.original_key) == ("k1", "k2")
    assert third.fault is not None and third.fault[0] == "source.unreadable"


def test_paths_are_relative_to_the_tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.png").write_bytes(b"image")
    raw.write_table(tmp_path, [("./img//a.png", "x", ""), (str(tmp_path / "img/a.png"), "y", "")])
    monkeypatch.chdir(tmp_path.parent)
    table = source(Path(tmp_path.name) / "captions.csv")
    items = list(table.items())
    assert [item.original_key for item in items] == ["img/a.png"] * 2
    monkeypatch.chdir("/")
    assert all(table.read(item.file, item.content)["image"] == b"image" for item in items)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": "fil"}, r"dataset\.source\.image.*did you mean 'file'"),
        ({"caption": "captoin"}, r"dataset\.source\.caption.*did you mean 'caption'"),
        ({"key": "lable"}, r"dataset\.source\.key.*did you mean 'label'"),
        ({"path": "t.xlsx"}, r"dataset\.source\.path.*\.csv"),
    ],
)
def test_a_config_that_does_not_fit_is_one_line(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    path = raw.write_table(tmp_path, ROWS)
    with pytest.raises(UsageError, match=message):
        source(tmp_path / keys.pop("path", path.name), **keys).columns()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "empty"),
        ("t.csv", b"file,file\n", "two columns"),
        ("t.csv", b'file,caption\na.png,"never ends\nb.png,x\n', r"t\.csv:2"),
        ("t.parquet", b"not parquet at all", "Parquet"),
    ],
)
def test_a_broken_table_names_file_and_fix(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(open_table(tmp_path / name, "dataset.source.path").rows)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbffile,caption\na.png,x\n")
    assert source(path).columns() == ["file", "caption"]
