"""Versions written by hand for the tests of their readers: without a build or a source, of any members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.dataset.tar.writer import ShardWriter, Span
from tasks.dataset.version.build_info import write_build_info
from tasks.dataset.version.index import INDEX
from tasks.dataset.version.layout import index_name, shard_name
from tasks.dataset.version.manifest import Manifest, SourceSummary, SplitSummary, content_digest
from tasks.dataset.version.tables import REJECTS_SCHEMA, SHARDS_SCHEMA, ShardRecord, write_table
from tests.dataset import raw

Members = Mapping[str, bytes]
FACTS: Mapping[str, Any] = {
    "name": "handmade",
    "dataset": {},
    "cut": [],
    "inputs_digest": "0" * 64,
    "unread": 0,
    "filtered": 0,
    "built": 1.7e9,
    "host": "here",
    "engine": {},
    "python": "3.11",
    "versions": {},
    "converter": 1,
    "output": "data",
}
"""All fields of build.json but `private`, `files` and `digest`."""
MEMBERS: Members = {"png": raw.png(0), "txt": b"a caption", "json": b"{}"}
"""A sound sample."""


def write_version(
    version: Path,
    modality: str,
    splits: Mapping[str, Sequence[tuple[str, Members]]],
    statistics: Mapping[str, Sequence[float]] | None = None,
    rejects: Sequence[tuple[str, str, str, str]] = (),
    private: bool | None = False,
    shard: int = 16,
) -> Path:
    """A sound version of (key, members) by split; rejects are (reason, original_key, detail, source).

    `statistics` are columns over all splits in order; without `private` there is no build.json.
    """
    version.mkdir(parents=True)
    shards: list[ShardRecord] = []
    summaries = {}
    seen = 0
    for split, samples in splits.items():
        made = _write_split(version, split, samples, shard)
        shards += made
        columns = {
            "key": [key for key, _ in samples],
            "original_key": [key for key, _ in samples],
            "shard": pa.array([row // shard for row in range(len(samples))], pa.uint32()),
            "row": pa.array(range(len(samples)), pa.uint64()),
            "group": pa.array([None] * len(samples), pa.string()),
            **{name: values[seen : seen + len(samples)] for name, values in (statistics or {}).items()},
        }
        seen += len(samples)
        (version / "samples").mkdir(exist_ok=True)
        write_table(version / "samples" / f"{split}.parquet", pa.table(columns))
        size = sum(one.bytes for one in made)
        summaries[split] = SplitSummary(shards=len(made), samples=len(samples), bytes=size)
    write_table(version / "shards.parquet", pa.Table.from_pylist(list(map(asdict, shards)), SHARDS_SCHEMA))
    rows = [
        dict(zip(REJECTS_SCHEMA.names, (key, key, reason, detail, source, key), strict=True))
        for reason, key, detail, source in rejects
    ]
    write_table(version / "rejects.parquet", pa.Table.from_pylist(rows, REJECTS_SCHEMA))
    counts = Counter(reason for reason, *_ in rejects)
    manifest = Manifest(
        format="tarmac/1",
        name="handmade",
        modality=modality,
        digest=content_digest((one.name, one.blake3) for one in shards),
        splits=summaries,
        read=seen + len(rejects),
        accepted=seen,
        filtered=0,
        rejects=dict(sorted(counts.items())),
        source=SourceSummary(kind="table", digest="0" * 64),
        config_digest="0" * 64,
    )
    (version / "manifest.json").write_bytes(manifest.to_bytes())
    if private is not None:
        write_build_info(version, {**FACTS, "private": private})
    return version


def write_shard(path: Path, samples: Iterable[tuple[str, Members]]) -> tuple[list[Span], str]:
    """A tar as the build writes it, with the spans of its samples and its BLAKE3."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ShardWriter(path) as writer:
        return [writer.add(key, members) for key, members in samples], writer.finish()


def _write_split(
    version: Path, split: str, samples: Sequence[tuple[str, Members]], shard: int
) -> list[ShardRecord]:
    made = []
    index = np.zeros(len(samples), INDEX)
    for number, start in enumerate(range(0, len(samples), shard)):
        some = samples[start : start + shard]
        name = shard_name(split, number)
        spans, blake3 = write_shard(version / name, some)
        index[start : start + shard] = [(number, *span) for span in spans]
        size = (version / name).stat().st_size
        made.append(ShardRecord(name, split, blake3, size, len(some), input_digest="0" * 64))
    path = version / index_name(split)
    path.parent.mkdir(exist_ok=True)
    np.save(path, index)
    return made
