"""Assembles converted shards into a version's folder: it numbers, links, indexes and describes them, then
renames the folder into place.

Shards are hard links, so a version that shares most of its shards with the previous one costs only their
names; a file that cannot be linked is copied. The folder grows next to the staged shards while later ones are
still being converted, and gets its final name only when all of it is on disk. Memory holds the tables of one
shard at a time.

A repair uses the same steps: `draft_version` writes every table from the sidecars in `inputs.arrow`, with or
without the tars, and `describe` adds the rejects and the manifest.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from tasks.dataset.building.conversion.sidecar import accepted, first, schema, statistics_schema
from tasks.dataset.building.fingerprint import config_digest
from tasks.dataset.building.listed.catalogue import RejectedSample
from tasks.dataset.version.build_info import names_beside_tars, write_build_info
from tasks.dataset.version.card import card
from tasks.dataset.version.index import IndexWriter
from tasks.dataset.version.layout import (
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
from tasks.dataset.version.manifest import Manifest, SourceSummary, SplitSummary, content_digest, version_name
from tasks.dataset.version.tables import (
    REJECTS_SCHEMA,
    SHARDS_SCHEMA,
    BatchWriter,
    TableWriter,
    samples_schema,
)

DRAFT = "draft"
BLAKE3_RANGE = 1 << 256
AT_ONCE = 1000
"""Rejects per write."""
UNLINKABLE = (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)
"""Errors where a file belongs to another user, lies on another file system or has too many links: it is
copied instead."""


@dataclass(frozen=True)
class DraftShard:
    """A converted shard: its split, its sidecar and, if it has one, the tar to link."""

    split: str
    sidecar: Any
    tar: Path | None


@dataclass
class Draft:
    """A version's folder that is being written."""

    folder: Path
    modality: str
    config_digest: str
    inputs: BatchWriter
    shards: TableWriter
    seals: list[tuple[str, str]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    """The shards that come from the staging folder, not from an earlier version."""
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    """The suffixes that members of any sample have."""
    content: int = 0
    """The sum of the BLAKE3 digests of all samples' lines, modulo 2^256, which does not depend on their
    order."""


def draft_version(config: Config, shards: Iterable[DraftShard], staging: Path) -> Draft:
    """Write the shards into a draft in the folder `staging` as they arrive: split by split, in order."""
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
    rejects: Iterator[RejectedSample],
    passed_over: Mapping[str, int],
) -> Manifest:
    """Add the table of rejects, the manifest and the card to the draft. `filtered` counts the samples that
    the user's filter leaves out, `passed_over` the files by kind that hold no samples."""
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
    """Seal the draft, with `facts` in its build.json, make it a version of the folder `dataset`, and return
    its path.

    If the version exists already, a run may be reading it: files that equal the draft's stay untouched, and
    those that differ or are missing are replaced. UsageError if the two folders lie on different file
    systems.
    """
    write_build_info(draft.folder, facts)
    for folder in [*(entry for entry in draft.folder.iterdir() if entry.is_dir()), draft.folder]:
        fsync_path(folder)
    (dataset / VERSIONS).mkdir(exist_ok=True)
    version = dataset / VERSIONS / version_name(manifest.to_bytes())
    try:
        if version.exists():
            _refresh(draft.folder, version)
            shutil.rmtree(draft.folder)
        else:
            os.rename(draft.folder, version)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise UsageError(
            f"dataset.output: {version.parent} lies on another file system than {draft.folder.parent}, and a "
            "rename cannot cross file systems; make the dataset's whole folder a link, not versions in it"
        ) from None
    fsync_path(version.parent)
    return version


def write_rejects(path: Path, rejects: Iterator[RejectedSample]) -> dict[str, int]:
    """Write the table of rejects, in the sources' order, and return their count by reason."""
    reasons: Counter[str] = Counter()
    with TableWriter(path, REJECTS_SCHEMA) as writer:
        while some := list(islice(rejects, AT_ONCE)):
            columns = {name: [getattr(one, name) for one in some] for name in REJECTS_SCHEMA.names}
            writer.write(pa.table(columns, REJECTS_SCHEMA))
            reasons.update(columns["reason"])
    return dict(sorted(reasons.items()))


