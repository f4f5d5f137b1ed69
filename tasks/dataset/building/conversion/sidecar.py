"""The sidecar of a converted shard: one row per raw sample, accepted or rejected, in order.

A sidecar is written last, so its presence means that the shard is done. A version keeps the sidecars of all
its shards in one file, `inputs.arrow`, with one record batch per shard. A later build reuses unchanged shards
from it without reading the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.dataset.building.listed.catalogue import ListedSample
from tasks.dataset.formats.measures import FINE_BYTES, SPECTRUM_BYTES
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.modalities.base import Statistic, Statistics
from tasks.dataset.tar.writer import Span
from tasks.dataset.version.rejects import BY_SCORE, FILTERED, PASSING, Reject, printable

SHARD_COLUMNS: Mapping[str, Any] = {
    "planned": pa.string(),
    "tar": pa.string(),
    "blake3": pa.string(),
    "bytes": pa.int64(),
}
"""`planned` is the digest that names the planned shard, `tar` its name in a version."""
SAMPLE_COLUMNS: Mapping[str, Any] = {
    "key": pa.string(),
    "original_key": pa.string(),
    "group": pa.string(),
    "source": pa.string(),
    "file": pa.string(),
    "size": pa.int64(),
    "stamp": pa.string(),
    "reason": pa.string(),
    "detail": pa.string(),
    "content": pa.binary(16),
    "offset": pa.uint64(),
    "length": pa.uint64(),
    "crc32c": pa.uint32(),
    "members": pa.string(),
}


_TYPES: Mapping[Statistic, Any] = {
    Statistic.COUNT: pa.int32(),
    Statistic.NUMBER: pa.float32(),
    Statistic.HASH: pa.uint64(),
    Statistic.FINE: pa.binary(FINE_BYTES),
    Statistic.SPECTRUM: pa.binary(SPECTRUM_BYTES),
    Statistic.WORD: pa.string(),
}


class ConvertedSample(NamedTuple):
    """The outcome for one raw sample: either a reject, or a span in the tar with the statistics and the
    `members`' suffixes, separated by spaces. `content` is the digest of the raw sample, if it could be
    read."""

    entry: ListedSample
    span: Span | None
    content: bytes | None
    statistics: Statistics
    reject: Reject | None
    members: str | None = None
    is_filtered: bool = False
    by_score: bool = False
    """Whether a rule on a model's score left it out."""


def statistics_schema(modality: str) -> dict[str, Any]:
    """Return the modality's own columns with their Arrow types."""
    return {name: _TYPES[kind] for name, kind in MODALITIES[modality].statistics.items()}


@lru_cache
def schema(modality: str) -> Any:
    return pa.schema({**SHARD_COLUMNS, **SAMPLE_COLUMNS, **statistics_schema(modality)}.items())


def sidecar(
    modality: str, planned: str, seal: str | None, size_bytes: int, outcomes: Sequence[ConvertedSample]
) -> Any:
    """Return the table of one shard. `seal` is the tar's BLAKE3, None if all samples were rejected and there
    is no tar."""
    names = MODALITIES[modality].statistics
    rows = (
        (
            *(planned, None, seal, size_bytes),
            *(entry.key, printable(entry.original_key), entry.group and printable(entry.group)),
            *(printable(entry.place), printable(entry.file), entry.size, entry.stamp),
            *(
                (reject.reason, printable(reject.detail))
                if reject
                else (FILTERED if is_filtered else None, BY_SCORE if by_score else None)
            ),
            *(content, *(span or (None, None, None)), members),
            *(statistics.get(name) for name in names),
        )
        for entry, span, content, statistics, reject, members, is_filtered, by_score in outcomes
    )
    columns = schema(modality)
    return pa.table(dict(zip(columns.names, zip(*rows, strict=True), strict=True)), columns)


def first(table: Any, column: str) -> Any:
    """Return a fact of the whole shard, which every row repeats."""
    return table.column(column)[0].as_py()


def holds_transient(table: Any) -> bool:
    """Whether a sample could not be read for a cause that may have passed, so the shard must be made
    again."""
    return not PASSING.isdisjoint(counted_reasons(table))


def accepted(table: Any) -> Any:
    """Return the rows of the samples that are in the tar."""
    reasons = table.column("reason")
    return table if reasons.null_count == len(reasons) else table.filter(reasons.is_null())


def counted_reasons(table: Any) -> dict[str, int]:
    """Count the rows without a sample by reason: rejects, and those that are FILTERED."""
    reasons = table.column("reason")
    if reasons.null_count == len(reasons):
        return {}
    return dict(Counter(reason for reason in reasons.to_pylist() if reason is not None))
