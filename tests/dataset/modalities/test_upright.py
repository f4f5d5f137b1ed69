"""A camera's orientation is applied once, at build time, so that every reader sees what the table says."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.preview import write_look
from tests.dataset.raw import chat, image_folder, shards, table


def lying(kind: str = "JPEG") -> bytes:
    """A picture of 30 x 10 pixels that a camera held upright has taken."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.new("RGB", (30, 10), "red").save(file, kind, exif=exif)
    return file.getvalue()


def in_folder(folder: Path) -> Config:
    folder.mkdir()
    (folder / "a.jpg").write_bytes(lying())
    (folder / "a.txt").write_text("a red thing")
    return image_folder.config(folder)


def in_parquet(folder: Path) -> Config:
    row = {"image": {"bytes": lying("PNG"), "path": None}, "text": "a red thing", "label": 1}
    table.write_parquet(folder / "0.parquet", [row])
    return table.config(folder, folder.parent / "out")


def in_tar(folder: Path) -> Config:
    folder.mkdir()
    (folder / "0.tar").write_bytes(shards.tar_bytes([("a.webp", lying("WEBP")), ("a.txt", b"a red thing")]))
    return shards.config(folder, output=folder.parent / "out")


def in_chat(folder: Path) -> Config:
    chat.write_parquet(folder / "x.parquet", [chat.row(0, images=[{"bytes": lying(), "path": None}])])
    return chat.config(folder / "x.parquet", folder.parent / "out")


def stored(version: Path) -> bytes:
    """The picture in the only tar."""
    (path,) = version.rglob("*.tar")
    with tarfile.open(path) as tar:
        name = next(name for name in tar.getnames() if name.endswith(("jpg", "png", "webp")))
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


@pytest.mark.parametrize("make", [in_folder, in_parquet, in_tar, in_chat])
def test_what_another_reader_sees_is_what_the_table_says(
    make: Callable[[Path], Config], tmp_path: Path
) -> None:
    version = build(make(tmp_path / "raw")).version
    assert Image.open(io.BytesIO(stored(version))).size == (10, 30)
    (row,) = (row for path in (version / "samples").glob("*") for row in pq.read_table(path).to_pylist())
    assert (row["width"], row["height"]) == (10, 30)


def test_the_page_says_one_size_only(tmp_path: Path) -> None:
    version = build(in_folder(tmp_path / "raw")).version
    page = write_look(version, tmp_path / "look.html").path.read_text()
    assert "10 × 30" in page and "30 × 10" not in page


def test_crops_of_teachers_count_the_picture_as_they_saw_it(tmp_path: Path) -> None:
    """MobileCLIP opens a picture without regard to its EXIF."""
    crops = {"param_aug": [[[0, 20, 10, 10], None]]}
    added = shards.reinforcement(**{"paug.json": crops, "npz": shards.npz(shards.embeddings(1))})
    members = {"jpg": lying(), "txt": b"a red thing", "json": json.dumps({}).encode(), **added}
    (tmp_path / "0.tar").write_bytes(
        shards.tar_bytes([(f"a.{name}", content) for name, content in members.items()])
    )
    version = build(shards.config(tmp_path / "0.tar", "reinforced", output=tmp_path / "out")).version
    assert stored(version) == lying()
