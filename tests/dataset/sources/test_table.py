import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.folders import LocalStore, open_store
from tasks.core.remote import addresses, answers, clients, hosts
from tasks.core.schema import Config, Splits
from tasks.core.stores import ABSENT, StoreUnreachable
from tasks.dataset.building import freshness
from tasks.dataset.building.builder import build
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.sources import open_sources, tabular
from tasks.dataset.sources.fields import text_of
from tasks.dataset.sources.linked_files import LinkedFiles
from tasks.dataset.sources.protocol import RawSample
from tasks.dataset.sources.table import TableImages
from tasks.dataset.sources.tabular import open_table
from tasks.dataset.splits import group_of
from tasks.dataset.version import versions
from tasks.dataset.version.rejects import Reject
from tests.dataset import raw
from tests.dataset.raw import table as tables
from tests.web import counting_server, failing_server, web_server

ROWS = [("a.png", "a cat, sitting", "x"), ("b.png", 'she said "no"', "y"), ("c.png", "two\nlines", "")]


def source(path: Path, **keys: Any) -> TableImages:
    block = {"kind": "table", "path": str(path), "image": "file", "caption": "caption", **keys}
    config = raw.config(path.parent, path.parent / "out", source=block)
    return TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]


def listed(table: TableImages) -> list[RawSample]:
    return [item for container in table.containers() for item in table.items(container)]


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
    members = [table.read(item.file, item.content) for item in listed(table)]
    assert [one["txt"].decode() for one in members] == [row[1] for row in ROWS]
    assert [json.loads(one["json"]) for one in members] == [{"label": row[2]} for row in ROWS]
    assert all(one["image"] == b"image" for one in members)


def test_places_are_the_lines_where_rows_begin(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('file,caption\na.png,"one\ntwo"\n\nb.png,three\n')
    assert [item.place for item in listed(source(path))] == ["t.csv:2", "t.csv:5"]


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
    bad, good = listed(table)
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
    item = listed(table)[0]
    with pytest.raises(Reject) as caught:
        table.read(item.file, item.content)
    assert caught.value.reason == reason


def test_rows_that_name_no_sample_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"caption": "x", "file": 5}\n[]\n{"torn": \n{"file": "", "caption": "y"}\n')
    faults = [item.fault and item.fault[0] for item in listed(source(path))]
    assert faults == ["member.missing", "source.unreadable", "source.unreadable", "member.missing"]
    long = tmp_path / "t.csv"
    long.write_text("file,caption\na.png,one,two\nb.png\n")
    unquoted, short = listed(source(long))
    assert unquoted.fault is not None and "quote" in unquoted.fault[1]
    assert short.fault is None


def test_the_key_column_names_the_sample(tmp_path: Path) -> None:
    path = raw.write_table(tmp_path, [("a.png", "one", "k1"), ("a.png", "two", "k2"), ("b.png", "x", "")])
    first, second, third = listed(source(path, key="label"))
    assert (first.original_key, second.original_key) == ("k1", "k2")
    assert third.fault is not None and third.fault[0] == "source.unreadable"


def test_columns_make_the_key_together_where_rows_share_an_image(tmp_path: Path) -> None:
    path = raw.write_table(tmp_path, [("a.png", "one", ""), ("a.png", "two", ""), ("b.png", "", "")])
    first, second, third = listed(source(path, key=["file", "caption"]))
    assert (first.original_key, second.original_key) == ("a.png/one", "a.png/two")
    assert third.fault == ("caption.empty", "the caption is empty")
    with pytest.raises(UsageError, match=r"dataset\.source\.key.*did you mean caption\?"):
        source(path, key=["file", "captoin"]).columns()
    with pytest.raises(UsageError, match=r"dataset\.source\.key"):
        source(path, key=[])
    shared = [{**row, "image": {"bytes": raw.png(1), "path": "a.png"}} for row in tables.rows(2)]
    tables.write_parquet(tmp_path / "t.parquet", shared)
    items = listed(source(tmp_path / "t.parquet", image="image", caption="text", key=["image", "text"]))
    assert [item.original_key for item in items] == ["a.png/picture 0", "a.png/picture 1"]


def test_paths_are_relative_to_the_tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.png").write_bytes(b"image")
    raw.write_table(tmp_path, [("./img//a.png", "x", ""), (str(tmp_path / "img/a.png"), "y", "")])
    monkeypatch.chdir(tmp_path.parent)
    table = source(Path(tmp_path.name) / "captions.csv")
    items = listed(table)
    assert [item.original_key for item in items] == ["img/a.png"] * 2
    monkeypatch.chdir("/")
    assert all(table.read(item.file, item.content)["image"] == b"image" for item in items)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": "fil"}, r"dataset\.source\.image.*did you mean file\?"),
        ({"caption": "captoin"}, r"dataset\.source\.caption.*did you mean caption\?"),
        ({"key": "lable"}, r"dataset\.source\.key.*did you mean label\?"),
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


def read_all(config: Config) -> list[dict[str, Any]]:
    """Raw members in order, of either kind of source."""
    table = TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]
    items = listed(table)
    assert [item.fault for item in items] == [None] * len(items)
    return [dict(item.members or table.read(item.file, item.content)) for item in items]


