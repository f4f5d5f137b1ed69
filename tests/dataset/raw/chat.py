"""Conversations in nanoVLM's row format, as Parquet with the images in it or as JSON lines with paths."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.config import validate
from tasks.core.schema import Config
from tests.dataset.raw import png

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
RATINGS = pa.list_(pa.int64())
SCHEMA = {
    "images": pa.list_(IMAGE),
    "relevance_ratings": RATINGS,
    "formatting_ratings": RATINGS,
}


def turn(user: str, assistant: str = "Yes.") -> dict[str, str]:
    return {"user": user, "assistant": assistant}


def row(number: int, **fields: Any) -> dict[str, Any]:
    """A row with one image and two turns, both rated 5 and 4."""
    return {
        "images": [{"bytes": png(number), "path": None}],
        "texts": [turn(f"What is shown in {number}?", f"Picture {number}."), turn("Sure?")],
        "relevance_ratings": [5, 4],
        "formatting_ratings": [4, None],
        **fields,
    }


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: pa.array([row.get(name) for row in rows], SCHEMA.get(name)) for name in names}
    pq.write_table(pa.table(columns), path, **options)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows' image bytes become files in `images/` beside the table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for fields in rows:
        names = []
        for image in fields["images"] or []:
            names.append(f"images/{hashlib.sha256(image['bytes']).hexdigest()[:12]}.png")
            (path.parent / "images").mkdir(exist_ok=True)
            if not (path.parent / names[-1]).exists():  # whose time would change
                (path.parent / names[-1]).write_bytes(image["bytes"])
        lines.append(json.dumps({**fields, "images": names}) + "\n")
    path.write_text("".join(lines))
    return path


def config(path: Path | str, output: Path, source: Any = None, **dataset: Any) -> Config:
    block = {
        "output": str(output),
        "modality": "chat",
        "source": {"kind": "chat", "path": str(path), **(source or {})},
        "shard": {"samples": 4},
        **dataset,
    }
    engine = {"build": {"kind": "local", "workers": 1}}
    return validate({"name": "test", "dataset": block, "engine": engine}, "test")


def make(folder: Path) -> Config:
    """Three conversations of each of two subsets, as Parquet."""
    for start, name in enumerate(("vqa", "ocr")):
        write_parquet(folder / f"{name}.parquet", [row(3 * start + number) for number in range(3)])
    return config(folder / "*.parquet", folder / "out")


def make_paths(folder: Path) -> Config:
    """Six conversations as JSON lines with image paths."""
    write_jsonl(folder / "vqa.jsonl", [row(number) for number in range(6)])
    return config(folder / "vqa.jsonl", folder / "out")


def make_array(folder: Path) -> Config:
    """Six conversations as LLaVA writes them, in one array, with the images in a folder of their own."""
    rows = []
    for number in range(6):
        name = f"coco/{number}.png"
        (folder / "images" / "coco").mkdir(parents=True, exist_ok=True)
        (folder / "images" / name).write_bytes(png(number))
        turns = [
            {"from": "human", "value": f"<image>\nWhat is shown in {number}?"},
            {"from": "gpt", "value": f"Picture {number}."},
        ]
        rows.append({"id": str(number), "image": name, "conversations": turns})
    (folder / "llava.json").write_text(json.dumps(rows, indent=2))
    source = {"images": "image", "texts": "conversations", "root": str(folder / "images")}
    return config(folder / "llava.json", folder / "out", source)
