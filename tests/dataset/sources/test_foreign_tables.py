"""Tables that other programs and machines wrote: their encodings, delimiters, paths, and compression."""

from __future__ import annotations

import gzip
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.cli import main
from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.building.freshness import is_up_to_date
from tasks.dataset.sources import of_files, open_sources
from tasks.dataset.sources.protocol import RawSample
from tasks.dataset.sources.tabular import open_table
from tasks.dataset.version.rejects import Reject
from tests.dataset import raw
from tests.dataset.raw import table as tables
from tests.web import web_server

TEXTS = {
    "cp1252": "“größer” – l’été",
    "latin-1": "größer",
    "cp932": "窓に座っている猫",
    "gb18030": "一只白色的狗",
    "cp1251": "большая кошка",
    "utf-16-le": "größer",
}


def config(path: Path, **source: Any) -> Config:
    return tables.config(path, path.parent / "out", **{"image": "file", "caption": "caption", **source})


def listed(config: Config) -> list[RawSample]:
    (source,) = open_sources(config.dataset)
    source.columns()
    return [item for container in source.containers() for item in source.items(container)]


def captions(config: Config) -> list[str]:
    (source,) = open_sources(config.dataset)
    found = [of_files(source).read(item.file, item.content) for item in listed(config)]
    assert all(bytes(members["image"]) for members in found)
    return [bytes(members["txt"]).decode() for members in found]


def written(folder: Path, content: bytes, name: str = "t.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.png").write_bytes(raw.png(1))
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("encoding", TEXTS)
def test_a_table_is_read_in_the_encoding_that_the_config_states(
    kind: str, encoding: str, tmp_path: Path
) -> None:
    text = f'file,caption\na.png,"{TEXTS[encoding]}"\n'
    if kind == "jsonl":
        text = f'{{"file": "a.png", "caption": "{TEXTS[encoding]}"}}\n'
    content = text.replace(",", "\t").encode(encoding) if kind == "tsv" else text.encode(encoding)
    assert captions(config(written(tmp_path, content, f"t.{kind}"), encoding=encoding)) == [TEXTS[encoding]]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "gb18030", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_text_whatever_the_encoding(
    kind: str, encoding: str, tmp_path: Path
) -> None:
    text = {"csv": "file,caption\na.png,größer\n", "jsonl": '{"file": "a.png", "caption": "größer"}\n'}
    text["tsv"], text["json"] = text["csv"].replace(",", "\t"), f"[{text['jsonl']}]"
    mark = "" if encoding == "utf-16" else "\ufeff"
    path = written(tmp_path, (mark + text[kind]).encode(encoding), f"t.{kind}")
    assert captions(config(path, encoding=encoding)) == ["größer"]


def test_a_byte_that_is_none_of_its_encoding_costs_its_own_row(tmp_path: Path) -> None:
    rows = config(written(tmp_path, b"file,caption\na.png,fine\na.png,\x81\n"), encoding="cp1252")
    (source,) = open_sources(rows.dataset)
    _, bad = listed(rows)
    with pytest.raises(
        Reject, match=r"^caption\.encoding: not UTF-8 at character 1 \(it is read as cp1252\)$"
    ):
        of_files(source).read(bad.file, bad.content)


@pytest.mark.parametrize(
    ("encoding", "named"), [("cp1252", "cp1252 if it is Windows-1252$"), ("utf-16-le", "utf-16-le$")]
)
def test_a_header_that_is_not_utf8_names_the_key(encoding: str, named: str, tmp_path: Path) -> None:
    path = written(tmp_path, "file,caption,größe\na.png,x,1\n".encode(encoding))
    with pytest.raises(DataError, match=f"is not UTF-8; give its source the right encoding, .*{named}"):
        listed(config(path))
    assert captions(config(path, encoding=encoding)) == ["x"]
    with pytest.raises(DataError, match=r"t\.csv is not utf-8; mend encoding: in its source"):
        listed(config(path, encoding="utf-8"))


