"""The rejects of a build: as a table, and against the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import comb, floor
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.errors import DataError
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.entries import Entry, Rejected
from tasks.dataset.rejects import TRANSIENT, printable, reject_lines
from tasks.dataset.tables import TableWriter

__all__ = ["TRANSIENT", "Budget", "of_sidecar", "write"]

SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("key", "original_key", "reason", "detail", "source", "file")]
)
AT_ONCE = 1000
CERTAIN = 1e-6


def of_sidecar(entries: Iterable[Entry], table: Any) -> Iterator[Rejected]:
    """The rejects among a leaf's entries, as its sidecar tells them."""
    reasons = table.column("reason").to_pylist()
    details = table.column("detail").to_pylist()
    for entry, reason, detail in zip(entries, reasons, details, strict=True):
        if reason is not None:
            names = map(printable, (entry.original_key, entry.place, entry.file))
            original_key, place, file = names
            yield Rejected(entry.number, entry.key, original_key, reason, detail, place, file)


def write(path: Path, rejects: Iterator[Rejected]) -> None:
    """`rejects.parquet`: key, original_key, reason, detail, source (such as `captions.csv:17`), file."""
    with TableWriter(path, SCHEMA) as writer:
        while some := list(islice(rejects, AT_ONCE)):
            writer.write(
                pa.table({name: [getattr(one, name) for one in some] for name in SCHEMA.names}, SCHEMA)
            )


class Budget:
    """Counts rejects while a build runs, and knows when it is certain to pass its budget."""

    def __init__(self, read: int, share: float) -> None:
        self.read = read
        self.share = share
        self.counts: Counter[str] = Counter()

    def add(self, reasons: Mapping[str, int]) -> None:
        self.counts.update(reasons)

    @property
    def is_exceeded(self) -> bool:
        return self.counts.total() > self.allowed

    @property
    def allowed(self) -> int:
        """Rejects that the budget has room for."""
        return floor(self.share * self.read + 1e-9)

    def is_hopeless(self, rejected: int, tried: int, left: int) -> bool:
        """Whether so many rejects among `tried` samples, spread over the `left` that are to be converted, are
        all but impossible (CERTAIN) if the budget is to hold."""
        share = min(1.0, max(0, self.allowed - self.counts.total()) / left)
        tail = (
            comb(tried, count) * share**count * (1 - share) ** (tried - count)
            for count in range(rejected, tried + 1)
        )
        return rejected > 0 and sum(tail) < CERTAIN

    def error(self, catalogue: Catalogue, path: Path, is_private: bool) -> DataError:
        """The counts by reason, each with its first example unless the data is private, from the table of
        rejects in `path`."""
        counts = catalogue.reasons()
        total = sum(counts.values())
        lines = [
            f"{total:,} of {self.read:,} read are rejected ({total / self.read:.1%}), "
            f"more than dataset.reject_budget ({self.share:.1%}); the current version stays as it was",
            *reject_lines(path.parent, counts, is_private),
            f"  all are in {path}; mend the sources and run again: only these are redone",
        ]
        return DataError("\n".join(lines))
