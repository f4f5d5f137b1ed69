"""One planned shard from raw files to a tar: idempotent, in a worker process of its own.

The tar is written to a temporary name and renamed, then its sidecar likewise; a shard with a whole sidecar
and a tar of the right size is done. So a build that is killed at any moment loses at most the shards in hand,
and one whose machine crashes those that were not flushed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from tasks.core.errors import TarmacError
from tasks.core.files import digest, disk_full_as_error, write_atomic
from tasks.core.schema import Dataset
from tasks.dataset.build.catalogue import NAME, Leaf, reading
from tasks.dataset.build.entries import Entry
from tasks.dataset.build.fingerprint import members_digest
from tasks.dataset.build.listing import SPILL
from tasks.dataset.build.rules import rules_of
from tasks.dataset.build.sidecar import (
    Outcome,
    columns_of,
    counted_reasons,
    first,
    holds_transient,
    sidecar,
)
from tasks.dataset.build.spill import read_spilled
from tasks.dataset.rejects import TRANSIENT, Reject, printable
from tasks.dataset.modalities import MODALITIES, Modality
from tasks.dataset.sources import Absent, Source, of_files, open_sources
from tasks.dataset.tables import Batches, write_batch
from tasks.dataset.tar.writer import Members, ShardWriter

RULES = "dataset.json"
"""The config's dataset block, in the staging folder, where workers on any machine find it."""
SUFFIXES = (".tar", ".arrow")
"""Of a staged shard and its sidecar."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Conversion:
    """One leaf of the catalogue in the folder `staging` that is to become a shard there, by the rules in that
    folder, whose digest is `rules`."""

    staging: Path
    rules: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Converted:
    """How many samples of a shard were looked at, and the rejects among them by reason."""

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
            with disk_full_as_error(task.staging):
                table = _write(converter(task.staging, task.rules), leaf, catalogue.entries(leaf))
    return Converted(table.num_rows, counted_reasons(table))


def staged(staging: Path, leaf: str) -> Any | None:
    """The sidecar of a shard that is done; None when it has to be done."""
    try:
        table = Batches(sidecar_path(staging, leaf))[0]
    except (OSError, pa.ArrowException, ValueError):
        return None
    if first(table, "blake3") is None:
        return table
    tar = tar_path(staging, leaf)
    return table if tar.exists() and tar.stat().st_size == first(table, "bytes") else None


@dataclass(frozen=True)
class Converter:
    """Takes raw samples as the dataset's rules say."""

    dataset: Dataset
    sources: Sequence[Source]
    modality: Modality
    staging: Path

    def raw(self, entry: Entry) -> Members:
        """The sample's raw members; Reject when they cannot be had."""
        if entry.spilled is not None:
            return read_spilled(self.staging / SPILL, entry.spilled)
        source = of_files(self.sources[entry.source])
        try:
            return source.read(entry.file, entry.content)
        except Absent:
            if entry.size >= 0:
                raise Reject(TRANSIENT, "was there when it was listed") from None
            raise

    def convert(self, writer: ShardWriter, entries: Iterable[Entry]) -> list[Outcome]:
        """Append what can be taken to the tar; what became of each."""
        return [self._convert(writer, entry) for entry in entries]

    def _convert(self, writer: ShardWriter, entry: Entry) -> Outcome:
        content = None
        try:
            raw = self.raw(entry)
            content = content_digest(entry, raw)
            taken = self.modality.take(raw, self.dataset)
            span = writer.add(entry.key, taken.members)
        except Reject as reject:
            return Outcome(entry, None, content, {}, reject)
        except MemoryError:
            raise TarmacError(
                f"{printable(entry.place)}: there is not enough memory on this machine to convert it; give "
                "engine.build.workers a smaller number, or dataset.image.max_pixels one that refuses it"
            ) from None
        except (OSError, TarmacError):
            raise  # of this host, or of the source as a whole
        except Exception as error:  # noqa: BLE001 - decoders are fed hostile bytes: one sample, never the build
            detail = _ADDRESS.sub("", f"{type(error).__name__}: {error}")[:200]
            return Outcome(entry, None, content, {}, Reject(self.modality.undecodable, detail))
        return Outcome(entry, span, content, taken.statistics, None)


@lru_cache(maxsize=1)
def converter(staging: Path, rules: str) -> Converter:
    """What converts by the rules in `staging`; TarmacError when those there have another digest, as a shared
    file system may show them to another machine for some seconds."""
    content = (staging / RULES).read_bytes()
    if digest(content.decode()) != rules:
        raise TarmacError(f"{staging / RULES} is not up to date on this machine; build again")
    dataset = Dataset.model_validate_json(content)
    return Converter(dataset, open_sources(dataset), MODALITIES[dataset.modality], staging)


def write_rules(staging: Path, dataset: Dataset) -> str:
    """Write the rules for the workers; their digest."""
    content = json.dumps(rules_of(dataset), indent=2)
    write_atomic(staging / RULES, content)
    return digest(content)


def _write(work: Converter, leaf: Leaf, entries: Sequence[Entry]) -> Any:
    staging = work.staging
    modality = work.dataset.modality
    temporary = staging / f".{leaf.digest}.{uuid4().hex}"
    try:
        with ShardWriter(temporary) as writer:
            outcomes = work.convert(writer, entries)
            writer.end()
            columns = columns_of(modality, outcomes)  # while the last bytes are hashed
            blake3 = writer.finish()
        if writer.is_empty:
            table = sidecar(modality, leaf.digest, None, 0, columns)
        else:
            os.replace(temporary, tar_path(staging, leaf.digest))
            table = sidecar(modality, leaf.digest, blake3, writer.size_bytes, columns)
        write_batch(temporary, table)
        os.replace(temporary, sidecar_path(staging, leaf.digest))
    except BaseException:
        temporary.unlink(missing_ok=True)  # where the disk is full, it must not keep it so
        raise
    return table


def content_digest(entry: Entry, raw: Members) -> bytes:
    """Of the sample as it came: its original key and raw members, not times or places."""
    return bytes(members_digest(raw, entry.key, entry.original_key).digest())
