"""A version's folder from converted shards: numbered, linked, indexed, described, then renamed into place.

Shards are hard links, so a version that shares most of its shards with the one before costs only their
names. The folder grows under a hidden name and gets its own name last, when all of it is on disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.errors import DataError
from tasks.core.files import digest, fsync_directory, write_atomic, write_json
from tasks.core.schema import Config
from tasks.dataset import fingerprint, rejects
from tasks.dataset.freshness import BUILD, recorded
from tasks.dataset.leaves import Leaf
from tasks.dataset.listing import Listing, Rejected
from tasks.dataset.manifest import (
    Manifest,
    SourceSummary,
    SplitSummary,
    content_digest,
)
from tasks.dataset.placement import move_into_place
from tasks.dataset.reuse import INPUTS, Known
from tasks.dataset.samples import MODALITIES
from tasks.dataset.shards import INDEX, index_path, shard_name
from tasks.dataset.sidecar import accepted, first
from tasks.dataset.tables import write_table

DRAFT = ".draft"

SHARDS = pa.schema(
    [
        ("name", pa.string()),
        ("split", pa.string()),
        ("sha256", pa.string()),
        ("bytes", pa.int64()),
        ("samples", pa.int64()),
        ("input_digest", pa.string()),
    ]
)


@dataclass
class _Draft:
    """What has been written so far."""

    folder: Path
    modality: str
    config_digest: str
    shards: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    contents: list[str] = field(default_factory=list)


def assemble(
    config: Config, listing: Listing, leaves: Sequence[tuple[Leaf, Known]], facts: dict[str, Any]
) -> tuple[Path, Manifest]:
    """Write the version's folder and return it with its manifest; `facts` go into build.json.

    DataError when no sample was accepted. A folder of the same name that has its tars keeps them, and gets
    every other file that differs; one that has lost a tar is replaced.
    """
    dataset = config.dataset
    rejected = rejects.collect(listing, ((leaf, known.table) for leaf, known in leaves))
    if all(known.tar is None for _, known in leaves):
        raise DataError(
            f"none of {listing.read:,} samples is left: {listing.filtered:,} filtered, "
            f"{len(rejected):,} rejected; loosen dataset.filter or mend the source"
        )
    folder = dataset.output / "versions" / DRAFT
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    draft = _Draft(folder, dataset.modality, fingerprint.config_digest(dataset))
    for split, members in groupby(leaves, key=lambda pair: pair[0].split):
        _write_split(draft, split, list(members))
    manifest = _manifest(config, listing, draft, rejected)
    write_table(folder / "shards.parquet", pa.Table.from_pylist(draft.shards, SHARDS))
    write_table(folder / "rejects.parquet", rejects.to_table(rejected))
    write_table(folder / INPUTS, pa.concat_tables(draft.inputs))
    write_atomic(folder / "manifest.json", manifest.to_bytes())
    write_json(folder / BUILD, {**facts, "files": recorded(folder)})
    for below in [entry for entry in folder.iterdir() if entry.is_dir()]:
        fsync_directory(below)
    fsync_directory(folder)
    return move_into_place(folder, manifest), manifest


def _write_split(draft: _Draft, split: str, leaves: list[tuple[Leaf, Known]]) -> None:
    """Link and index the split's shards, numbered from 0 without gaps."""
    shards: list[Any] = []
    for _, known in leaves:
        number = len(shards)
        name = None if known.tar is None else shard_name(split, number)
        draft.inputs.append(_with_tar(known.table, name))
        if name is None or known.tar is None:
            continue
        (draft.folder / split).mkdir(exist_ok=True)
        os.link(known.tar, draft.folder / name)
        table = accepted(known.table)
        shards.append(table)
        draft.shards.append(_shard_row(draft, name, split, table))
        draft.contents += _content_lines(table)
    if not shards:
        return
    samples = pa.concat_tables(shards)
    _write_index(draft.folder, split, shards)
    _write_samples(draft, split, samples, shards)
    write_json(
        draft.folder / split / "sizes.json",
        {f"{number:06d}.tar": table.num_rows for number, table in enumerate(shards)},
    )
    size_bytes = sum(first(table, "bytes") for table in shards)
    draft.splits[split] = SplitSummary(shards=len(shards), samples=samples.num_rows, bytes=size_bytes)


def _with_tar(table: Any, name: str | None) -> Any:
    column = pa.array([name] * table.num_rows, pa.string())
    return table.set_column(table.schema.get_field_index("tar"), "tar", column)


def _shard_row(draft: _Draft, name: str, split: str, table: Any) -> dict[str, Any]:
    return {
        "name": name,
        "split": split,
        "sha256": first(table, "sha256"),
        "bytes": first(table, "bytes"),
        "samples": table.num_rows,
        "input_digest": digest([draft.config_digest, *_content_lines(table)]),
    }


def _content_lines(table: Any) -> list[str]:
    keys = table.column("key").to_pylist()
    contents = table.column("content").to_pylist()
    return [f"{key} {content.hex()}" for key, content in zip(keys, contents, strict=True)]


def _write_index(folder: Path, split: str, shards: list[Any]) -> None:
    index = np.empty(sum(table.num_rows for table in shards), INDEX)
    index["shard"] = np.repeat(np.arange(len(shards)), [table.num_rows for table in shards])
    for column in ("offset", "length", "crc32c"):
        index[column] = np.concatenate([table.column(column).to_numpy() for table in shards])
    path = index_path(folder, split)
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        np.save(file, index)
        file.flush()
        os.fsync(file.fileno())


def _write_samples(draft: _Draft, split: str, samples: Any, shards: list[Any]) -> None:
    """`shard` is the shard's number in the split, `row` the sample's row in the split's index."""
    numbers = np.repeat(np.arange(len(shards), dtype=np.uint32), [table.num_rows for table in shards])
    columns = {
        "key": samples.column("key"),
        "original_key": samples.column("original_key"),
        "shard": pa.array(numbers),
        "row": pa.array(np.arange(samples.num_rows, dtype=np.uint64)),
        "group": samples.column("group"),
        **{name: samples.column(name) for name in MODALITIES[draft.modality].statistics},
    }
    folder = draft.folder / "samples"
    folder.mkdir(exist_ok=True)
    write_table(folder / f"{split}.parquet", pa.table(columns))


def _manifest(config: Config, listing: Listing, draft: _Draft, rejected: Sequence[Rejected]) -> Manifest:
    counts: dict[str, int] = {}
    for reject in rejected:
        counts[reject.reason] = counts.get(reject.reason, 0) + 1
    content = hashlib.sha256("\n".join(sorted(draft.contents)).encode()).hexdigest()
    return Manifest(
        format="tarmac/1",
        name=config.name,
        modality=draft.modality,
        digest=content_digest((shard["name"], shard["sha256"]) for shard in draft.shards),
        splits=draft.splits,
        read=listing.read,
        accepted=sum(split.samples for split in draft.splits.values()),
        filtered=listing.filtered,
        rejects=dict(sorted(counts.items())),
        source=SourceSummary(kind=config.dataset.all_sources[0].kind, digest=content),
        config_digest=draft.config_digest,
    )
