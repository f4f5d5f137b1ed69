"""One planned shard from raw files to a tar: idempotent, in a worker process of its own.

The tar is written to a temporary name, flushed and renamed, then its sidecar likewise; a shard with a
sidecar is done. So a build that is killed at any moment loses at most the shards in hand.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.files import fsync_directory
from tasks.core.schema import Dataset
from tasks.dataset.leaves import Leaf
from tasks.dataset.listing import Entry
from tasks.dataset.reasons import Reject
from tasks.dataset.samples import MODALITIES, Modality
from tasks.dataset.sidecar import Outcome, first, holds_transient, sidecar
from tasks.dataset.sources import Source, open_sources
from tasks.dataset.tables import read_table, write_table
from tasks.dataset.tar import Members, ShardWriter

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Conversion:
    """One shard to be converted into the folder `staging`."""

    leaf: Leaf
    dataset: Dataset
    staging: Path


@dataclass(frozen=True)
class Converted:
    """How many samples of a shard were looked at, and the rejects among them by reason."""

    leaf: Leaf
    samples: int
    rejects: Mapping[str, int]


def tar_path(staging: Path, leaf: str) -> Path:
    return staging / f"{leaf}.tar"


def sidecar_path(staging: Path, leaf: str) -> Path:
    return staging / f"{leaf}.parquet"


def convert(task: Conversion) -> Converted:
    """Convert one shard, unless it is there already."""
    table = staged(task.staging, task.leaf.digest)
    if table is None or holds_transient(table):
        table = _write(task)
    reasons = Counter(reason for reason in table.column("reason").to_pylist() if reason is not None)
    return Converted(task.leaf, table.num_rows, dict(reasons))


def staged(staging: Path, leaf: str) -> Any | None:
    """The sidecar of a shard that is done; None when it has to be done."""
    try:
        table = read_table(sidecar_path(staging, leaf))
    except (OSError, pa.ArrowException):
        return None
    if first(table, "sha256") is None:
        return table
    tar = tar_path(staging, leaf)
    return table if tar.exists() and tar.stat().st_size == first(table, "bytes") else None


def _write(task: Conversion) -> Any:
    leaf = task.leaf
    modality = MODALITIES[task.dataset.modality]
    sources = open_sources(task.dataset)
    temporary = task.staging / f".{leaf.digest}.{os.getpid()}"
    with ShardWriter(temporary) as writer:
        outcomes = [
            _convert_sample(writer, entry, sources[entry.source], modality, task.dataset)
            for entry in leaf.entries
        ]
        sha256 = writer.finish()
    if writer.is_empty:
        temporary.unlink()
        table = sidecar(task.dataset.modality, leaf.digest, None, 0, outcomes)
    else:
        os.replace(temporary, tar_path(task.staging, leaf.digest))
        table = sidecar(task.dataset.modality, leaf.digest, sha256, writer.size_bytes, outcomes)
    write_table(temporary, table)
    fsync_directory(task.staging)
    os.replace(temporary, sidecar_path(task.staging, leaf.digest))
    return table


def _convert_sample(
    writer: ShardWriter, entry: Entry, source: Source, modality: Modality, dataset: Dataset
) -> Outcome:
    try:
        raw = source.read(entry.file, entry.content)
        taken = modality.take(raw, dataset.image)
    except Reject as reject:
        return Outcome(entry, None, None, {}, reject)
    except MemoryError:
        raise  # of this host, not of the sample
    except Exception as error:  # noqa: BLE001 - decoders are fed hostile bytes: one sample, never the build
        detail = _ADDRESS.sub("", f"{type(error).__name__}: {error}")[:200]
        return Outcome(entry, None, None, {}, Reject(modality.undecodable, detail))
    span = writer.add(entry.key, taken.members)
    return Outcome(entry, span, _content_digest(entry, raw), taken.statistics, None)


def _content_digest(entry: Entry, raw: Members) -> bytes:
    """Of the sample as it came: its original key and raw members, not times or places."""
    running = blake2b(f"{entry.key}\0{entry.original_key}".encode("utf-8", "surrogatepass"), digest_size=16)
    for suffix in sorted(raw):
        running.update(f"\0{suffix}\0{len(raw[suffix])}\0".encode())
        running.update(raw[suffix])
    return running.digest()
