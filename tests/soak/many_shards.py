"""Sound versions of many shards of small samples, written at once: no source, no flush to disk, any size.

Every image is the same, every key another, so all shards differ. Nothing is held of more than one shard,
and the tables are those of a build. `make_outside` writes what can be judged without reading a member, whose
shards are holes and take no disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from tasks.dataset.tar.format import END, header, padding
from tasks.dataset.version.build_info import write_build_info
from tasks.dataset.version.index import INDEX, IndexWriter
from tasks.dataset.version.manifest import Manifest, SourceSummary, SplitSummary, content_digest
from tasks.dataset.version.tables import TableWriter, write_table
from tests.dataset import raw
from tests.dataset.handmade import FACTS

IMAGE = raw.png(0, side=8)
SPLIT = "train"
SHARDS = pa.schema(
    {
        "name": pa.string(),
        "split": pa.string(),
        "blake3": pa.string(),
        "bytes": pa.int64(),
        "samples": pa.int64(),
        "input_digest": pa.string(),
    }.items()
)
SAMPLES = pa.schema(
    {
        "key": pa.string(),
        "original_key": pa.string(),
        "shard": pa.uint32(),
        "row": pa.uint64(),
        "group": pa.string(),
        "width": pa.int32(),
        "height": pa.int32(),
        "caption_length": pa.int32(),
    }.items()
)
REJECTS = ("key", "original_key", "reason", "detail", "source", "file")


def make(version: Path, shards: int, samples: int, image: bytes = IMAGE) -> Path:
    """A version of so many shards of so many samples each, a PNG with a caption; without one of 2 KB each."""
    for name in (SPLIT, "index", "samples"):
        (version / name).mkdir(parents=True)
    index = np.lib.format.open_memmap(
        version / "index" / f"{SPLIT}.npy", mode="w+", dtype=INDEX, shape=(shards * samples,)
    )
    rows = []
    with TableWriter(version / "samples" / f"{SPLIT}.parquet", SAMPLES) as table:
        for number in range(shards):
            keys = [f"{number * samples + row:012d}" for row in range(samples)]
            index[number * samples : (number + 1) * samples], row = _shard(version, number, keys, image)
            table.write(_samples(number, keys))
            rows.append(row)
    index.flush()
    _finish(version, rows)
    return version


def make_outside(version: Path, shards: int, samples: int) -> Path:
    """A version of so many shards of so many samples each whose tars have the right length and end, and hold
    nothing: sound for `verify --quick`, which reads no member, and damaged for any other level."""
    for name in (SPLIT, "index", "samples"):
        (version / name).mkdir(parents=True)
    length = len(b"".join(_members("0" * 12, IMAGE)))
    span, size = np.zeros(samples, INDEX), samples * length + len(END)
    span["offset"], span["length"] = np.arange(samples) * length, length
    rows = []
    path = version / "samples" / f"{SPLIT}.parquet"
    with IndexWriter(version / "index" / f"{SPLIT}.npy") as index, TableWriter(path, SAMPLES) as table:
        for number in range(shards):
            index.write(number, span["offset"], span["length"], span["crc32c"])
            numbers = pa.array(np.arange(number * samples, (number + 1) * samples))
            table.write(_samples(number, pc.utf8_lpad(numbers.cast(pa.string()), 12, "0")))
            name = f"{SPLIT}/{number:06d}.tar"
            with (version / name).open("wb") as file:
                file.truncate(size)
            seal = blake3(name.encode()).hexdigest()
            facts = {"blake3": seal, "bytes": size, "samples": samples, "input_digest": seal}
            rows.append({"name": name, "split": SPLIT, **facts})
    _finish(version, rows)
    return version


def _shard(version: Path, number: int, keys: list[str], image: bytes) -> tuple[Any, dict[str, Any]]:
    data, index, offset = [], np.zeros(len(keys), INDEX), 0
    for row, key in enumerate(keys):
        span = b"".join(_members(key, image))
        index[row] = (number, offset, len(span), google_crc32c.value(span))
        data.append(span)
        offset += len(span)
    whole = b"".join([*data, END])
    name = f"{SPLIT}/{number:06d}.tar"
    (version / name).write_bytes(whole)
    seal = blake3(whole).hexdigest()
    facts = {"blake3": seal, "bytes": len(whole), "samples": len(keys), "input_digest": seal}
    return index, {"name": name, "split": SPLIT, **facts}


def _members(key: str, image: bytes) -> Iterator[bytes]:
    for suffix, content in (("png", image), ("txt", f"picture {key}".encode())):
        yield header(f"{key}.{suffix}", len(content))
        yield content + bytes(padding(len(content)))


def _samples(number: int, keys: Sequence[str]) -> Any:
    count = len(keys)
    sides = pa.array(np.full(count, 8, np.int32))
    rows = pa.array(np.arange(number * count, (number + 1) * count, dtype=np.uint64))
    shard = pa.array(np.full(count, number, np.uint32))
    group = pa.array([None] * count, pa.string())
    length = pa.array(np.full(count, len("picture ") + 12, np.int32))
    return pa.table([keys, keys, shard, rows, group, sides, sides, length], schema=SAMPLES)


def _finish(version: Path, rows: list[dict[str, Any]]) -> None:
    """Write all that describes the shards."""
    write_table(version / "shards.parquet", pa.Table.from_pylist(rows, SHARDS))
    write_table(version / "rejects.parquet", pa.table({name: pa.array([], pa.string()) for name in REJECTS}))
    sizes = {row["name"].rpartition("/")[2]: row["samples"] for row in rows}
    (version / SPLIT / "sizes.json").write_text(json.dumps(sizes))
    total = sum(sizes.values())
    summary = SplitSummary(shards=len(rows), samples=total, bytes=sum(row["bytes"] for row in rows))
    manifest = Manifest(
        format="tarmac/1",
        name="many",
        modality="image_text",
        digest=content_digest((row["name"], row["blake3"]) for row in rows),
        splits={SPLIT: summary},
        read=total,
        accepted=total,
        filtered=0,
        rejects={},
        source=SourceSummary(kind="table", digest="0" * 64),
        config_digest="0" * 64,
    )
    (version / "manifest.json").write_bytes(manifest.to_bytes())
    write_build_info(version, {**FACTS, "private": False})
