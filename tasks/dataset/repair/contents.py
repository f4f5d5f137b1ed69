"""What each shard of a version should hold, by the version's tables, and what cannot be made again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.core.units import counted
from tasks.dataset.building.conversion.sidecar import SAMPLE_COLUMNS, accepted, first
from tasks.dataset.repair.source import ReconvertedShard
from tasks.dataset.tar.format import END
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import INPUTS, samples_name
from tasks.dataset.version.rejects import PASSING, printable
from tasks.dataset.version.tables import DAMAGED, ArrowBatches, ShardRecord, read_pieces

COLUMNS = ("key", "original_key", "file", "size", "stamp", "content", "offset", "length", "crc32c")
ROWS = pa.schema([(name, SAMPLE_COLUMNS[name]) for name in COLUMNS])

Spans = NDArray[np.int64]
"""Offset, length and CRC32C of each sample of a shard: [samples, 3]."""
NO_SPANS: Spans = np.empty((0, 3), np.int64)

Faults = Mapping[str, Sequence[str]]
"""What is wrong, in words that follow `is` or `are`, with the names of the samples."""
GONE, UNREADABLE, REJECTED = "gone from the source", "unreadable", "rejected now"
CHANGED = "changed in the source"
CONVERTED_OTHERWISE = "converted to other bytes though the source is the same"
SHOWN = 3
"""How many samples a reason names."""


@dataclass(frozen=True)
class ShardPlan:
    """A shard to be made: what seals it, a row of ROWS per sample, and which samples its file still has."""

    record: ShardRecord
    rows: Any
    sound: Sequence[bool]

    @property
    def needed(self) -> list[int]:
        """The rows of the samples that have to come from the source."""
        return [row for row, is_sound in enumerate(self.sound) if not is_sound]

    @cached_property
    def spans(self) -> Spans:
        return spans_of(self.rows)

    def column(self, name: str) -> list[Any]:
        return list(self.rows.column(name).to_pylist())

    def needed_column(self, name: str) -> list[Any]:
        """A column of the needed rows only."""
        values = self.column(name)
        return [values[row] for row in self.needed]


class Contents:
    """What the tables record about the samples of each shard."""

    def __init__(self, version: Path, records: Mapping[str, ShardRecord]) -> None:
        self._version = version
        self._records = records

    def rows(self, record: ShardRecord) -> Any | None:
        """A table of ROWS, one per sample in the tar, or None when no table has them. Where `inputs.arrow` is
        damaged, only the keys of the raw samples are known."""
        for read in (self._of_inputs, self._of_index):
            try:
                rows = read(record)
            except (*DAMAGED, DataError):
                continue
            if rows is not None and _fits(rows, record):
                return rows
        return None

    def _of_inputs(self, record: ShardRecord) -> Any | None:
        if record.name not in self._batch_numbers:
            return None
        table = self._batches[self._batch_numbers[record.name]]
        return accepted(table).select(list(COLUMNS)) if first(table, "blake3") == record.blake3 else None

    def _of_index(self, record: ShardRecord) -> Any:
        start = self._starts[record.name]
        index = read_index(self._version, record.split)[start : start + record.samples]
        keys = self._keys(record.split).slice(start, record.samples)
        nothing = dict.fromkeys(COLUMNS, pa.nulls(record.samples))
        spans = {name: pa.array(np.ascontiguousarray(index[name])) for name in ("offset", "length", "crc32c")}
        named = {name: keys.column(name) for name in keys.column_names}
        return pa.table({**nothing, **named, **spans}).cast(ROWS)

    @cached_property
    def _batches(self) -> ArrowBatches:
        return ArrowBatches(self._version / INPUTS)

    @cached_property
    def _batch_numbers(self) -> dict[str | None, int]:
        """The number of each tar's batch."""
        batches = ArrowBatches(self._version / INPUTS, ("tar",))
        return {first(batches[number], "tar"): number for number in range(len(batches))}

    @cached_property
    def _starts(self) -> dict[str, int]:
        """The row of each shard's first sample in its split."""
        rows: dict[str, int] = {}
        starts = {}
        for record in self._records.values():
            starts[record.name] = rows.setdefault(record.split, 0)
            rows[record.split] += record.samples
        return starts

    def _keys(self, split: str) -> Any:
        if self._keys_of != split:
            pieces = read_pieces(self._version / samples_name(split), ("key", "original_key"))
            self._table, self._keys_of = pa.Table.from_batches(pieces), split
        return self._table

    _keys_of = ""
    """The split whose keys are held: shards come split by split."""


def _fits(rows: Any, record: ShardRecord) -> bool:
    """Whether the spans are those of a tar of this size, one after the other, and the keys are there."""
    spans = spans_of(rows)
    ends = np.cumsum(spans[:, 1])
    is_dense = np.array_equal(spans[:, 0], np.concatenate([[0], ends[:-1]]))
    is_whole = len(ends) == record.samples and ends[-1] + len(END) == record.bytes
    return bool(is_dense and is_whole and rows.column("key").null_count == 0)


def spans_of(rows: Any) -> Spans:
    """Offset, length and CRC32C of each row."""
    columns = [rows.column(name).to_numpy().astype(np.int64) for name in ("offset", "length", "crc32c")]
    return np.stack(columns, axis=1)


def not_converted(plan: ShardPlan, conversion: ReconvertedShard) -> Faults:
    """The needed samples that could not be converted."""
    faults = defaultdict(list)
    names = dict(zip(plan.column("key"), plan.column("original_key"), strict=True))
    for key, (reason, detail) in conversion.rejects.items():
        if reason in ("member.missing", "source.gone"):
            faults[GONE].append(names[key])
        else:
            what = UNREADABLE if reason in PASSING else REJECTED
            faults[what].append(f"{names[key]}: {reason}, {printable(detail)}")
    return faults


def differing(plan: ShardPlan, conversion: ReconvertedShard, changes: str) -> Faults:
    """The converted samples whose bytes are not those that the shard had; `changes` names the packages that
    have another version now."""
    faults = defaultdict(list)
    otherwise = (
        f"{CONVERTED_OTHERWISE}: {changes or 'the packages are the same too; has Tarmac itself changed?'}"
    )
    if conversion.sidecar is not None:
        columns = ("content", "size", "stamp", "crc32c")
        found = zip(*(conversion.sidecar.column(name).to_pylist() for name in columns), strict=True)
        built = zip(*(plan.needed_column(name) for name in ("original_key", *columns)), strict=True)
        for (name, content, *place, crc32c), (content_now, *place_now, crc32c_now) in zip(
            built, found, strict=True
        ):
            if crc32c == crc32c_now:
                continue
            if content in (None, content_now):
                faults[otherwise].append(name)
            else:
                faults[CHANGED].append(name + ": with the same size and time" * (place == place_now))
    return faults


def worded(faults: Faults, total: int, is_private: bool) -> str:
    """`2 of its 4 samples are gone from the source (a.png, b.png)`; without the names for private data."""
    parts = []
    for what, samples in faults.items():
        is_or_are = "is" if len(samples) == 1 else "are"
        text = f"{len(samples):,} of its {counted(total, 'sample')} {is_or_are} {what}"
        if not is_private:
            text += f" ({', '.join(samples[:SHOWN])}{', …' if len(samples) > SHOWN else ''})"
        parts.append(text)
    return "; ".join(parts)
