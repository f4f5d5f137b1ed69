"""Samples that were fetched from a web address before and need not be fetched again.

A file of this machine is simply read again when another sample of its shard has changed. An address costs
its server a request, and the image may be gone by now. So a shard that is converted anew takes over what an
earlier conversion of the same row by the same rules has made: the span in its tar, or the reject. Only a
reject that may have passed is tried again.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import pyarrow as pa

from tasks.core.schema import Dataset
from tasks.dataset import filters
from tasks.dataset.building.conversion.sidecar import ConvertedSample, first, statistics_schema
from tasks.dataset.building.conversion.staging import KnownShard
from tasks.dataset.building.fingerprint import is_converted_alike
from tasks.dataset.building.listed.catalogue import Catalogue, ListedSample
from tasks.dataset.building.score_rules import ScoreDecisions
from tasks.dataset.sources.protocol import is_by_row
from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version import layout
from tasks.dataset.version.build_info import may_be_used
from tasks.dataset.version.layout import INPUTS
from tasks.dataset.version.rejects import BY_SCORE, FILTERED, PASSING, Reject, printable
from tasks.dataset.version.tables import ArrowBatches

NO_RULES: Mapping[str, Any] = {}
COLUMNS = ("planned", "tar", "key", "stamp", "reason")


def shards_to_keep_from(
    dataset: Dataset, catalogue: Catalogue, known: Collection[int]
) -> Mapping[int, list[KnownShard]]:
    """Return, for planned shards that are not `known`, by ordinal, the shards of the current version that
    hold samples of theirs from addresses; none where it was built by other rules."""
    found: dict[int, list[KnownShard]] = defaultdict(list)
    version = layout.linked(dataset.output)
    if version is None or not catalogue.fact("addresses") or not may_be_used(version, INPUTS):
        return found
    if not is_converted_alike(version, dataset):
        return found
    with contextlib.suppress(OSError, pa.ArrowException, ValueError):  # verify reports damage
        for number, table in enumerate(ArrowBatches(version / INPUTS, COLUMNS)):
            if catalogue.ordinal(first(table, "planned")) in known:
                continue
            shard = KnownShard(version, number, first(table, "tar"), table.num_rows, {})
            rows = zip(*(table.column(name).to_pylist() for name in ("key", "stamp", "reason")), strict=True)
            keys = [key for key, stamp, reason in rows if is_by_row(stamp) and reason not in PASSING]
            for ordinal in catalogue.shards_of(keys):
                found[ordinal].append(shard)
    return found


class KeptSamples:
    """Rows of sidecars, with the tars that hold their spans, by the samples that they are about. `rules` are
    today's rules on statistics, which the rows record also of samples that these left out, and `decisions`
    what the rules on scores leave out."""

    def __init__(
        self,
        modality: str,
        sidecars: Iterable[tuple[Any, Path | None]] = (),
        rules: Mapping[str, Any] = NO_RULES,
        decisions: ScoreDecisions | None = None,
    ) -> None:
        self._rules = rules
        self._decisions = decisions or ScoreDecisions.load(None)
        self._statistics = list(statistics_schema(modality))
        self._rows: dict[str, tuple[dict[str, Any], Path | None]] = {}
        self._files: dict[Path, BinaryIO] = {}
        for table, tar in sidecars:
            for row in table.to_pylist():
                is_back = row["reason"] == FILTERED and self._is_wanted(row)
                if is_by_row(row["stamp"]) and row["reason"] not in PASSING and not is_back:
                    self._rows[row["key"]] = (row, tar)

    def __contains__(self, entry: ListedSample) -> bool:
        found = self._rows.get(entry.key)
        return found is not None and _identity(found[0]) == _identity(_as_row(entry))

    def copy(self, writer: ShardWriter, entry: ListedSample) -> ConvertedSample | None:
        """Append the sample's span to the tar, unless it is a reject; None where the span is damaged."""
        row, tar = self._rows[entry.key]
        statistics = {name: row[name] for name in self._statistics}
        if row["reason"] in (None, FILTERED) and not self._is_wanted(row):
            by_score = self._decisions.fails_one(row["content"])
            return ConvertedSample(
                entry, None, row["content"], statistics, None, is_filtered=True, by_score=by_score
            )
        if row["reason"] is not None:
            return ConvertedSample(entry, None, row["content"], {}, Reject(row["reason"], row["detail"]))
        span = self._read(tar, row) if tar is not None else b""
        if len(span) != row["length"] or google_crc32c.value(span) != row["crc32c"]:
            return None
        return ConvertedSample(entry, writer.copy(span), row["content"], statistics, None, row["members"])

    def _is_wanted(self, row: Mapping[str, Any]) -> bool:
        """Whether today's rules take the sample. One that was left out by its score was not measured then."""
        if self._decisions.fails_one(row["content"]):
            return False
        return row["detail"] == BY_SCORE or filters.passes_measured(self._rules, row)

    def _read(self, tar: Path, row: Mapping[str, Any]) -> bytes:
        try:
            if tar not in self._files:
                self._files[tar] = tar.open("rb", buffering=0)
            return os.pread(self._files[tar].fileno(), row["length"], row["offset"])
        except OSError:
            return b""

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the facts that make a sample the same one; the stamp stands for its row."""
    return tuple(row[name] for name in ("key", "original_key", "group", "file", "stamp"))


def _as_row(entry: ListedSample) -> dict[str, Any]:
    """Return the entry's facts as a sidecar holds them."""
    return {
        "key": entry.key,
        "original_key": printable(entry.original_key),
        "group": entry.group and printable(entry.group),
        "file": printable(entry.file),
        "stamp": entry.stamp,
    }
