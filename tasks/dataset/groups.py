"""The rejects of a build as a person reads them: by reason, the most first, each with its first example and
what its fellows share."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.dataset.look.rejects import counts_only, read_groups

COMPARED = 500
"""Keys of accepted samples that a shared beginning of rejects is compared with."""


def reject_lines(folder: Path, counts: Mapping[str, int], is_private: bool) -> list[str]:
    """A line a reason, from the `rejects.parquet` in a folder; of private data the counts alone."""
    try:
        groups = counts_only(counts) if is_private else read_groups(folder, counts, _some_keys(folder))
    except DataError:
        groups = counts_only(counts)  # verify is who reports the table's damage
    lines = []
    for group in groups:
        line = f"{group.count:>7,} {group.reason:<22}"
        if group.examples:
            _, detail, place = group.examples[0]
            line += f" {place}: {detail}"
        if group.patterns:
            line += f"   ← {group.patterns[0]}: one cause?"
        lines.append(line.rstrip())
    return lines


def _some_keys(version: Path) -> list[str]:
    """Original keys of accepted samples; shards are shuffled, so the first are as good as any."""
    for path in sorted((version / "samples").glob("*.parquet")):
        try:
            batch = next(pq.ParquetFile(path).iter_batches(COMPARED, columns=["original_key"]))
        except (OSError, pa.ArrowException, StopIteration):
            continue
        return list(islice(batch.column(0).to_pylist(), COMPARED))
    return []
