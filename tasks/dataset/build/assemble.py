"""A version's folder from converted shards: numbered, linked, indexed, described, then renamed into place.

Shards are hard links, so a version that shares most of its shards with the one before costs only their
names; where a file may not be linked it is copied. The folder grows beside the staged shards, while later
ones are still being converted, and gets its place and name last, when all of it is on disk. Nothing is held
of more than one shard.
"""

from __future__ import annotations

from blake3 import blake3

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.files import digest, fsync_path, write_atomic, write_json
from tasks.core.schema import Config
from tasks.dataset.layout import BUILD
from tasks.dataset.build_info import write_build_info
from tasks.dataset.build import fingerprint
from tasks.dataset.build import rejects
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.placement import move_into_place
from tasks.dataset.build.reuse import INPUTS
from tasks.dataset.build.sidecar import accepted, first, schema
from tasks.dataset.build.split_tables import SplitTables, split_tables
from tasks.dataset.manifest import (
    Manifest,
    SourceSummary,
    SplitSummary,
    content_digest,
)
from tasks.dataset.layout import shard_name
from tasks.dataset.tables import BatchWriter, TableWriter

DRAFT = "draft"
BLAKE3_RANGE = 1 << 256
UNLINKABLE = (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)
"""The system links no file of another user, across file systems, or more often than it can count."""

SHARDS = pa.schema(
    [
        ("name", pa.string()),
        ("split", pa.string()),
        ("blake3", pa.string()),
        ("bytes", pa.int64()),
        ("samples", pa.int64()),
        ("input_digest", pa.string()),
    ]
)


@dataclass(frozen=True)
class Shard:
    """A converted leaf: its split, its sidecar, and its tar unless every sample of it was rejected."""

    split: str
    sidecar: Any
    tar: Path | None


@dataclass
class Draft:
    """A version's folder so far."""

    folder: Path
    modality: str
    config_digest: str
    inputs: BatchWriter
    shards: TableWriter
    blake3: list[tuple[str, str]] = field(default_factory=list)
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    content: int = 0
    """Sum of the BLAKE3 of every sample's line, modulo 2^256: the same in any order of the samples."""


def begin(config: Config, shards: Iterable[Shard], staging: Path) -> Draft:
    """Write the shards, as they come, into a draft in the folder `staging`: split by split, in order."""
    folder = staging / DRAFT
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    modality = config.dataset.modality
    with (
        BatchWriter(folder / INPUTS, schema(modality)) as inputs,
        TableWriter(folder / "shards.parquet", SHARDS) as table,
    ):
        draft = Draft(folder, modality, fingerprint.config_digest(config.dataset), inputs, table)
        for split, members in groupby(shards, key=lambda shard: shard.split):
            _write_split(draft, split, members)
    return draft


def complete(
    draft: Draft, config: Config, catalogue: Catalogue, facts: dict[str, Any], dataset: Path
) -> tuple[Path, Manifest]:
    """Make the draft a version of the folder `dataset` and return it with its manifest.

    The catalogue knows all rejects; `facts` go into build.json. A folder of the same name that has its tars
    keeps them, and gets every other file that differs; one that has lost a tar is replaced.
    """
    folder = draft.folder
    manifest = _manifest(config, catalogue, draft)
    rejects.write(folder / "rejects.parquet", catalogue.rejects())
    write_atomic(folder / "manifest.json", manifest.to_bytes())
    write_build_info(folder, facts)
    for below in [entry for entry in folder.iterdir() if entry.is_dir()]:
        fsync_path(below)
    fsync_path(folder)
    return move_into_place(folder, dataset / "versions", manifest), manifest


def _write_split(draft: Draft, split: str, shards: Iterable[Shard]) -> None:
    """Link and index the split's shards, numbered from 0 without gaps; one without any leaves no trace."""
    sizes: list[int] = []
    size_bytes = 0
    with ExitStack() as stack:
        tables: SplitTables | None = None
        for shard in shards:
            number = len(sizes)
            name = None if shard.tar is None else shard_name(split, number)
            draft.inputs.write(_with_tar(shard.sidecar, name))
            if name is None or shard.tar is None:
                continue
            if tables is None:
                (draft.folder / split).mkdir()
                tables = stack.enter_context(split_tables(draft.folder, split, draft.modality))
            _link(shard.tar, draft.folder / name)
            table = accepted(shard.sidecar)
            tables.write(number, table)
            lines = list(_content_lines(table))
            draft.content += sum(_number(line) for line in lines)
            draft.shards.write(_shard_row(draft, name, split, table, lines))
            draft.blake3.append((name, first(table, "blake3")))
            sizes.append(table.num_rows)
            size_bytes += first(table, "bytes")
    if sizes:
        named = {f"{number:06d}.tar": samples for number, samples in enumerate(sizes)}
        write_json(draft.folder / split / "sizes.json", named)
        draft.splits[split] = SplitSummary(shards=len(sizes), samples=sum(sizes), bytes=size_bytes)


def _link(tar: Path, name: Path) -> None:
    """A copy is as good, and is made again with the whole draft if it is broken off."""
    try:
        os.link(tar, name)
    except OSError as error:
        if error.errno not in UNLINKABLE:
            raise
        shutil.copyfile(tar, name)
        fsync_path(name)


def _with_tar(table: Any, name: str | None) -> Any:
    column = pa.array([name] * table.num_rows, pa.string())
    return table.set_column(table.schema.get_field_index("tar"), "tar", column)


def _shard_row(draft: Draft, name: str, split: str, table: Any, lines: Sequence[str]) -> Any:
    row = {
        "name": name,
        "split": split,
        "blake3": first(table, "blake3"),
        "bytes": first(table, "bytes"),
        "samples": table.num_rows,
        "input_digest": digest([draft.config_digest, *lines]),
    }
    return pa.Table.from_pylist([row], SHARDS)


def _content_lines(table: Any) -> Iterator[str]:
    keys = table.column("key").to_pylist()
    contents = table.column("content").to_pylist()
    return (f"{key} {content.hex()}" for key, content in zip(keys, contents, strict=True))


def _number(line: str) -> int:
    return int.from_bytes(blake3(line.encode()).digest(), "big")


def _manifest(config: Config, catalogue: Catalogue, draft: Draft) -> Manifest:
    return Manifest(
        format="tarmac/1",
        name=config.name,
        modality=draft.modality,
        digest=content_digest(draft.blake3),
        splits=draft.splits,
        read=catalogue.read,
        accepted=sum(split.samples for split in draft.splits.values()),
        filtered=catalogue.filtered,
        rejects=catalogue.reasons(),
        source=SourceSummary(
            kind=config.dataset.all_sources[0].kind, digest=f"{draft.content % BLAKE3_RANGE:064x}"
        ),
        config_digest=draft.config_digest,
    )
