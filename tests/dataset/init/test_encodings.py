"""What `tarmac init` makes of tables that other programs wrote: encodings, delimiters, compression."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from flows.cli import main
from tasks.dataset.building.builder import build
from tasks.dataset.init import survey
from tasks.dataset.init.encodings import encoding_of
from tests.dataset import raw
from tests.dataset.init.kinds import config_of, pngs, taken, warnings

SENTENCES = {
    "cp1252": [
        "eine größere Brücke über den Fluß",
        "l’été à la forêt – un cœur",
        "un niño pequeño en el césped",
    ],
    "latin-1": ["größer als ein Haus", "um cão deitado no chão à sombra", "en sød hund løber på græsset"],
    "cp1250": ["żółta łódź płynie w świetle", "velká kočka sedí na okně přes město"],
    "cp1254": ["pencerede oturan büyük bir kedi, ağaç ve ışık"],
    "mac_roman": ["eine größere Brücke über den Fluß"],
    "cp850": ["eine größere Brücke über den Fluß"],
    "cp1251": ["большая кошка сидит на окне"],
    "koi8_r": ["большая кошка сидит на окне"],
    "cp1253": ["μια μεγάλη γάτα κάθεται στο παράθυρο"],
    "cp1255": ["חתול גדול יושב על החלון בעיר הישנה"],
    "cp1256": ["قطة كبيرة تجلس على النافذة في المدينة"],
    "cp874": ["แมวตัวใหญ่นั่งอยู่บนหน้าต่าง"],
    "cp932": ["窓に座っている大きな猫の写真"],
    "euc_jp": ["窓に座っている大きな猫の写真"],
    "gb18030": ["一只大猫坐在窗边的照片"],
    "big5": ["一隻大貓坐在窗邊的照片"],
    "cp949": ["창가에 앉아 있는 큰 고양이 사진"],
    "utf-16-le": ["a cat", "größer"],
    "utf-16-be": ["a cat", "größer"],
}


@pytest.mark.parametrize(("encoding", "texts"), SENTENCES.items())
def test_a_text_is_read_as_it_was_written(encoding: str, texts: list[str]) -> None:
    for text in texts:
        data = f"file,caption\nimg/1.jpg,a plain row\nimg/2.jpg,{text}\n".encode(encoding)
        found = encoding_of(data)
        assert found is not None and data.decode(found) == data.decode(encoding)


@pytest.mark.parametrize(
    "content",
    [
        b"file,caption\na.png,plain\n",
        "file,caption\na.png,größer\n".encode(),
        "file,caption\na.png,größer\n".encode("utf-16"),
        b"a.png,gr\xfcn\n" + "b.png,un café à Paris, l’été\n".encode() * 3,
        b"file,caption\na.png,\x81\x8d\x8f\x90\x9d\x01\xff\xfe\xfa\n",
    ],
)
def test_no_encoding_is_named_where_none_is_needed_or_likely(content: bytes) -> None:
    assert encoding_of(content) is None


@pytest.mark.parametrize("encoding", ["cp1252", "cp932", "utf-16-le"])
def test_the_encoding_is_found_shown_and_built(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SENTENCES[encoding][-1]
    rows = raw.pictures(tmp_path / "raw", 20)
    lines = ["file,caption,größe" if encoding == "cp1252" else "file,caption,size"]
    lines += [f"{name},{text} {number},1" for number, (name, _, _) in enumerate(rows)]
    (tmp_path / "raw" / "captions.csv").write_bytes("\n".join(lines).encode(encoding))
    assert main(["init", "raw", "--out", "x.yaml"]) == 0
    said = capsys.readouterr().out
    assert f"encoding  {encoding}: not UTF-8; so it reads “{text} 0”, “{text} 1”" in said
    assert f"encoding: {encoding}" in Path("x.yaml").read_text()
    config = config_of(survey("raw"), tmp_path)
    assert build(config).accepted == 20


def test_a_delimiter_beside_commas_in_the_header_is_found(tmp_path: Path) -> None:
    pngs(tmp_path / "raw", 6)
    rows = [f"{n}.png;picture, number {n};12" for n in range(6)]
    (tmp_path / "raw/t.csv").write_text("\n".join(["file;text;size, in mm", *rows]))
    seen = survey("raw")
    assert seen.best.seen["delimiter"] == ";: between the cells of t.csv"
    config = config_of(seen, tmp_path)
    assert config.dataset.source.delimiter == ";" and taken(config) == 6  # type: ignore[union-attr]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a_compressed_table_is_read(encoding: str, tmp_path: Path) -> None:
    pngs(tmp_path / "raw", 6)
    rows = [f"{n}.png;größer als {n}" for n in range(6)]
    text = "\n".join(["file;text", *rows])
    (tmp_path / "raw/t.csv.gz").write_bytes(gzip.compress(text.encode(encoding)))
    for place in ("raw", "raw/t.csv.gz"):
        seen = survey(place)
        assert (seen.name, warnings(seen)) == ("raw" if place == "raw" else "t", "")
        config = config_of(seen, tmp_path)
        assert config.dataset.source.path == "raw/t.csv.gz" and taken(config) == 6


def test_rows_of_a_long_compressed_table_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.dataset.init.columns.MOST_ROWS", 100)
    pngs(tmp_path / "raw", 60)
    text = "file,text\n" + "".join(f"{n}.png,picture number {n}\n" for n in range(5000))
    (tmp_path / "raw/t.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert 4000 < survey("raw").best.samples < 6000


@pytest.mark.parametrize("start", ["", "img\\", ".\\img\\"])
def test_backslashes_alone_need_no_root(start: str, tmp_path: Path) -> None:
    pngs(tmp_path / "raw" / start.strip(".\\"), 6)
    raw.write_table(tmp_path / "raw", [(f"{start}{n}.png", f"picture number {n}", "") for n in range(6)])
    seen = survey("raw")
    assert "6 of 6 looked at are there" in seen.best.seen["image"] and "root" not in seen.best.seen
    assert ("Windows' backslashes" in seen.best.seen["image"]) == bool(start)
    assert taken(config_of(seen, tmp_path)) == 6


@pytest.mark.parametrize("place", ["raw", "raw/captions.csv"])
@pytest.mark.parametrize(
    ("start", "folder", "root"),
    [
        ("C:\\data\\img\\", "img", "raw"),
        ("C:\\data\\img\\", "photos/all", "raw/photos/all"),
        ("/home/ann/data/img/", "img", "raw"),
        ("train/", "images/train", "raw/images"),
        ("", "../pictures", "pictures"),
    ],
)
def test_the_root_is_found_below_which_the_images_are(
    start: str, folder: str, root: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pngs(tmp_path / "raw" / folder, 20)
    rows = [(f"{start}{n}.png", f"picture number {n}", "") for n in range(20)]
    raw.write_table(tmp_path / "raw", rows)
    assert main(["init", place, "--out", "x.yaml"]) == 0
    said = capsys.readouterr().out
    assert f"{root}: 20 of 20 looked at are there, and 0 below the table's folder" in said and "!" not in said
    assert f"    root: {root} " in Path("x.yaml").read_text()
    assert build(config_of(survey(place), tmp_path)).accepted == 20
