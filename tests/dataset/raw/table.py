"""Tables of images: a CSV file with paths, and Parquet files with the images in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.schema import Config
from tests.dataset import raw

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema([("image", IMAGE), ("text", pa.string()), ("label", pa.int64())])


def make(folder: Path) -> Config:
    raw.pictures(folder, 6)
    return raw.config(folder, folder.with_name("out"))


def make_of_bytes(folder: Path) -> Config:
    """Two Parquet files of three rows."""
    for number in range(2):
        write_parquet(folder / f"{number}.parquet", rows(3, 3 * number))
    return config(folder, folder.with_name("out"))


def make_of_captions(folder: Path) -> Config:
    """Six images with three captions each, whose rows are apart, sorted by the captions."""
    raw.pictures(folder, 6)
    rows = [
        (f"{n:04d}.png", f"caption {number} of {n}", str(number)) for number in range(3) for n in range(6)
    ]
    raw.write_table(folder, rows, ("file", "caption", "number"))
    block = {"kind": "table", "path": str(folder / "captions.csv"), "image": "file", "caption": "caption"}
    return raw.config(folder, folder.with_name("out"), source={**block, "captions": "all"})


def make_of_saved(folder: Path) -> Config:
    """Two Arrow files of three rows, as `save_to_disk` of Hugging Face's `datasets` writes them."""
    folder.mkdir(parents=True)
    for number in range(2):
        write_arrow(folder / f"data-{number:05d}-of-00002.arrow", rows(3, 3 * number))
    return config(folder, folder.with_name("out"))


def write_arrow(path: Path, rows: list[dict[str, Any]], batch: int = 2, is_stream: bool = True) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with path.open("wb") as file, new(file, SCHEMA) as writer:
        writer.write_table(table, max_chunksize=batch)


def config(path: Path | str, output: Path | None = None, **source: Any) -> Config:
    block = {"kind": "table", "path": str(path), "image": "image", "caption": "text", **source}
    return raw.config(Path("unused"), output or Path(str(path)) / "out", source=block)


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"image": {"bytes": raw.png(n), "path": f"{n}.png"}, "text": f"picture {n}", "label": n % 3}
        for n in range(first, first + count)
    ]


def write_parquet(path: Path, rows: list[dict[str, Any]], image: Any = IMAGE, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.set(0, pa.field("image", image))
    pq.write_table(pa.Table.from_pylist(rows, schema), path, **options)
