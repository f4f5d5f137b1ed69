"""What a new version has gained and lost against the one before: half a source must not pass unnoticed.

The guard holds as long as anything says what the current version had: its manifest, its tables of samples, or
the sidecars of its shards. Where nothing does, a person has to say that a loss is fine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tasks.core.errors import DataError, NeedsApproval
from tasks.dataset.building.catalogue import Catalogue
from tasks.dataset.building.sidecar import accepted
from tasks.dataset.layout import INPUTS
from tasks.dataset.manifest import read_manifest
from tasks.dataset.tables import Batches, read_pieces, read_shards

ALLOWED = 0.05
"""Share of the samples that may go from one version to the next without a word from the user."""


@dataclass(frozen=True)
class Changes:
    """Samples, told apart by their keys, of which `had` were there before (None: nothing says how many); the
    keys of `unread` of them cannot be read, so those count as lost."""

    gained: int
    lost: int
    had: int | None
    unread: int = 0

    def check(self, before: Path | None) -> None:
        """NeedsApproval when more than ALLOWED of the samples are gone, or that cannot be known."""
        if before is None:
            return
        if self.had is None:
            raise NeedsApproval(
                f"neither manifest nor tables of the current version {before.name} can be read, so nobody "
                "knows which samples it had; `tarmac repair DATASET` mends them, or accept a loss"
            )
        if self.lost <= ALLOWED * self.had:
            return
        if self.unread > ALLOWED * self.had:
            raise NeedsApproval(
                f"the keys of {self.unread:,} of the {self.had:,} samples of version {before.name} cannot be "
                "read, so nobody can tell whether they are still there; `tarmac repair DATASET` mends its "
                "tables, or accept a loss"
            )
        raise NeedsApproval(
            f"{self.lost:,} of the {self.had:,} samples of version {before.name} are gone "
            f"({self.lost / self.had:.1%}); the current version stays. Mend the source and run again, or "
            "accept the loss"
        )


NONE = Changes(0, 0, 0)


def since(before: Path | None, catalogue: Catalogue) -> Changes:
    """What the catalogue, which knows all rejects, has of the samples of an earlier version, and beyond."""
    now = catalogue.accepted - catalogue.rejected_entries
    if before is None:
        return Changes(now, 0, 0)
    kept, read = catalogue.kept_of(_keys_of_tables(before))
    recorded = _recorded(before)
    if recorded is None or read < recorded:
        others = catalogue.kept_of(_keys_of_sidecars(before))
        kept, read = max((kept, read), others, key=lambda counts: counts[1])
    if recorded is None and not read:
        return Changes(now, 0, None)
    had = max(recorded or 0, read)
    return Changes(now - kept, had - kept, had, had - read)


def _recorded(version: Path) -> int | None:
    """How many samples the version had, by its manifest or its table of shards; None when neither can be
    read."""
    with contextlib.suppress(DataError):  # verify is who reports damage
        return read_manifest(version).accepted
    with contextlib.suppress(DataError):
        return sum(shard.samples for shard in read_shards(version))
    return None


def _keys_of_tables(version: Path) -> Iterator[str]:
    """As far as they can be read: damage is for verify to report."""
    for path in sorted((version / "samples").glob("*.parquet")):
        with contextlib.suppress(DataError):
            for piece in read_pieces(path, ["key"]):
                yield from piece.column(0).to_pylist()


def _keys_of_sidecars(version: Path) -> Iterator[str]:
    """The same keys, in another file of the version."""
    with contextlib.suppress(OSError, ValueError, pa.ArrowException):
        batches = Batches(version / INPUTS, ("key", "reason"))
        for number in range(len(batches)):
            yield from accepted(batches[number]).column("key").to_pylist()
