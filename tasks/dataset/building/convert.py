"""One planned shard from raw files to a tar: idempotent, in a worker process of its own.

The tar is written to a temporary name, flushed and renamed, then its sidecar likewise; a shard with a
sidecar is done. So a build that is killed at any moment loses at most the shards in hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.errors import TarmacError
from tasks.core.files import fsync_directory, read_json, told_of_a_full_disk
from tasks.core.schema import Dataset
from tasks.dataset.building.catalogue import NAME, Leaf, reading
from tasks.dataset.building.entries import Entry
from tasks.dataset.building.listing import SPILL
from tasks.dataset.building.sidecar import Outcome, counted_reasons, first, holds_transient, sidecar
from tasks.dataset.building.spill import read_spilled
from tasks.dataset.reasons import Reject
from tasks.dataset.samples import MODALITIES, Modality
from tasks.dataset.sources import Source, open_sources
from tasks.dataset.tables import Batches, BatchWriter
from tasks.dataset.tar import Members, ShardWriter

RULES = "dataset.json"
"""The config's dataset block, in the staging folder, where workers on any machine find it."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Conversion:
    """One leaf of the catalogue in the folder `staging` that is to become a shard there."""

    staging: Path
    ordinal: int


@dataclass(frozen=True, slots=True)
class Converted:
    """How many samples of a shard were looked at, and the rejects among them by reason."""

    ordinal: int
    samples: int
    rejects: Mapping[str, int]


def tar_path(staging: Path, leaf: str) -> Path:
    return staging / f"{leaf}.tar"


def sidecar_path(staging: Path, leaf: str) -> Path:
    return staging / f"{leaf}.arrow"


def convert(task: Conversion) -> Converted:
    """Convert one shard, unless it is there already."""
    with reading(task.staging / NAME) as catalogue:
        leaf = catalogue.leaf(task.ordinal)
        table = staged(task.staging, leaf.digest)
        if table is None or holds_transient(table):
            with told_of_a_full_disk(task.staging):
                table = _write(task.staging, leaf, catalogue.entries(leaf))
    return Converted(task.ordinal, table.num_rows, counted_reasons(table))


def staged(staging: Path, leaf: str) -> Any | None:
    """The sidecar of a shard that is done; None when it has to be done."""
    try:
        table = Batches(sidecar_path(staging, leaf))[0]
    except (OSError, pa.ArrowException, ValueError):
        return None
    if first(table, "sha256") is None:
        return table
    tar = tar_path(staging, leaf)
    return table if tar.exists() and tar.stat().st_size == first(table, "bytes") else None


@dataclass(frozen=True)
class Converter:
    """Takes raw samples as the dataset's rules say."""

    dataset: Dataset
    sources: Sequence[Source]
    modality: Modality
    spill: Path

    def raw(self, entry: Entry) -> Members:
        """The sample's raw members; Reject when they cannot be had."""
        if entry.spilled is not None:
            return read_spilled(self.spill, entry.spilled)
        return self.sources[entry.source].read(entry.file, entry.content)

    def convert(self, writer: ShardWriter, entries: Iterable[Entry]) -> list[Outcome]:
        """Append what can be taken to the tar; what became of each."""
        return [self._convert(writer, entry) for entry in entries]

    def _convert(self, writer: ShardWriter, entry: Entry) -> Outcome:
        try:
            raw = self.raw(entry)
            taken = self.modality.take(raw, self.dataset)
        except Reject as reject:
            return Outcome(entry, None, None, {}, reject)
        except (MemoryError, TarmacError):
            raise  # of this host, or of the source as a whole
        except Exception as error:  # noqa: BLE001 - decoders are fed hostile bytes: one sample, never the build
            detail = _ADDRESS.sub("", f"{type(error).__name__}: {error}")[:200]
            return Outcome(entry, None, None, {}, Reject(self.modality.undecodable, detail))
        span = writer.add(entry.key, taken.members)
        return Outcome(entry, span, content_digest(entry, raw), taken.statistics, None)


@lru_cache(maxsize=1)
def converter(staging: Path, changed: int) -> Converter:
    """The converter of the build that works in `staging`; `changed` is the time of its rules file."""
    dataset = Dataset.model_validate(read_json(staging / RULES))
    modality = MODALITIES[dataset.modality]
    return Converter(dataset, open_sources(dataset), modality, staging / SPILL)


def converter_in(staging: Path) -> Converter:
    return converter(staging, (staging / RULES).stat().st_mtime_ns)


def _write(staging: Path, leaf: Leaf, entries: Sequence[Entry]) -> Any:
    work = converter_in(staging)
    temporary = staging / f".{leaf.digest}.{os.getpid()}"
    with ShardWriter(temporary) as writer:
        outcomes = work.convert(writer, entries)
        sha256 = writer.finish()
    modality = work.dataset.modality
    if writer.is_empty:
        temporary.unlink()
        table = sidecar(modality, leaf.digest, None, 0, outcomes)
    else:
        os.replace(temporary, tar_path(staging, leaf.digest))
        table = sidecar(modality, leaf.digest, sha256, writer.size_bytes, outcomes)
    with BatchWriter(temporary, table.schema) as batches:
        batches.write(table)
    fsync_directory(staging)
    os.replace(temporary, sidecar_path(staging, leaf.digest))
    return table


def content_digest(entry: Entry, raw: Members) -> bytes:
    """Of the sample as it came: its original key and raw members, not times or places."""
    running = blake2b(f"{entry.key}\0{entry.original_key}".encode("utf-8", "surrogatepass"), digest_size=16)
    for suffix in sorted(raw):
        running.update(f"\0{suffix}\0{len(raw[suffix])}\0".encode())
        running.update(raw[suffix])
    return running.digest()