def _write_split(draft: Draft, split: str, shards: Iterable[DraftShard]) -> None:
    """Link and index the split's shards, numbered from 0 without gaps; an empty split leaves no files."""
    sizes: list[int] = []
    size_bytes = 0
    with ExitStack() as stack:
        for shard in shards:
            number = len(sizes)
            seal = first(shard.sidecar, "blake3")
            name = None if seal is None else shard_name(split, number)
            tar_column = shard.sidecar.schema.get_field_index("tar")
            tar_names = pa.array([name] * shard.sidecar.num_rows, pa.string())
            draft.inputs.write(shard.sidecar.set_column(tar_column, "tar", tar_names))
            if name is None:
                continue  # every sample of this shard was rejected
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
            contents = zip(*(table.column(name).to_pylist() for name in ("key", "content")), strict=True)
            lines = [f"{key} {content.hex()}" for key, content in contents]
            draft.content += sum(int.from_bytes(blake3(line.encode()).digest(), "big") for line in lines)
            row = {
                "name": name,
                "split": split,
                "blake3": seal,
                "bytes": first(table, "bytes"),
                "samples": table.num_rows,
                "input_digest": digest([draft.config_digest, *lines]),
            }
            draft.shards.write(pa.Table.from_pylist([row], SHARDS_SCHEMA))
            draft.seals.append((name, seal))
            sizes.append(table.num_rows)
            size_bytes += row["bytes"]
    if sizes:
        named = {Path(shard_name(split, number)).name: samples for number, samples in enumerate(sizes)}
        write_json(draft.folder / sizes_name(split), named)
        draft.splits[split] = SplitSummary(shards=len(sizes), samples=sum(sizes), bytes=size_bytes)


def _open_tables(draft: Draft, split: str, stack: ExitStack) -> tuple[IndexWriter, TableWriter]:
    """Open the split's index and its table of samples. Both are complete and on disk once the stack closes
    without an error."""
    index, samples = draft.folder / index_name(split), draft.folder / samples_name(split)
    for path in (index, samples, draft.folder / sizes_name(split)):
        path.parent.mkdir(exist_ok=True)
    columns = samples_schema(statistics_schema(draft.modality))
    return stack.enter_context(IndexWriter(index)), stack.enter_context(TableWriter(samples, columns))


def _samples_rows(table: Any, number: int, row: int, modality: str) -> Any:
    """Return the `samples/` rows of shard `number`, whose first sample is number `row` of the split."""
    count, statistics = table.num_rows, statistics_schema(modality)
    columns = {name: table.column(name) for name in ("key", "original_key", "group", "source", *statistics)}
    columns["shard"] = pa.array(np.full(count, number, np.uint32))
    columns["row"] = pa.array(np.arange(row, row + count, dtype=np.uint64))
    return pa.table(columns, samples_schema(statistics))


def _link(tar: Path, name: Path) -> None:
    """Link the tar, or copy it. A copy that is interrupted is made again with the whole draft."""
    try:
        os.link(tar, name)
    except OSError as error:
        if error.errno not in UNLINKABLE:
            raise
        shutil.copyfile(tar, name)
        fsync_path(name)


def _refresh(draft: Path, version: Path) -> None:
    """Replace every file that differs from the draft's, because it is damaged or missing, was converted
    again, or holds places or times.

    build.json, the record of all files, goes last, so a refresh that is killed does not count as done.
    """
    tars = [str(tar.relative_to(draft)) for tar in draft.glob("*/*.tar")]
    for tar in version.glob(f"*/{'[0-9]' * 6}.tar"):
        if not (draft / tar.relative_to(version)).exists():
            tar.unlink()  # for example a tar under another one's number
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
