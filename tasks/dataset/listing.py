"""Every raw sample of every source, listed without opening it: what there is to convert, and from what.

One `stat` a sample. Filtered samples, duplicates and rows that name no sample are sorted out here; whatever
can only be known by reading is left to the conversion.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.core.errors import DataError, UsageError
from tasks.core.progress import Progress, silent
from tasks.core.schema import Config, Dataset
from tasks.dataset import filters, splits
from tasks.dataset.fingerprint import Fingerprint
from tasks.dataset.keys import key_of
from tasks.dataset.reasons import Reason, Reject, printable
from tasks.dataset.sources import Item, Source, open_sources
from tasks.dataset.sources.columns import require

ABSENT = -1
PROGRESS_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A listed sample that is to be converted.

    `number` counts from 0 over all sources in their order. `size` (bytes) and `mtime_ns` are ABSENT when
    the file is. `source` counts the config's sources.
    """

    number: int
    key: str
    original_key: str
    place: str
    source: int
    file: str
    size: int
    mtime_ns: int
    content: str
    split: str
    group: str | None

    @property
    def identity(self) -> tuple[object, ...]:
        """What must be the same for the sample to count as unchanged; not where it stands in its table."""
        return (
            self.key,
            self.original_key,
            self.source,
            self.file,
            self.size,
            self.mtime_ns,
            self.content,
            self.group,
        )


@dataclass(frozen=True, slots=True)
class Rejected:
    """A raw sample that was not taken, as `rejects.parquet` tells it."""

    number: int
    key: str
    original_key: str
    reason: Reason
    detail: str
    source: str
    file: str


@dataclass(frozen=True)
class Listing:
    """All there is. `entries` stand in the sources' order; `digest` changes when anything listed does."""

    entries: list[Entry]
    rejects: list[Rejected]
    filtered: int
    digest: str

    @property
    def read(self) -> int:
        """Raw samples in all, before any rule."""
        return len(self.entries) + len(self.rejects) + self.filtered


def list_samples(config: Config, progress: Progress = silent) -> Listing:
    """List all sources; UsageError for a config that does not fit them, DataError when they hold nothing."""
    dataset = config.dataset
    splits.check(dataset.splits)
    _require_known_sizes(dataset)
    sources = open_sources(dataset)
    for source in sources:
        _require_columns(dataset, source)
    fingerprint = Fingerprint(config)
    entries: list[Entry] = []
    rejects: list[Rejected] = []
    filtered = 0
    taken: dict[str, str] = {}
    for number, (index, item) in enumerate(_items(sources)):
        if number % PROGRESS_EVERY == 0:
            progress(number, number, "samples listed")
        try:
            if item.fault is not None:
                raise Reject(*item.fault)
            if not filters.passes(dataset.filter, item.fields):
                filtered += 1
                continue
            entry = _entry(dataset, sources[index], number, index, item)
            if entry.key in taken:
                raise Reject("key.duplicate", f"{taken[entry.key]} has this key")
        except Reject as reject:
            rejects.append(_rejected(number, item, reject))
            fingerprint.add(number, reject.reason, reject.detail, item.place, item.original_key, item.file)
            continue
        taken[entry.key] = item.original_key
        entries.append(entry)
        fingerprint.add(number, sources[index].root, item.place, entry.split, *entry.identity)
    fingerprint.add(filtered)
    listing = Listing(entries, rejects, filtered, fingerprint.hexdigest())
    if not listing.read:
        names = ", ".join(str(source.path) for source in dataset.all_sources)
        raise DataError(f"{names}: holds no samples")
    return listing


def _items(sources: list[Source]) -> Iterator[tuple[int, Item]]:
    for index, source in enumerate(sources):
        for item in source.items():
            yield index, item


def _require_known_sizes(dataset: Dataset) -> None:
    """Shards are planned before any image is read, so a maximum in bytes needs images stored as they are."""
    rules = dataset.image
    is_re_encoded = rules.encode != "keep" or rules.max_side is not None
    if dataset.shard.bytes is not None and dataset.modality == "image_text" and is_re_encoded:
        key = "encode" if rules.encode != "keep" else "max_side"
        raise UsageError(
            f"dataset.shard.bytes: no maximum can be kept with dataset.image.{key}, because the size of "
            "re-encoded images is not known beforehand; use dataset.shard.samples instead"
        )


def _require_columns(dataset: Dataset, source: Source) -> None:
    columns = source.columns()
    for name in dataset.filter:
        require("dataset.filter", name, columns, "the source")
    for key, column in (("group_by", dataset.splits.group_by), ("from", dataset.splits.column)):
        if column is not None:
            require(f"dataset.splits.{key}", column, columns, "the source")


def _entry(dataset: Dataset, source: Source, number: int, index: int, item: Item) -> Entry:
    key = key_of(item.original_key)
    group = splits.group_of(dataset.splits, item.fields)
    split = splits.split_of(dataset.splits, key, group, item.fields)
    size, mtime_ns = _stat(f"{source.root}/{item.file}" if item.file[:1] != "/" else item.file)
    return Entry(
        number,
        key,
        item.original_key,
        item.place,
        index,
        item.file,
        size,
        mtime_ns,
        item.content,
        split,
        group,
    )


def _stat(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ABSENT, ABSENT
    return status.st_size, status.st_mtime_ns


def _rejected(number: int, item: Item, reject: Reject) -> Rejected:
    return Rejected(
        number,
        key_of(item.original_key),
        printable(item.original_key),
        reject.reason,
        printable(reject.detail),
        printable(item.place),
        printable(item.file),
    )
