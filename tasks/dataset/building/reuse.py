"""Shards that an earlier version has converted already, found by what they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.dataset import layout, versions
from tasks.dataset.building.catalogue import Catalogue
from tasks.dataset.building.sidecar import counted_reasons, first, holds_transient
from tasks.dataset.layout import INPUTS
from tasks.dataset.tables import ArrowBatches

LOOKED_AT = ("planned", "tar", "bytes", "reason")


@dataclass(frozen=True, slots=True)
class KnownShard:
    """A converted shard in a version: the batch of its sidecar, its tar unless every sample of it was
    rejected, and the rejects in it by reason."""

    version: Path
    batch: int
    tar: str | None
    samples: int
    rejects: Mapping[str, int]


def known_shards(dataset: Path, catalogue: Catalogue) -> dict[int, KnownShard]:
    """What the versions on disk hold of the catalogue's planned shards, by ordinal.

    A tar that is missing or of the wrong size in any version is converted again, even if another version
    has it: versions share their files, so that one may be damaged too. A shard of which a sample could not be
    read is converted again as well.

    The current version comes first. A planned shard is known by the sizes and times of its files, which
    --rehash looks behind, so another version may hold older content of the same shard.
    """
    found: dict[int, KnownShard] = {}
    doubted: set[int] = set()
    now = layout.linked(dataset)
    now = None if now is None else now.resolve()
    for version in sorted(versions.list_versions(dataset), key=lambda version: version.resolve() != now):
        for number, table in _sidecars(version):
            ordinal = catalogue.ordinal(first(table, "planned"))
            if ordinal is None or holds_transient(table):
                continue
            if _has_its_tar(version, table):
                rejects = counted_reasons(table)
                known = KnownShard(version, number, first(table, "tar"), table.num_rows, rejects)
                found.setdefault(ordinal, known)
            else:
                doubted.add(ordinal)
    return {ordinal: known for ordinal, known in found.items() if ordinal not in doubted}


def _sidecars(version: Path) -> Iterator[tuple[int, Any]]:
    """The version's sidecars, of LOOKED_AT only, as far as they can be read: damage is for verify to
    report."""
    try:
        batches = ArrowBatches(version / INPUTS, LOOKED_AT)
        for number in range(len(batches)):
            yield number, batches[number]
    except (OSError, pa.ArrowException, ValueError):
        return


def _has_its_tar(version: Path, table: Any) -> bool:
    name = first(table, "tar")
    try:
        return name is None or (version / name).stat().st_size == first(table, "bytes")
    except OSError:
        return False


class KnownSidecars:
    """Reads whole sidecars of known shards, each version's file opened once."""

    def __init__(self) -> None:
        self._open: dict[Path, ArrowBatches] = {}

    def __getitem__(self, known: KnownShard) -> Any:
        if known.version not in self._open:
            self._open[known.version] = ArrowBatches(known.version / INPUTS)
        return self._open[known.version][known.batch]
