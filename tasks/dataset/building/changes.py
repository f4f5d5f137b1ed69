"""What a new version has gained and lost against the one before: half a source must not pass unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.dataset.building.catalogue import Catalogue

ALLOWED = 0.05
"""Share of the samples that may go from one version to the next without a word from the user."""


@dataclass(frozen=True)
class Changes:
    """Samples, told by their keys, of which `had` were there before."""

    gained: int
    lost: int
    had: int

    def check(self, before: Path | None) -> None:
        """DataError when more than ALLOWED of the samples are gone."""
        if before is not None and self.lost > ALLOWED * self.had:
            raise DataError(
                f"{self.lost:,} of the {self.had:,} samples of version {before.name} are gone "
                f"({self.lost / self.had:.1%}); the current version stays. Mend the source and run again, or "
                "accept the loss: tarmac build CONFIG --accept-loss"
            )


NONE = Changes(0, 0, 0)


def since(before: Path | None, catalogue: Catalogue) -> Changes:
    """What the catalogue, which knows all rejects, has of the samples of an earlier version, and beyond."""
    accepted = catalogue.accepted - catalogue.rejected_entries
    if before is None:
        return Changes(accepted, 0, 0)
    had = 0

    def keys() -> Iterator[str]:
        nonlocal had
        for path in sorted((before / "samples").glob("*.parquet")):
            for key in _keys(path):
                had += 1
                yield key

    kept = catalogue.kept_of(keys())
    return Changes(accepted - kept, had - kept, had)


def _keys(path: Path) -> Iterator[str]:
    """Of a table of samples, as far as it can be read: damage is for verify to find."""
    try:
        for batch in pq.ParquetFile(path).iter_batches(columns=["key"]):
            yield from batch.column(0).to_pylist()
    except (OSError, pa.ArrowException):
        return
