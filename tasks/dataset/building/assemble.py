"""A version's folder from converted shards: numbered, linked, indexed, described, then renamed into place.

Shards are hard links, so a version that shares most of its shards with the one before costs only their
names; where a file may not be linked it is copied. The folder grows beside the staged shards, while later
ones are still being converted, and gets its place and name last, when all of it is on disk. Nothing is held
of more than one shard.

A repair uses the same steps: `draft_version` makes every table from the sidecars of `inputs.arrow`, without a
tar where a shard has none to give, and `describe` adds rejects and manifest.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from tasks.core.errors import UsageError
from tasks.core.files import digest, fsync_path, write_atomic, write_json
from tasks.core.schema import Config
from tasks.dataset.build_info import names_beside_tars, write_build_info
from tasks.dataset.building.catalogue import Rejected
from tasks.dataset.building.fingerprint import config_digest
from tasks.dataset.building.sidecar import accepted, first, schema, statistics_schema
from tasks.dataset.card import card
from tasks.dataset.index import IndexWriter
from tasks.dataset.layout import (
    BUILD,
    CARD,
    INPUTS,
    MANIFEST,
    REJECTS,
    SHARDS,
    VERSIONS,
    index_name,
    samples_name,
    shard_name,
    sizes_name,
)
from tasks.dataset.manifest import Manifest, SourceSummary, SplitSummary, content_digest, version_name
from tasks.dataset.tables import REJECTS_SCHEMA, SHARDS_SCHEMA, BatchWriter, TableWriter, samples_schema

DRAFT = "draft"
BLAKE3_RANGE = 1 << 256
AT_ONCE = 1000
"""Rejects between two writes."""
UNLINKABLE = (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)
"""The system links no file of another user, across file systems, or more often than it can count."""


@dataclass(frozen=True)
class DraftShard:
    """A converted shard: its split, its sidecar, and its tar to be linked, if there is one."""

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
    seals: list[tuple[str, str]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    """The shards that come out of the staging folder, not out of an earlier version."""
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    """The names of all members of all samples."""
    content: int = 0
    """Sum of the BLAKE3 of every sample's line, modulo 2^256: the same in any order of the samples."""


def draft_version(config: Config, shards: Iterable[DraftShard], staging: Path) -> Draft:
    """Write the shards, as they come, into a draft in the folder `staging`: split by split, in order."""
    folder = staging / DRAFT
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    modality = config.dataset.modality
    with (
        BatchWriter(folder / INPUTS, schema(modality)) as inputs,
        TableWriter(folder / SHARDS, SHARDS_SCHEMA) as table,
    ):
        draft = Draft(folder, modality, config_digest(config.dataset), inputs, table)
        for split, members in groupby(shards, key=lambda shard: shard.split):
            _write_split(draft, split, members)
    return draft


def describe(
    draft: Draft,
    config: Config,
    filtered: int,
    rejects: Iterator[Rejected],
    passed_over: Mapping[str, int],
) -> Manifest:
    """Add the table of rejects, the manifest and the card to the draft; `filtered` samples the user's filter
    left out, and the files `passed_over` were read as nothing."""
    reasons = write_rejects(draft.folder / REJECTS, rejects)
    accepted = sum(split.samples for split in draft.splits.values())
    manifest = Manifest(
        format="tarmac/1",
        name=config.name,
        modality=draft.modality,
        digest=content_digest(draft.seals),
        splits=draft.splits,
        read=accepted + filtered + sum(reasons.values()),
        accepted=accepted,
        filtered=filtered,
        rejects=reasons,
        source=SourceSummary(
            kind=config.dataset.all_sources[0].kind, digest=f"{draft.content % BLAKE3_RANGE:064x}"
        ),
        config_digest=draft.config_digest,
        passed_over=dict(passed_over),
    )
    write_atomic(draft.folder / MANIFEST, manifest.to_bytes())
    write_atomic(draft.folder / CARD, card(manifest, draft.members, config.dataset.license))
    return manifest


def install(draft: Draft, manifest: Manifest, facts: Mapping[str, Any], dataset: Path) -> Path:
    """Seal the draft, with `facts` in its build.json, and make it a version of the folder `dataset`; its
    path.

    A folder of the same name keeps every file that is as the draft's, because a run may be reading it, and
    gets those that differ or are lost. UsageError where both lie on different file systems.
    """
    write_build_info(draft.folder, facts)
    for below in [entry for entry in draft.folder.iterdir() if entry.is_dir()]:
        fsync_path(below)
    fsync_path(draft.folder)
    (dataset / VERSIONS).mkdir(exist_ok=True)
    version = dataset / VERSIONS / version_name(manifest.to_bytes())
    with _other_disk_as_error(draft.folder, version.parent):
        if version.exists():
            _refresh(draft.folder, version)
            shutil.rmtree(draft.folder)
        else:
            os.rename(draft.folder, version)
    fsync_path(version.parent)
    return version