@pytest.mark.parametrize("image", [tables.IMAGE, pa.binary(), pa.large_binary()])
def test_images_may_come_as_bytes(tmp_path: Path, image: Any) -> None:
    rows = tables.rows(3)
    if image != tables.IMAGE:
        rows = [{**row, "image": row["image"]["bytes"]} for row in rows]
    tables.write_parquet(tmp_path / "t.parquet", rows, image)
    config = tables.config(tmp_path / "t.parquet")
    members = read_all(config)
    assert [one["image"] for one in members] == [raw.png(n) for n in range(3)]
    assert [one["txt"].decode() for one in members] == [f"picture {n}" for n in range(3)]
    assert [json.loads(one["json"]) for one in members] == [{"label": n} for n in range(3)]


def keys_of(path: Path, **keys: Any) -> list[str]:
    return [item.original_key for item in listed(source(path, image="image", caption="text", **keys))]


def test_keys_of_bytes_do_not_hang_on_the_rows_around(tmp_path: Path) -> None:
    rows = tables.rows(4)
    rows[2]["image"]["path"] = None
    tables.write_parquet(tmp_path / "t.parquet", rows)
    keys = keys_of(tmp_path / "t.parquet")
    assert len(set(keys)) == 4 and keys[0].startswith("0-")
    tables.write_parquet(tmp_path / "more.parquet", [tables.rows(1, 9)[0], *rows])
    assert keys_of(tmp_path / "more.parquet")[1:] == keys


def test_one_image_may_have_many_captions(tmp_path: Path) -> None:
    rows = [{**tables.rows(1)[0], "text": text} for text in ("one", "two")]
    tables.write_parquet(tmp_path / "t.parquet", rows)
    assert len(set(keys_of(tmp_path / "t.parquet"))) == 2
    assert keys_of(tmp_path / "t.parquet", key="image") == ["0.png", "0.png"]
    assert keys_of(tmp_path / "t.parquet", key="label") == ["0", "0"]


def test_what_a_row_of_bytes_lacks_is_its_own_fault(tmp_path: Path) -> None:
    good = tables.rows(1)[0]
    rows = [
        {**good, "image": None},
        {**good, "image": {"bytes": None, "path": None}},
        {**good, "image": {"bytes": None, "path": "there.png"}},
        {**good, "text": None},
    ]
    (tmp_path / "there.png").write_bytes(b"from its file")
    tables.write_parquet(tmp_path / "t.parquet", rows)
    items = listed(source(tmp_path / "t.parquet", image="image", caption="text"))
    faults = [item.fault for item in items if item.fault is not None]
    assert [reason for reason, _ in faults] == [*["member.missing"] * 3, "caption.missing"]
    assert "a path but holds no bytes; embed the images" in faults[2][1]


