"""What is known of a converted shard, one row for each of its raw samples, taken or rejected, in order.

A sidecar is written last, so its presence says that the shard is done. The version keeps the sidecars of all
its shards in one file, `inputs.arrow`, a record batch a shard, from which a later build takes over whatever
has not changed, without reading the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.dataset.build.entries import Entry
from tasks.dataset.rejects import TRANSIENT, Reject, printable
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.tar.writer import Span

LEAF_COLUMNS: Mapping[str, Any] = {
    "leaf": pa.string(),
    "tar": pa.string(),
    "blake3": pa.string(),
    "bytes": pa.int64(),
}
SAMPLE_COLUMNS: Mapping[str, Any] = {
    "key": pa.string(),
    "original_key": pa.string(),
    "group": pa.string(),
    "file": pa.string(),
    "size": pa.int64(),
    "stamp": pa.string(),
    "reason": pa.string(),
    "detail": pa.string(),
    "content": pa.binary(16),
    "offset": pa.uint64(),
    "length": pa.uint64(),
    "crc32c": pa.uint32(),
}


class Outcome(NamedTuple):
    """What became of one raw sample: a span in the tar with content digest and statistics, or a reject."""

    entry: Entry
    span: Span | None
    content: bytes | None
    statistics: Mapping[str, float]
    reject: Reject | None


def schema(modality: str) -> Any:
    named = MODALITIES[modality].statistics
    statistics = {name: pa.int32() if kind is int else pa.float32() for name, kind in named.items()}
    return pa.schema({**LEAF_COLUMNS, **SAMPLE_COLUMNS, **statistics}.items())


def columns_of(modality: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The columns that tell of the samples."""
    told: dict[str, list[Any]] = {
        "key": [outcome.entry.key for outcome in outcomes],
        "original_key": [printable(outcome.entry.original_key) for outcome in outcomes],
        "group": [_printable(outcome.entry.group) for outcome in outcomes],
        "file": [printable(outcome.entry.file) for outcome in outcomes],
        "size": [outcome.entry.size for outcome in outcomes],
        "stamp": [outcome.entry.stamp for outcome in outcomes],
        "reason": [outcome.reject and outcome.reject.reason for outcome in outcomes],
        "detail": [outcome.reject and printable(outcome.reject.detail) for outcome in outcomes],
        "content": [outcome.content for outcome in outcomes],
        "offset": [outcome.span and outcome.span.offset for outcome in outcomes],
        "length": [outcome.span and outcome.span.length for outcome in outcomes],
        "crc32c": [outcome.span and outcome.span.crc32c for outcome in outcomes],
    }
    for name in MODALITIES[modality].statistics:
        told[name] = [outcome.statistics.get(name) for outcome in outcomes]
    fields = schema(modality)
    return {name: pa.array(values, fields.field(name).type) for name, values in told.items()}


def sidecar(modality: str, leaf: str, blake3: str | None, size_bytes: int, columns: Mapping[str, Any]) -> Any:
    """The table of one shard; `blake3` is None where every sample was rejected and there is no tar."""
    told = {"leaf": leaf, "tar": None, "blake3": blake3, "bytes": size_bytes}
    count = len(columns["key"])
    facts = {name: pa.repeat(pa.scalar(told[name], kind), count) for name, kind in LEAF_COLUMNS.items()}
    return pa.table({**facts, **columns}, schema(modality))


def _printable(text: str | None) -> str | None:
    return None if text is None else printable(text)


def first(table: Any, column: str) -> Any:
    """A fact of the whole shard, which every row repeats."""
    return table.column(column)[0].as_py()


def holds_transient(table: Any) -> bool:
    """Whether a sample could not be read for a cause that may have passed: the shard is to be made again."""
    return TRANSIENT in counted_reasons(table)


def accepted(table: Any) -> Any:
    """The rows of samples that are in the tar."""
    reasons = table.column("reason")
    return table if reasons.null_count == len(reasons) else table.filter(reasons.is_null())


def counted_reasons(table: Any) -> dict[str, int]:
    """The rejects among the rows, by reason."""
    reasons = table.column("reason")
    if reasons.null_count == len(reasons):
        return {}
    return dict(Counter(reason for reason in reasons.to_pylist() if reason is not None))
