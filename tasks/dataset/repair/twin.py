"""A twin of the version, in a dataset of its own; having its name, it has its content, file by file.

`from_tables` assembles it from `inputs.arrow`, which says all that the other tables say; it reads no sample.
`from_source` builds it as `tarmac build` would, for what no table repeats: `inputs.arrow` itself, rejects.
Neither opens a tar of the version.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.core.screen import Progress
from tasks.dataset.build import assemble
from tasks.dataset.build.catalogue import Rejected
from tasks.dataset.build.run import build
from tasks.dataset.build.sidecar import first
from tasks.dataset.layout import INPUTS
from tasks.dataset.manifest import Manifest, version_name
from tasks.dataset.repair.install import is_file
from tasks.dataset.repair.origin import Origin
from tasks.dataset.repair.place import Place
from tasks.dataset.tables import Batches

REJECTS = "rejects.parquet"
NEIGHBOUR = "0" * 12
"""Under this name the build finds the version's own shards, which need not be converted."""
LINKS = 1000
"""Names an empty file may have; file systems know a maximum."""


def from_tables(place: Place, origin: Origin, manifest: Manifest | None, has_rejects: bool) -> Path:
    """The twin's folder; any exception that damaged tables lead to. Its tars are empty.

    `has_rejects` says that the table of rejects is sound; without it, and a manifest, nothing tells them.
    """
    told = _Told.of(place, origin, manifest, has_rejects)
    shutil.rmtree(place.again, ignore_errors=True)
    place.again.mkdir(parents=True)
    assert origin.config is not None
    draft = assemble.draft_version(origin.config, _shards(place), place.again)
    account = assemble.Account(told.read, told.filtered, told.counts)
    again = assemble.describe(draft, origin.config, account, told.rejects())
    version = place.again / "versions" / version_name(again.to_bytes())
    version.parent.mkdir(exist_ok=True)
    os.rename(draft.folder, version)
    return version


def from_source(place: Place, origin: Origin, has_inputs: bool, progress: Progress) -> Path:
    """The twin's folder; TarmacError as a build raises it. With `has_inputs` shards are taken over that are
    made of the same samples as before, whatever their bytes; without it nothing is, of any version."""
    neighbour = place.again / "versions" / NEIGHBOUR
    shutil.rmtree(neighbour if has_inputs else neighbour.parent, ignore_errors=True)
    if has_inputs:
        for path in [place.version / INPUTS, *place.version.glob("*/*.tar")]:
            target = neighbour / path.relative_to(place.version)
            target.parent.mkdir(parents=True, exist_ok=True)
            if is_file(path):
                os.link(path, target)
    assert origin.config is not None
    changes = {"output": place.again, "mirror": None}
    dataset = origin.dataset.model_copy(update=changes)
    return build(origin.config.model_copy(update={"dataset": dataset}), progress).version


@dataclass(frozen=True)
class _Told:
    """What a build's catalogue tells a draft, out of tables."""

    read: int
    filtered: int
    counts: Mapping[str, int]
    table: Path | None

    @classmethod
    def of(cls, place: Place, origin: Origin, manifest: Manifest | None, has_rejects: bool) -> _Told:
        table = place.version / REJECTS if has_rejects else None
        if manifest is not None:
            return cls(manifest.read, manifest.filtered, manifest.rejects, table)
        if table is None:
            raise ValueError("neither the manifest nor the table of rejects tells the rejects")
        counts = Counter(row["reason"] for row in _rows(table))
        filtered = int(origin.build["filtered"])
        return cls(
            _accepted(place) + filtered + counts.total(), filtered, dict(sorted(counts.items())), table
        )

    def rejects(self) -> Iterator[Rejected]:
        rows = [] if self.table is None else _rows(self.table)
        return (Rejected(number, **row) for number, row in enumerate(rows))


def _rows(table: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(table, page_checksum_verification=True) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _accepted(place: Place) -> int:
    batches = Batches(place.version / INPUTS, ("reason",))
    return sum(batches[number].column("reason").null_count for number in range(len(batches)))


def _shards(place: Place) -> Iterator[assemble.Shard]:
    """Every shard as inputs.arrow has it. One of which every sample was rejected goes with the one before."""
    batches = Batches(place.version / INPUTS)
    names = _names(place)
    split = next((name.partition("/")[0] for name in names if name is not None), "")
    for number, name in enumerate(names):
        if name is not None:
            split = name.partition("/")[0]
        yield assemble.Shard(split, batches[number], None if name is None else _empty(place, number))


def _names(place: Place) -> list[str | None]:
    batches = Batches(place.version / INPUTS, ("tar",))
    return [first(batches[number], "tar") for number in range(len(batches))]


def _empty(place: Place, number: int) -> Path:
    path = place.again / f"empty.{number // LINKS}"
    path.touch()
    return path