def test_the_configs_delimiter_goes_before_the_header(tmp_path: Path) -> None:
    path = written(tmp_path, b"file;caption;sizes, in mm\na.png;a, b;1\n")
    why = r"dataset\.source\.image: t\.csv has no column 'file'; its cells are cut by ';': mend delimiter$"
    with pytest.raises(UsageError, match=why):
        listed(config(path))
    assert captions(config(path, delimiter=";")) == ["a, b"]
    path.write_bytes(b"file\tcaption, long\tcaption\na.png\tx\ty\n")
    assert captions(config(path, delimiter="\\t")) == captions(config(path, delimiter="tab")) == ["y"]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_stated_delimiter_that_the_header_lacks_names_the_one_it_has(kind: str, tmp_path: Path) -> None:
    for content, stated, says in (
        (b"file\tcaption\na.png\ta, b\n", ",", r"has no ',', but tabs; write delimiter: tab$"),
        (b"file;caption\na.png;a, b\n", "|", r"has no '\|', but ';'; write delimiter: ';'$"),
    ):
        path = written(tmp_path, content, f"t.{kind}")
        with pytest.raises(
            UsageError, match=rf"^dataset\.source\.delimiter: the first line of .*t\.{kind} {says}"
        ):
            listed(config(path, delimiter=stated))


def faults(config: Config) -> list[tuple[str, str]]:
    return [(item.place, item.fault[1]) for item in listed(config) if item.fault is not None]


def test_a_space_after_each_comma_is_no_part_of_a_cell(tmp_path: Path) -> None:
    path = written(tmp_path, b'file, caption, label\na.png, "a dog, sitting", x\na.png, plain, y\n')
    assert captions(config(path)) == ["a dog, sitting", "plain"]
    assert [item.fields["label"] for item in listed(config(path))] == ["x", "y"]
    path.write_bytes(b'file,caption\na.png, "a dog"\n')
    assert [item.fields["caption"] for item in listed(config(path))] == [' "a dog"']


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_empty_cells_at_the_end_of_a_header_are_no_columns(kind: str, tmp_path: Path) -> None:
    text = "file,caption,,\na.png,one,,\na.png,two\na.png,three,,4\na.png,five,,,\n"
    path = written(tmp_path, text.replace(",", "\t" if kind == "tsv" else ",").encode(), f"t.{kind}")
    found = listed(config(path))
    (source,) = open_sources(config(path).dataset)
    assert source.columns() == ["file", "caption"]
    assert [item.fields["caption"] for item in found[:2]] == ["one", "two"]
    says = "cells in 2 columns; quote a text that holds the delimiter"
    assert faults(config(path)) == [(f"t.{kind}:4", f"4 {says}"), (f"t.{kind}:5", f"5 {says}")]


@pytest.mark.parametrize("line", ["sep=;", '"SEP=;"', "sep=;\r"])
@pytest.mark.parametrize("keys", [{}, {"delimiter": ";"}])
def test_the_line_that_names_the_delimiter_for_excel_is_followed(
    line: str, keys: dict[str, str], tmp_path: Path
) -> None:
    path = written(tmp_path, f"{line}\nfile;sizes, in mm;caption\na.png;1;a, b\n".encode())
    assert captions(config(path, **keys)) == ["a, b"]
    assert [item.place for item in listed(config(path, **keys))] == ["t.csv:3"]
    tsv = written(tmp_path, b'sep=\t\nfile\tcaption\na.png\t"so\n', "t.tsv")
    assert captions(config(tsv)) == ['"so']


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"delimiter": "||"}, "'||' is not one character such as ';'"),
        ({"delimiter": '"'}, "is not one character"),
        ({"encoding": "windows"}, "'windows' is no encoding of text; name one such as cp1252"),
        *(({"encoding": name}, f"'{name}' is no encoding of text") for name in ("hex", "idna", "punycode")),
    ],
)
def test_a_key_of_no_meaning_is_refused(keys: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValidationError, UsageError)) as caught:
        config(tmp_path / "t.csv", **keys)
    assert message in str(caught.value)


def test_keys_of_text_without_effect_are_refused(tmp_path: Path) -> None:
    tables.write_parquet(tmp_path / "t.parquet", tables.rows(1))
    keys = {"image": "image", "caption": "text"}
    for name, value in (("encoding", "cp1252"), ("delimiter", ";")):
        with pytest.raises(UsageError, match=rf"dataset\.source\.{name}: .*t\.parquet .*remove the key"):
            listed(config(tmp_path / "t.parquet", **keys, **{name: value}))
    with pytest.raises(UsageError, match=r"dataset\.source\.root: the table holds the images themselves"):
        listed(config(tmp_path / "t.parquet", **keys, root=str(tmp_path)))
    path = written(tmp_path, b'{"file": "a.png", "caption": "x"}\n', "t.jsonl")
    with pytest.raises(UsageError, match=r"dataset\.source\.delimiter: .*t\.jsonl has no cells"):
        listed(config(path, delimiter=";"))