@pytest.mark.parametrize("path", ["", "*.parquet", "{0..1}.parquet"])
def test_a_folder_and_patterns_are_read_as_one(tmp_path: Path, path: str) -> None:
    tables.make_of_bytes(tmp_path)
    (tmp_path / ".hidden.parquet").write_bytes(b"no table")
    members = read_all(tables.config(f"{tmp_path}/{path}", tmp_path / "out"))
    assert [one["txt"].decode() for one in members] == [f"picture {n}" for n in range(6)]


def test_paths_start_at_the_folder_of_their_own_table(tmp_path: Path) -> None:
    for name in ("x", "y"):
        raw.pictures(tmp_path / name, 2)
    config = tables.config(tmp_path, tmp_path / "out", image="file", caption="caption")
    assert len(read_all(config)) == 4
    table = TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]
    assert [item.original_key for item in listed(table)] == [
        "x/0000.png",
        "x/0001.png",
        "y/0000.png",
        "y/0001.png",
    ]
    assert listed(table)[3].place == "y/captions.csv:3"


def test_a_further_table_without_the_column_is_named(tmp_path: Path) -> None:
    raw.write_table(tmp_path / "x", ROWS)
    raw.write_table(tmp_path / "y", ROWS, ("file", "text", "label"))
    with pytest.raises(UsageError, match=r"dataset\.source\.caption: captions\.csv has no column 'caption'"):
        listed(tables_of(tmp_path, image="file", caption="caption"))


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_delimiter_and_encoding_are_those_of_the_file(
    tmp_path: Path, sign: str, encoding: str, suffix: str
) -> None:
    text = f'"file"{sign}caption{sign}größe\r\na.png{sign}"a, {sign} ""bird"""{sign}1,5\r\n'.replace(
        "1,5", "1,5" if sign != "," else "1"
    )
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(mark + text.encode(encoding))
    table = open_table(path, "dataset.source.path")
    assert table.columns == ["file", "caption", "größe"]
    (row,) = table.rows
    assert (row.fields["file"], row.fields["caption"]) == ("a.png", f'a, {sign} "bird"')


def test_utf_16_that_ends_within_a_character_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("file,caption\na.png,x\n".encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"line 2 and on is not utf-16.*; save it as UTF-8"):
        list(open_table(path, "dataset.source.path").rows)


def tables_of(path: Path, **source: Any) -> TableImages:
    config = tables.config(path, path / "out", **source)
    return TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]


def test_columns_of_json_lines_are_looked_for_in_all_rows(tmp_path: Path) -> None:
    lines = ['{"file": "a.png"}'] * 1000 + ['{"file": "a.png", "caption": "x"}']
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert set(source(tmp_path / "t.jsonl").columns()) == {"file", "caption"}
    with pytest.raises(UsageError, match="has no column 'captoin'"):
        source(tmp_path / "t.jsonl", caption="captoin").columns()


def test_cells_that_are_no_value_cost_their_row_where_they_are_used(tmp_path: Path) -> None:
    times = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us"))
    columns = {"file": ["a.png", "b.png"], "caption": ["x", "y"], "time": times}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    first, second = listed(source(tmp_path / "t.parquet", key="time"))
    assert first.fault is None and json.loads(first.content)["time"] == "1970-01-01 00:00:00"
    assert second.fault == ("source.unreadable", "column time holds no valid value")
    first, second = listed(source(tmp_path / "t.parquet"))
    assert second.fault is None and json.loads(second.content)["time"] is None


def test_times_in_nanoseconds_are_text(tmp_path: Path) -> None:
    whole = pa.array([1, None], pa.int64())
    columns = {kind: whole.cast(getattr(pa, kind)("ns")) for kind in ("timestamp", "time64", "duration")}
    table = {"file": ["a.png", "b.png"], "caption": ["x", "y"], **columns}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    first, second = listed(source(tmp_path / "t.parquet"))
    assert first.fault is None and second.fault is None
    assert {json.loads(first.content)[kind] for kind in columns} == {
        "1970-01-01 00:00:00.000000001",
        "00:00:00.000000001",
        "1",
    }
    assert {json.loads(second.content)[kind] for kind in columns} == {None}


