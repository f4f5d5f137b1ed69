"""The budget of rejects: how many raw samples of a build may be rejected before it stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import floor
from pathlib import Path

from tasks.core.errors import DataError
from tasks.dataset.rejects import reject_lines


class Budget:
    """Counts rejects while a build runs, and knows when it is certain to pass its budget.

    In the order of key hashes the first shards are a random sample, so a build that must fail fails early.
    """

    def __init__(self, read: int, share: float, containers: int = 1, cut_short: int = 0) -> None:
        """`read` raw samples in all, out of so many `containers`. Nobody knows how many samples are lost
        with those that are `cut_short`, so they count as containers against the budget."""
        self.read = read
        self.share = share
        self.containers = containers
        self.cut_short = cut_short
        self.counts: Counter[str] = Counter()

    def add(self, reasons: Mapping[str, int]) -> None:
        self.counts.update(reasons)

    @property
    def allowed(self) -> int:
        """Rejects that the budget has room for."""
        return floor(self.share * self.read + 1e-9)

    @property
    def is_exceeded(self) -> bool:
        return self.counts.total() > self.allowed or self._has_lost_containers

    @property
    def _has_lost_containers(self) -> bool:
        return self.cut_short > self.share * self.containers

    def error(self, reasons: Mapping[str, int], looked_at: int, path: Path, is_private: bool) -> DataError:
        """The rejects by reason, each with its causes unless the data is private, from the table of rejects
        in `path`; `looked_at` of the raw samples were read or sorted out before the build stopped."""
        total = sum(reasons.values())
        allowed = f"dataset.reject_budget ({self.share:.1%})"
        stays = "the current version stays as it was"
        if self._has_lost_containers:
            line = (
                f"{self.cut_short:,} of {self.containers:,} tars or tables are cut short, and nobody knows "
                f"how many samples are lost with them; that is more than {allowed} of these; {stays}"
            )
        elif looked_at < self.read:
            line = (
                f"at least {total:,} of the {looked_at:,} samples looked at are rejected "
                f"({total / looked_at:.1%}); stopped, as {allowed} has room for {self.allowed:,} of the "
                f"{self.read:,} read; {stays}"
            )
        else:
            line = (
                f"{total:,} of {self.read:,} read are rejected ({total / self.read:.1%}), "
                f"more than {allowed}; {stays}"
            )
        lines = [line]
        lines += reject_lines(path.parent, reasons, is_private)
        lines.append(f"  all are in {path}; mend the sources and run again: only these are redone")
        return DataError("\n".join(lines))