def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("cats/a.png", "cats/b.png", "dogs/a.png")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(raw.png(number))
    return tmp_path / "photos"


def pictures_of(config: Config) -> list[tuple[str, bytes]]:
    (source,) = open_sources(config.dataset)
    items = listed(config)
    members = [of_files(source).read(item.file, item.content) for item in items]
    return [(item.original_key, bytes(one["image"])) for item, one in zip(items, members, strict=True)]


@pytest.mark.parametrize(
    "start", ["", "C:\\data\\photos\\", "/home/ann/img/", "\\\\server\\share\\", "c:/img/"]
)
def test_paths_start_at_the_root_and_those_of_another_machine_are_mended(start: str, tmp_path: Path) -> None:
    root, sign = photos(tmp_path), "\\" if "\\" in start else "/"
    names = ["cats/a.png", "cats/b.png", "dogs/a.png"]
    rows = [(start + name.replace("/", sign), f"picture {name}", "") for name in names]
    given = config(raw.write_table(tmp_path / "tables", rows), root=str(root))
    assert pictures_of(given) == [(name, raw.png(number)) for number, name in enumerate(names)]


def test_a_path_of_another_machine_names_one_file_only(tmp_path: Path) -> None:
    """A file of the same name in another folder is another picture."""
    root = photos(tmp_path)
    rows = [("C:\\x\\cats\\a.png", "a cat", ""), ("C:\\x\\birds\\a.png", "a bird", "")]
    given = config(raw.write_table(tmp_path / "tables", rows), root=str(root))
    (root / "a.png").write_bytes(raw.png(9))
    found, missing = listed(given)
    assert (found.file, missing.file) == ("cats/a.png", "birds/a.png")
    (source,) = open_sources(given.dataset)
    with pytest.raises(Reject, match=rf"^member\.missing: no such file: '{root}/birds/a\.png'$"):
        of_files(source).read(missing.file, missing.content)


@pytest.mark.parametrize(("captions", "times"), [("one", 2), ("all", 1)])
def test_a_missing_picture_in_the_first_row_has_the_name_that_it_would_have_had(
    captions: str, times: int, tmp_path: Path
) -> None:
    root = photos(tmp_path)
    rows = [
        (f"C:\\x\\cats\\{name}.png", f"caption {number}", "")
        for number, name in enumerate(["gone", "a", "gone"])
    ]
    given = config(raw.write_table(tmp_path / "tables", rows), root=str(root), captions=captions)
    assert sorted(item.file for item in listed(given)) == ["cats/a.png", *["cats/gone.png"] * times]


def test_a_root_that_is_not_there_names_the_key(tmp_path: Path) -> None:
    path = raw.write_table(tmp_path, [("a.png", "x", "")])
    with pytest.raises(
        UsageError, match=r"dataset\.source\.root: there is no folder nowhere; paths start at"
    ):
        listed(config(path, root="nowhere"))


def test_a_root_may_be_an_address(tmp_path: Path) -> None:
    with web_server(photos(tmp_path), True) as (address, _):
        path = raw.write_table(tmp_path / "tables", [("cats\\a.png", "x", ""), ("dogs/a.png", "y", "")])
        found = pictures_of(config(path, root=address))
    assert found == [("cats/a.png", raw.png(0)), ("dogs/a.png", raw.png(2))]


def test_backslashes_are_read_unless_a_file_is_called_so(tmp_path: Path) -> None:
    root = photos(tmp_path)
    (root / "cats\\b.png").write_bytes(raw.png(7))
    path = raw.write_table(
        root, [("cats\\a.png", "x", ""), ("cats\\b.png", "y", ""), (".\\dogs\\a.png", "z", "")]
    )
    found = [content for _, content in pictures_of(config(path))]
    assert found == [raw.png(0), raw.png(7), raw.png(2)]


def test_another_root_is_another_place_and_the_same_config(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "here", 6)
    shutil.copytree(tmp_path / "here", tmp_path / "there")  # with the times of its files
    path = raw.write_table(tmp_path / "t", [(f"{n:04d}.png", f"picture {n}", "") for n in range(6)])
    keys = {"image": "file", "caption": "caption"}
    here, there = (
        tables.config(path, tmp_path / "out", **keys, root=str(tmp_path / name)) for name in ("here", "there")
    )
    first = build(here).version
    (tmp_path / "out" / "current").symlink_to(f"versions/{first.name}")
    assert is_up_to_date(here) == first and is_up_to_date(there) is None
    assert build(there).version == first
    inside = tables.config(path, tmp_path / "out", **keys, root=str(first / "train"))
    with pytest.raises(
        UsageError, match=r"dataset\.output: a build removes files in .*/train must not lie there"
    ):
        build(inside)


