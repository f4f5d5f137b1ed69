"""The rejects of a build: as a table, as counts, and against the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from math import floor
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.errors import DataError
from tasks.dataset.leaves import Leaf
from tasks.dataset.listing import Listing, Rejected
from tasks.dataset.reasons import printable

COLUMNS = [field.name for field in fields(Rejected) if field.name != "number"]
SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])


def collect(listing: Listing, converted: Iterable[tuple[Leaf, Any]]) -> list[Rejected]:
    """All rejects of the listing and of these shards' sidecars, in the sources' order."""
    found = list(listing.rejects)
    for leaf, table in converted:
        reasons = table.column("reason").to_pylist()
        details = table.column("detail").to_pylist()
        for entry, reason, detail in zip(leaf.entries, reasons, details, strict=True):
            if reason is not None:
                names = map(printable, (entry.original_key, entry.place, entry.file))
                original_key, place, file = names
                found.append(Rejected(entry.number, entry.key, original_key, reason, detail, place, file))
    return sorted(found, key=lambda reject: reject.number)


def to_table(rejects: Iterable[Rejected]) -> Any:
    """`rejects.parquet`: key, original_key, reason, detail, source (such as `captions.csv:17`), file."""
    rows = [asdict(reject) for reject in rejects]
    return pa.table({name: [row[name] for row in rows] for name in COLUMNS}, SCHEMA)


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
        return self.counts.total() > floor(self.share * self.read + 1e-9)

    def error(self, rejects: list[Rejected], path: Path, is_private: bool) -> DataError:
        """The counts by reason, each with its first example unless the data is private."""
        counts = Counter(reject.reason for reject in rejects)
        examples = {reject.reason: reject for reject in reversed(rejects)}
        total = len(rejects)
        lines = [
            f"{total:,} of {self.read:,} read are rejected ({total / self.read:.1%}), "
            f"more than dataset.reject_budget ({self.share:.1%}); the current version stays as it was"
        ]
        for reason, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            first = examples[reason]
            example = "" if is_private else f"   {first.source}: {first.detail}"
            lines.append(f"  {count:>7,} {reason:<22}{example}".rstrip())
        lines.append(f"  all are in {path}; mend the sources and run again: only these are redone")
        return DataError("\n".join(lines))
