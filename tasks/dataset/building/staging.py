"""Shards that were converted and wait to be assembled, and what their sidecars say of rejects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.core.errors import DataError
from tasks.dataset.building import rejects
from tasks.dataset.building.assemble import Shard
from tasks.dataset.building.catalogue import Catalogue, Leaf
from tasks.dataset.building.convert import staged, tar_path
from tasks.dataset.building.reuse import Known, KnownSidecars
from tasks.dataset.building.sidecar import counted_reasons, first

SUFFIXES = (".tar", ".arrow")


def staged_shard(staging: Path, leaf: Leaf) -> Shard:
    """A leaf as the shard it has become; DataError when it was taken away meanwhile."""
    table = staged(staging, leaf.digest)
    if table is None:
        raise DataError(f"a converted shard has gone from {staging}; build again")
    return Shard(
        leaf.split, table, None if first(table, "sha256") is None else tar_path(staging, leaf.digest)
    )


def converted_shards(catalogue: Catalogue, known: Mapping[int, Known], staging: Path) -> Iterator[Shard]:
    """Every leaf as the shard it has become, here or in an earlier version."""
    sidecars = KnownSidecars()
    for leaf in catalogue.leaves():
        one = known.get(leaf.ordinal)
        if one is None:
            yield staged_shard(staging, leaf)
        else:
            yield Shard(leaf.split, sidecars[one], None if one.tar is None else one.version / one.tar)


def note_rejects(catalogue: Catalogue, known: Mapping[int, Known], staging: Path) -> None:
    """Bring the rejects of all converted shards into the catalogue; its fact `unread` says how many samples
    could not be read for a cause that may pass."""
    sidecars = KnownSidecars()
    unread = catalogue.fact("unread_containers") or 0
    with catalogue.transaction():
        for leaf in catalogue.leaves():
            one = known.get(leaf.ordinal)
            if one is not None and not one.rejects:
                continue
            table = staged(staging, leaf.digest) if one is None else sidecars[one]
            if table is not None and (reasons := counted_reasons(table)):
                unread += reasons.get(rejects.TRANSIENT, 0)
                catalogue.reject(rejects.of_sidecar(catalogue.entries(leaf), table))
        catalogue.note("unread", unread)


def sweep(staging: Path, catalogue: Catalogue) -> None:
    """Remove shards that an earlier build has staged and this one does not plan."""
    for path in staging.iterdir():
        if path.suffix in SUFFIXES and catalogue.ordinal(path.stem) is None:
            path.unlink()


def remove(staging: Path, catalogue: Catalogue) -> None:
    """Remove all staged shards."""
    for path in staging.iterdir():
        if path.suffix in SUFFIXES and catalogue.ordinal(path.stem) is not None:
            path.unlink()
