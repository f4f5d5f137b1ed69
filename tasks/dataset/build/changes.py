"""What a new version has gained and lost against the one before: half a source must not pass unnoticed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.reuse import INPUTS
from tasks.dataset.build.sidecar import accepted
from tasks.dataset.manifest import read_manifest
from tasks.dataset.tables import Batches

ALLOWED = 0.05
"""Share of the samples that may go from one version to the next without a word from the user."""


@dataclass(frozen=True)
class Changes:
    """Samples, told by their keys, of which `had` were there before; the keys of `unread` of them cannot be
    read, so those count as lost."""

    gained: int
    lost: int
    had: int
    unread: int = 0

    def check(self, before: Path | None) -> None:
        """DataError when more than ALLOWED of the samples are gone, or that cannot be told."""
        if before is None or self.lost <= ALLOWED * self.had:
            return
        if self.unread > ALLOWED * self.had:
            raise DataError(
                f"the keys of {self.unread:,} of the {self.had:,} samples of version {before.name} cannot be "
                "read, so nobody can tell whether they are still there; `tarmac repair DATASET` mends its "
                "tables, or accept a loss: tarmac build CONFIG --accept-loss"
            )
        raise DataError(
            f"{self.lost:,} of the {self.had:,} samples of version {before.name} are gone "
            f"({self.lost / self.had:.1%}); the current version stays. Mend the source and run again, or "
            "accept the loss: tarmac build CONFIG --accept-loss"
        )


NONE = Changes(0, 0, 0)


def since(before: Path | None, catalogue: Catalogue) -> Changes:
    """What the catalogue, which knows all rejects, has of the samples of an earlier version, and beyond."""
    now = catalogue.accepted - catalogue.rejected_entries
    if before is None:
        return Changes(now, 0, 0)
    kept, read = _kept(catalogue, _keys_of_tables(before))
    had = read
    with contextlib.suppress(DataError):  # of a manifest that is damaged, which verify tells
        had = max(read_manifest(before).accepted, read)
    if read < had:
        kept, read = max((kept, read), _kept(catalogue, _keys_of_sidecars(before)), key=itemgetter(1))
    return Changes(now - kept, had - kept, had, had - read)


def _kept(catalogue: Catalogue, keys: Iterator[str]) -> tuple[int, int]:
    """How many of the keys the catalogue still has, and how many there are."""
    read = 0

    def each() -> Iterator[str]:
        nonlocal read
        for read, key in enumerate(keys, 1):  # noqa: B007 - counted for the caller
            yield key

    return catalogue.kept_of(each()), read


def _keys_of_tables(version: Path) -> Iterator[str]:
    """As far as they can be read: damage is for verify to find."""
    for path in sorted((version / "samples").glob("*.parquet")):
        with contextlib.suppress(OSError, pa.ArrowException):
            for batch in pq.ParquetFile(path).iter_batches(columns=["key"]):
                yield from batch.column(0).to_pylist()


def _keys_of_sidecars(version: Path) -> Iterator[str]:
    """The same keys, in another file of the version."""
    with contextlib.suppress(OSError, ValueError, pa.ArrowException):
        batches = Batches(version / INPUTS, ("key", "reason"))
        for number in range(len(batches)):
            yield from accepted(batches[number]).column("key").to_pylist()