def write_rejects(path: Path, rejects: Iterator[Rejected]) -> dict[str, int]:
    """Write the table of rejects, in the sources' order; how many there are by reason."""
    reasons: Counter[str] = Counter()
    with TableWriter(path, REJECTS_SCHEMA) as writer:
        while some := list(islice(rejects, AT_ONCE)):
            columns = {name: [getattr(one, name) for one in some] for name in REJECTS_SCHEMA.names}
            writer.write(pa.table(columns, REJECTS_SCHEMA))
            reasons.update(columns["reason"])
    return dict(sorted(reasons.items()))


def _write_split(draft: Draft, split: str, shards: Iterable[DraftShard]) -> None:
    """Link and index the split's shards, numbered from 0 without gaps; one without any leaves no trace."""
    sizes: list[int] = []
    size_bytes = 0
    with ExitStack() as stack:
        for shard in shards:
            number = len(sizes)
            seal = first(shard.sidecar, "blake3")
            name = None if seal is None else shard_name(split, number)
            draft.inputs.write(_with_tar(shard.sidecar, name))
            if name is None:
                continue  # every sample of it was rejected
            if not sizes:
                index, samples = _open_tables(draft, split, stack)
            if shard.tar is not None:
                _link(shard.tar, draft.folder / name)
                if shard.tar.parent == draft.folder.parent:
                    draft.written.append(name)
            table = accepted(shard.sidecar)
            draft.members.update(*map(str.split, table.column("members").unique().to_pylist()))
            samples.write(_samples_rows(table, number, index.rows, draft.modality))
            index.write(number, *(table.column(name).to_numpy() for name in ("offset", "length", "crc32c")))
            lines = list(_content_lines(table))
            draft.content += sum(_number(line) for line in lines)
            draft.shards.write(_shard_row(draft, name, split, table, lines))
            draft.seals.append((name, seal))
            sizes.append(table.num_rows)
            size_bytes += first(table, "bytes")
    if sizes:
        named = {Path(shard_name(split, number)).name: samples for number, samples in enumerate(sizes)}
        write_json(draft.folder / sizes_name(split), named)
        draft.splits[split] = SplitSummary(shards=len(sizes), samples=sum(sizes), bytes=size_bytes)


def _open_tables(draft: Draft, split: str, stack: ExitStack) -> tuple[IndexWriter, TableWriter]:
    """What readers of a split seek by, and what is known of each sample; whole and on disk when the stack
    closes well."""
    index, samples = draft.folder / index_name(split), draft.folder / samples_name(split)
    for path in (index, samples, draft.folder / sizes_name(split)):
        path.parent.mkdir(exist_ok=True)
    columns = samples_schema(statistics_schema(draft.modality))
    return stack.enter_context(IndexWriter(index)), stack.enter_context(TableWriter(samples, columns))


def _samples_rows(table: Any, number: int, row: int, modality: str) -> Any:
    """The rows of `samples/` of shard `number`, whose first sample is number `row` of the split."""
    count = table.num_rows
    columns = {name: table.column(name) for name in ("key", "original_key", "group")}
    columns["shard"] = pa.array(np.full(count, number, np.uint32))
    columns["row"] = pa.array(np.arange(row, row + count, dtype=np.uint64))
    columns |= {name: table.column(name) for name in statistics_schema(modality)}
    return pa.table(columns, samples_schema(statistics_schema(modality)))


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
    return pa.Table.from_pylist([row], SHARDS_SCHEMA)


def _content_lines(table: Any) -> Iterator[str]:
    keys = table.column("key").to_pylist()
    contents = table.column("content").to_pylist()
    return (f"{key} {content.hex()}" for key, content in zip(keys, contents, strict=True))


def _number(line: str) -> int:
    return int.from_bytes(blake3(line.encode()).digest(), "big")


@contextlib.contextmanager
def _other_disk_as_error(draft: Path, versions_folder: Path) -> Iterator[None]:
    """Turn the error of a rename from one file system to another into a UsageError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise UsageError(
            f"dataset.output: {versions_folder} lies on another file system than {draft.parent}, which no "
            "rename can cross; make the dataset's folder a link, not versions in it"
        ) from None


def _refresh(draft: Path, version: Path) -> None:
    """Replace every file that differs from the draft's: damage, places in a table, times; a tar that was
    lost, or has other bytes because it was converted anew.

    The record of the files goes last, so a refresh that is killed does not count as done.
    """
    tars = [str(tar.relative_to(draft)) for tar in draft.glob("*/*.tar")]
    for tar in version.glob(f"*/{'[0-9]' * 6}.tar"):
        if not (draft / tar.relative_to(version)).exists():
            tar.unlink()  # such as one under the number of another
    names = [*tars, *names_beside_tars(draft), BUILD]
    for name in names:
        target = version / name
        if not _is_same_file(draft / name, target):
            target.parent.mkdir(exist_ok=True)
            os.replace(draft / name, target)
    for folder in {(version / name).parent for name in names} | {version}:
        fsync_path(folder)


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other) or filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