def test_texts_and_bytes_with_dictionaries_are_read_as_they_are(tmp_path: Path) -> None:
    captions = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\4\0\0\0\10\0\0\0"), pa.py_buffer(b"gr\xfcnfine")]
    )
    columns = {
        "file": pa.array(["a.png", "b.png"]).dictionary_encode(),
        "caption": captions,
        "label": pa.array(["x", None], pa.large_string()),
        "bytes": pa.array([b"x", b"y"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet", "dataset.source.path", image="file")
    assert table.binary == {"bytes"}
    assert [row.fields for row in table.rows] == [
        {"file": "a.png", "caption": "gr\udcfcn", "label": "x"},
        {"file": "b.png", "caption": "fine", "label": None},
    ]


@pytest.mark.parametrize("change", ["removed", "cut"])
def test_a_table_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: str) -> None:
    raw.pictures(tmp_path, 1000, side=1)
    path = tmp_path / "captions.csv"
    table = source(path)
    rows = (item for container in table.containers() for item in table.items(container))
    next(rows)
    path.unlink() if change == "removed" else os.truncate(path, 30_000)
    with pytest.raises(DataError, match="changed while it was read"):
        list(rows)


@pytest.mark.parametrize("gives_parts", [True, False])
def test_images_may_be_addresses(tmp_path: Path, gives_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "PAUSE_S", 0.01)
    raw.pictures(tmp_path / "there", 2)
    with web_server(tmp_path / "there", gives_parts) as (address, sent):
        names = [f"{address}/0000.png", f"{address}/nowhere.png", "http://127.0.0.1:1/0001.png"]
        raw.write_table(tmp_path, [(name, "x", "") for name in names])
        there, missing, unreachable = listed(source(tmp_path / "captions.csv"))
        assert not sent, "a listing asks no server"
        table = source(tmp_path / "captions.csv")
        assert table.read(there.file, there.content)["image"] == raw.png(0)
        with pytest.raises(Reject, match=r"^source\.gone: 127\.0\.0\.1:\d+ answers 404 Not Found$"):
            table.read(missing.file, missing.content)
        with pytest.raises(
            Reject, match=r"^source\.unreachable: 127\.0\.0\.1:1 does not accept a connection"
        ):
            table.read(unreachable.file, unreachable.content)


def test_a_row_that_names_the_sources_own_folder_names_no_image(tmp_path: Path) -> None:
    with web_server(tmp_path, True) as (address, _):
        raw.write_table(tmp_path, [(f"{address}/", "x", "")])
        block = {"kind": "table", "path": f"{address}/captions.csv", "image": "file", "caption": "caption"}
        (images,) = open_sources(raw.config(tmp_path, tmp_path / "out", source=block).dataset)
        (found,) = images.items(next(images.containers()))
        assert found.fault == ("member.missing", "the row names no image")


def test_a_server_is_asked_once_for_each_image(tmp_path: Path) -> None:
    """From the question whether there is anything to build to the build that follows; three rows an image."""
    raw.pictures(tmp_path / "there", 4)
    with counting_server(tmp_path / "there") as (address, asked):

        def write(count: int) -> Config:
            rows = [(f"{address}/{n:04d}.png", f"{n} {k}", "") for n in range(count) for k in range(3)]
            raw.write_table(tmp_path / "table", rows)
            source = {"kind": "table", "path": str(tmp_path / "table/captions.csv"), "image": "file"}
            keys = {"caption": "caption", "key": ["file", "caption"]}
            return raw.config(tmp_path, tmp_path / "out", source={**source, **keys}, splits={})

        before = write(3)
        versions.publish(before.dataset.output, build(before).version, 3)
        assert asked == {f"GET /{n:04d}.png": 1 for n in range(3)}, "three samples of a shard share a request"
        asked.clear()
        config = write(4)
        assert freshness.is_up_to_date(config, for_build=True) is None
        build(config, survey=freshness.kept_survey(config.dataset.output))
        assert asked == {"GET /0003.png": 1}, "what was fetched before is not fetched again"


def test_a_row_that_the_filter_leaves_out_is_not_fetched(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "there", 2)
    with counting_server(tmp_path / "there") as (address, asked):
        rows = [(f"{address}/0000.png", "x", "wanted"), (f"{address}/0001.png", "x", "other")]
        raw.write_table(tmp_path / "table", rows)
        config = raw.config(tmp_path / "table", tmp_path / "out", filter={"label": "wanted"}, splits={})
        result = build(config)
        assert (result.accepted, result.filtered) == (1, 1)
        assert asked == {"GET /0000.png": 1}


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_no_missing_file(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PAUSE_S", 0.01)
    monkeypatch.setattr(answers, "BUSY_TRIES", 1)
    with failing_server(status) as (address, _):
        raw.write_table(tmp_path, [(f"{address}/0000.png", "x", "")])
        table = source(tmp_path / "captions.csv")
        (foreign,) = listed(table)
        with pytest.raises(Reject, match=rf"^source\.unreachable: 127\.0\.0\.1:\d+ answers {status}"):
            table.read(foreign.file, foreign.content)
        own = LinkedFiles(open_store(address), "dataset.source.path")
        with pytest.raises(StoreUnreachable, match=str(status)):
            list(own.with_stats(iter([(foreign, ["0000.png"])])))


@pytest.mark.parametrize("gives_parts", [True, False])
@pytest.mark.parametrize("make", [tables.make, tables.make_of_bytes])
def test_tables_of_a_web_server(tmp_path: Path, make: Callable[[Path], Config], gives_parts: bool) -> None:
    config = make(tmp_path / "there")
    local = read_all(config)
    source = config.dataset.all_sources[0].model_dump(exclude={"path", "kind"}, exclude_none=True)
    with web_server(tmp_path / "there", gives_parts) as (address, _):
        path = config.dataset.all_sources[0].path.replace(str(tmp_path / "there"), address)
        assert read_all(tables.config(path, tmp_path / "out", **source)) == local


def test_tables_of_bytes_take_little_memory(tmp_path: Path) -> None:
    """200 MB in one row group, and one image of 300 KB in 400 rows, plain and nested, which is 120 MB when each
    row has its own. In a process of its own, so that its peak is its own."""
    image = os.urandom(1 << 20)
    rows = [{"image": {"bytes": image, "path": f"{n}.png"}, "text": "x", "label": n} for n in range(200)]
    options = {"use_dictionary": False, "compression": "none", "write_batch_size": 8}
    tables.write_parquet(tmp_path / "large.parquet", rows, **options)
    for name, cell in (("same", image[:300_000]), ("nested", {"bytes": image[:300_000], "path": "x.png"})):
        rows = [{"image": cell, "text": "y" * 1000, "label": n} for n in range(400)]
        kind = pa.binary() if name == "same" else tables.IMAGE
        tables.write_parquet(tmp_path / f"{name}.parquet", rows, kind)
        assert (tmp_path / f"{name}.parquet").stat().st_size < 1_000_000
    program = """
import re, sys
from pathlib import Path
from tests.dataset.raw import table as tables
from tasks.dataset.sources.table import TableImages
def peak_mb():
    return int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
before = None
for path in sys.argv[1:]:
    config = tables.config(path, Path("out"))
    source = TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")
    source.columns()
    before = before or peak_mb()
    count = sum(len(i.members["image"]) for c in source.containers() for i in source.items(c))
    print(count, peak_mb() - before)
"""
    files = [str(tmp_path / f"{name}.parquet") for name in ("same", "nested", "large")]
    command = [sys.executable, "-c", program, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    counts, grown_mb = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    assert counts == (400 * 300_000, 400 * 300_000, 200 << 20)
    assert grown_mb[1] < 60 and grown_mb[2] < 150, grown_mb


BAD_ADDRESSES = ("http://[bad/x.png", "http:///x.png", "s3:///x", "s3://a b/x.png", "http://h:99999/x.png")


def test_an_address_that_is_none_costs_its_own_row(tmp_path: Path) -> None:
    raw.write_table(tmp_path, [(address, "x", "") for address in BAD_ADDRESSES])
    table = source(tmp_path / "captions.csv")
    for item in listed(table):
        assert item.stat == ABSENT
        with pytest.raises(Reject, match=r"^member\.missing: no valid address$"):
            table.read(item.file, item.content)


def test_a_signature_is_used_and_never_told(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "there", 2)
    with web_server(tmp_path / "there", True) as (address, _):
        address = address.replace("//", "//me:secret@")
        rows = [(f"{address}/{n:04d}.png?X-Amz-Signature=secret{n}", "x", "") for n in range(2)]
        raw.write_table(tmp_path / "here", rows)
        raw.write_table(tmp_path / "there", [(name.rpartition("/")[2], "x", "") for name, _, _ in rows])
        remote_table = f"{address}/captions.csv?token=secret"
        for path in (tmp_path / "here" / "captions.csv", remote_table):
            for keys in ({}, {"key": "file"}):
                config = tables.config(path, tmp_path / "out", image="file", caption="caption", **keys)
                assert "secret" not in " ".join(told_of_two_pictures(config))


def told_of_two_pictures(config: Config) -> list[str]:
    """What people see of a table of two pictures, which are read as a build does it."""
    table, worker = (
        TableImages(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]
        for _ in range(2)
    )
    found = []
    for container in table.containers():
        for number, item in enumerate(table.items(container)):
            found += [container.name, item.place, item.original_key, item.file]
            assert item.stat.size in (-1, len(raw.png(number)))
            assert worker.read(item.file, item.content)["image"] == raw.png(number)
    assert len(found) == 8
    return found


def test_an_address_that_is_signed_anew_keeps_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PAUSE_S", 0.01)

    def key(address: str) -> str:
        path = raw.write_table(tmp_path, [(address, "x", "")])
        return listed(source(path))[0].original_key

    assert key("https://127.0.0.1:1/a.png?Signature=1&Expires=1") == key(
        "https://127.0.0.1:1/a.png?Signature=2"
    )
    assert key("https://127.0.0.1:1/get?id=1") != key("https://127.0.0.1:1/get?id=2")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (
            "https://h/a.png?id=7&w=2%20a&X-Amz-Signature=secret&X-Amz-Expires=9",
            "https://h/a.png?id=7&w=2%20a",
        ),
        ("https://h/a.png?se=1&sig=secret", "https://h/a.png"),
        ("https://me:secret@h/a.png?id=7", "https://h/a.png?id=7"),
        *(
            (one, one)
            for one in ("https://h/a.png?id=7&se=x#top", "https://h/a.png", "see https://h/?sig=x", "s", 5)
        ),
        (["https://h/a.png?sig=secret", None], ["https://h/a.png", None]),
    ],
)
@pytest.mark.parametrize("captions", ["one", "all"])
def test_further_columns_are_stored_without_the_signatures_of_their_addresses(
    captions: str, value: Any, stored: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(b"image")
    row = {"file": "a.png", "caption": "x", "url2": value}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    table = source(tmp_path / "t.jsonl", captions=captions)
    (item,) = listed(table)
    assert json.loads(table.read(item.file, item.content)["json"])["url2"] == stored


def test_a_server_that_is_gone_is_not_waited_for_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = addresses.AddressFetcher._request

    def counted(self: Any, fetch: Any, host: Any) -> Any:
        asked.append(fetch.address)
        return request(self, fetch, host)

    monkeypatch.setattr(addresses.AddressFetcher, "_request", counted)
    monkeypatch.setattr(addresses, "PAUSE_S", 0.01)
    worker = source(tmp_path / "captions.csv")
    raw.write_table(tmp_path, [(f"http://127.0.0.1:1/{n}.png", "x", "") for n in range(1000)])
    for item in listed(source(tmp_path / "captions.csv")):
        with pytest.raises(Reject, match=r"^source\.unreachable: 127\.0\.0\.1:1 does not (accept|answer)"):
            worker.read(item.file, item.content)
    assert len(asked) == answers.TRIES * hosts.HOPELESS


def test_long_cells_are_read_and_endless_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("file,caption\na.png," + "x" * 500_000 + "\n")
    assert [len(item.fields["caption"]) for item in listed(source(path))] == [500_000]
    path.write_text('file,caption\na.png,"' + ("x" * 1000 + "\n") * 17_000)
    with pytest.raises(DataError, match=r"t\.csv:2: .*mend the quotes of this row"):
        listed(source(path))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_line_without_end_is_an_error(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "LONGEST_LINE", 10_000)
    path = write(tmp_path, kind)
    with path.open("a") as file:
        file.write(f'{{"file": "a.png", "caption": "{"x" * 20_000}"}}\n')
    with pytest.raises(DataError, match="a line of over"):
        list(open_table(path, "dataset.source.path").rows)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "latin-1"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_another_encoding_is_said(tmp_path: Path, kind: str, encoding: str) -> None:
    text = "file,caption,größe\na.png,x,1\n" if kind == "csv" else '{"file": "a.png", "caption": "x"}\n'
    (tmp_path / f"t.{kind}").write_bytes(text.encode(encoding))
    if (kind, encoding) == ("jsonl", "latin-1"):
        return
    with pytest.raises(DataError, match="is not UTF-8; save it as UTF-8"):
        list(open_table(tmp_path / f"t.{kind}", "dataset.source.path").rows)


def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["c", "c"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="two columns are named 'c'"):
        open_table(tmp_path / "t.parquet", "dataset.source.path")


def test_image_and_caption_are_two_columns(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="column 'file' is the image's"):
        source(raw.write_table(tmp_path, ROWS), caption="file")


def test_a_number_that_is_none_is_no_key_and_no_group(tmp_path: Path) -> None:
    columns = {"file": ["a.png", "b.png"], "caption": ["x", "y"], "id": [1.5, float("nan")]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    first, second = listed(source(tmp_path / "t.parquet", key="id"))
    assert first.original_key == "1.5"
    assert second.fault == ("source.unreadable", "column id holds no key")
    rules = Splits.model_validate({"group_by": "id"})
    assert group_of(rules, first.fields) == "1.5"
    with pytest.raises(Reject, match="no value"):
        group_of(rules, second.fields)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_is_opened_once_and_closed_after_its_listing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, kind)
    opened: list[str] = []
    plain = LocalStore.open

    def counted(store: LocalStore, file: str, *arguments: Any, **named: Any) -> BinaryIO:
        opened.append(file)
        return plain(store, file, *arguments, **named)

    monkeypatch.setattr(LocalStore, "open", counted)
    table = source(path)
    table.columns()
    assert not table.is_sequential and listed(table)
    assert opened == [path.name]
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert str(path) not in links


def test_a_table_that_was_replaced_since_its_head_was_read_is_opened_again(tmp_path: Path) -> None:
    table = source(raw.write_table(tmp_path, [("a.png", "before", "")]))
    table.columns()
    raw.write_table(tmp_path / "new", [("a.png", "afterwards", ""), ("b.png", "more", "")])
    os.replace(tmp_path / "new" / "captions.csv", tmp_path / "captions.csv")
    assert [item.fields["caption"] for item in listed(table)] == ["afterwards", "more"]


def test_white_space_around_a_caption_is_no_part_of_it(tmp_path: Path) -> None:
    config = tables.make(tmp_path)
    taken = MODALITIES["image_text"].take({"image": raw.png(1), "txt": b" \na cat \r\n"}, config.dataset)
    assert taken.members["txt"] == b"a cat" and taken.statistics["caption_length"] == 5


@pytest.mark.parametrize("cell", ["nan", "NaN"])
def test_a_missing_caption_that_is_spelled_out_is_missing(cell: str) -> None:
    with pytest.raises(Reject, match="no caption") as caught:
        text_of(cell)
    assert caught.value.reason == "caption.missing"
    assert text_of("nan bread") == b"nan bread"
