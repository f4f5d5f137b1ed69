"""Shards that an earlier version or a killed build has converted already, found by what they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.dataset import versions
from tasks.dataset.leaves import Leaf
from tasks.dataset.sidecar import by_leaf, first, holds_transient
from tasks.dataset.tables import read_table

INPUTS = "inputs.parquet"


@dataclass(frozen=True)
class Known:
    """A converted shard: its sidecar, and its tar unless every sample of it was rejected."""

    table: Any
    tar: Path | None


def known_leaves(dataset: Path, leaves: Sequence[Leaf]) -> Mapping[str, Known]:
    """What the versions on disk hold of these leaves, by digest.

    A tar that is missing or of the wrong size in any version is converted again, even if another version
    has it: versions share their files, so that one may be damaged too. A shard of which a sample could not be
    read is converted again as well.
    """
    wanted = {leaf.digest for leaf in leaves}
    found: dict[str, Known] = {}
    doubted: set[str] = set()
    for version in versions.listed(dataset):
        try:
            sidecars = by_leaf(read_table(version / INPUTS))
        except (OSError, pa.ArrowException, KeyError):
            continue  # a damaged version offers nothing; verify is who reports it
        for digest in wanted & sidecars.keys():
            if holds_transient(sidecars[digest]):
                continue
            known = _known(version, sidecars[digest])
            if known is None:
                doubted.add(digest)
            else:
                found.setdefault(digest, known)
    return {digest: known for digest, known in found.items() if digest not in doubted}


def _known(version: Path, table: Any) -> Known | None:
    name = first(table, "tar")
    if name is None:
        return Known(table, None)
    tar = version / name
    try:
        return Known(table, tar) if tar.stat().st_size == first(table, "bytes") else None
    except OSError:
        return None