ROWS = [("a.png", "a cat, sitting", "x"), ("b.png", 'she said "no"', "y"), ("c.png", "two\nlines", "")]


def packed(folder: Path, kind: str) -> Path:
    path = raw.write_table(folder, ROWS)
    text = path.read_bytes()
    if kind == "tsv":
        text = b'file\tcaption\tlabel\na.png\ta cat, sitting\tx\nb.png\t"she said ""no"""\ty\nc.png\t"two\nlines"\t\n'
    if kind in ("jsonl", "ndjson"):
        lines = [f'{{"file": "{f}", "caption": {c!r}, "label": "{n}"}}' for f, c, n in ROWS]
        text = "\n".join(lines).replace("'", '"').replace('"she said "no""', '"she said \\"no\\""').encode()
    path = folder / f"t.{kind}.gz"
    path.write_bytes(gzip.compress(text))
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "ndjson"])
def test_a_compressed_table_is_read_as_it_is(kind: str, tmp_path: Path) -> None:
    path = packed(tmp_path, kind)
    assert [tuple(item.fields.values()) for item in listed(config(path))] == ROWS
    with web_server(tmp_path, True) as (address, _):
        remote = tables.config(f"{address}/{path.name}", tmp_path / "out", image="file", caption="caption")
        assert [item.fields["caption"] for item in listed(remote)] == [caption for _, caption, _ in ROWS]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return content[:-8] + bytes(8)


@pytest.mark.parametrize("harm", [cut, flipped])
def test_a_damaged_compressed_table_is_an_error(harm: Callable[[bytes], bytes], tmp_path: Path) -> None:
    text = "file,caption\n" + "".join(f"{n}.png,picture {n * 7919}\n" for n in range(20_000))
    (tmp_path / "t.csv.gz").write_bytes(harm(gzip.compress(text.encode())))
    with pytest.raises(
        DataError,
        match=r"t\.csv\.gz is damaged: line \d+ and on cannot be unpacked \(.*\); download it again$",
    ):
        listed(config(tmp_path / "t.csv.gz"))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json"])
@pytest.mark.parametrize("harm", [cut, flipped])
def test_a_short_compressed_table_that_is_damaged_is_no_other_kind_of_file(
    harm: Callable[[bytes], bytes], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first bytes are those of gzip, and its checksum is wrong or its end is missing."""
    text = "file,caption\na.png,x\n" if kind == "csv" else '[{"file": "a.png", "caption": "x"}]'
    path = written(tmp_path, harm(gzip.compress(text.encode())), f"t.{kind}.gz")
    says = rf"t\.{kind}\.gz is damaged: .* cannot be unpacked \(.*\); download it again"
    with pytest.raises(DataError, match=says):
        listed(config(path))
    if kind == "json":  # of which init has looked at the beginning
        return
    assert main(["init", str(path), "--out", str(tmp_path / "x.yaml")]) != 0
    shown = capsys.readouterr()
    assert re.search(r"is damaged: .* cannot be unpacked", " ".join((shown.out + shown.err).split()))


def test_a_table_that_is_not_compressed_in_spite_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(b"file,caption\na.png,x\n")
    with pytest.raises(DataError, match=r"t\.csv\.gz is not compressed by gzip; rename it without \.gz"):
        listed(config(tmp_path / "t.csv.gz"))


def test_a_compressed_table_is_closed_after_its_listing(tmp_path: Path) -> None:
    path = packed(tmp_path, "csv")
    opened = open_table(path, "dataset.source.path")
    assert len(list(opened.rows)) == 3
    links = [link.resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert path not in links


def test_a_compressed_table_takes_little_memory(tmp_path: Path) -> None:
    """A hundred megabytes of one line are refused before they are all unpacked."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb") as file:
        file.write(b"file,caption\na.png,")
        for _ in range(100):
            file.write(bytes(b"x" * (1 << 20)))
    (tmp_path / "t.csv.gz").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"a line of over 67,108,864 characters"):
        listed(config(tmp_path / "t.csv.gz"))
