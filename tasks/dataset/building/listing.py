"""Every raw sample of every source, brought into the catalogue, and the digest of all that was listed.

Where samples have files of their own, listing opens none of them: one `stat` a sample. Samples of a
sequential source come with their bytes, which are spilled. Filtered samples and what cannot be a sample are
sorted out here; whatever can only be known by decoding is left to the conversion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError, UsageError
from tasks.core.progress import Progress, silent
from tasks.core.schema import Config, Dataset
from tasks.core.stores import Stat
from tasks.dataset import splits
from tasks.dataset.building import filters
from tasks.dataset.building.catalogue import NAME, Catalogue
from tasks.dataset.building.entries import Entry, Rejected
from tasks.dataset.building.fingerprint import Fingerprint, rules_digest
from tasks.dataset.building.plan import Weighed
from tasks.dataset.building.spill import Spill
from tasks.dataset.keys import key_of, position
from tasks.dataset.reasons import Reject, printable
from tasks.dataset.samples import MODALITIES
from tasks.dataset.sources import Container, Item, Source, open_sources
from tasks.dataset.sources.reading.columns import require
from tasks.dataset.tar import Members, span_bytes

AT_ONCE = 1000
"""Samples between two writes, and two reports of progress."""
SPILL = "spill"
NOTE = "samples listed"


def check(dataset: Dataset) -> list[Source]:
    """The config's sources; UsageError for a config that does not fit them."""
    splits.check(dataset.splits)
    _require_known_sizes(dataset)
    MODALITIES[dataset.modality].check(dataset)
    if dataset.mirror is not None:
        from tasks.dataset import mirror  # which brings in fsspec

        mirror.check(dataset.mirror)
    sources = open_sources(dataset)
    for source in sources:
        columns = source.columns()
        for name in dataset.filter:
            require("dataset.filter", name, columns, "the source")
        for key, column in (("group_by", dataset.splits.group_by), ("from", dataset.splits.column)):
            if column is not None:
                require(f"dataset.splits.{key}", column, columns, "the source")
    return sources


def fingerprint(config: Config, progress: Progress = silent) -> str:
    """The digest that `list_samples` would note, found without keeping anything or reading a sequential
    source; UsageError for a config that does not fit, DataError for a source that cannot be listed."""
    running = Fingerprint(config)
    for index, source in enumerate(check(config.dataset)):
        for container in source.containers():
            if source.is_sequential:
                running.add_container(index, container)
                continue
            for number, item in enumerate(source.items(container)):
                running.add_item(source, item, _stat(source, item))
                if number % AT_ONCE == 0:
                    progress(number, 0, NOTE)
    return running.hexdigest()


def list_samples(config: Config, staging: Path, progress: Progress = silent) -> Catalogue:
    """The catalogue of all sources, listed and sorted; what a killed build had read of sequential sources is
    not read again. Its fact `inputs` is the digest of all that was listed. UsageError and DataError as
    `fingerprint`; DataError too when the sources hold nothing."""
    sources = check(config.dataset)
    catalogue = _opened(config, sources, staging)
    try:
        if catalogue.fact("inputs") is None:
            sizes = catalogue.fact("spill") or {}
            spill = Spill(staging / SPILL, {int(part): size for part, size in sizes.items()})
            try:
                _Lister(config, sources, catalogue, spill, progress).run()
            finally:
                spill.close()
        if not catalogue.read:
            names = ", ".join(source.path for source in config.dataset.all_sources)
            raise DataError(f"{names}: holds no samples")
    except BaseException:
        catalogue.close()
        raise
    return catalogue


def _opened(config: Config, sources: list[Source], staging: Path) -> Catalogue:
    """The catalogue that a killed build left, when all it says still holds; else a new one."""
    path = staging / NAME
    rules = rules_digest(config.dataset) + Fingerprint(config).hexdigest()
    rules += "".join(f"\0{source.location}" for source in sources)
    if path.exists():
        catalogue = Catalogue(path)
        if catalogue.fact("rules") == rules and _still_holds(catalogue, sources):
            return catalogue
        catalogue.close()
        for left in staging.glob(f"{NAME}*"):
            left.unlink()
    catalogue = Catalogue(path)
    catalogue.note("rules", rules)
    return catalogue


def _still_holds(catalogue: Catalogue, sources: list[Source]) -> bool:
    """Whether the containers read so far are the first of those there are now, unchanged."""
    if not all(source.is_sequential for source in sources):
        return False
    known = catalogue.containers()
    there = (
        (index, c.name, repr(c.stat)) for index, source in enumerate(sources) for c in source.containers()
    )
    is_whole = catalogue.fact("inputs") is not None
    same = all(one == next(there, None) for one in known)
    return same and (not is_whole or next(there, None) is None)


@dataclass
class _Lister:
    """One listing of all sources into the catalogue."""

    config: Config
    sources: list[Source]
    catalogue: Catalogue
    spill: Spill
    progress: Progress

    def run(self) -> None:
        done = {(source, name) for source, name, _ in self.catalogue.containers()}
        running = Fingerprint(self.config)
        numbers = count(self.catalogue.following_number)
        for index, source in enumerate(self.sources):
            for container in source.containers():
                if source.is_sequential:
                    running.add_container(index, container)
                if (index, container.name) not in done:
                    self._container(index, source, container, numbers, running)
        with self.catalogue.transaction():
            self.catalogue.sort(by_hash=self.config.dataset.shard.order == "hash")
            self.catalogue.note("inputs", running.hexdigest())

    def _container(
        self, index: int, source: Source, container: Container, numbers: Iterator[int], running: Fingerprint
    ) -> None:
        """One transaction: the samples, their spilled bytes, and that the container is done."""
        listed: list[Weighed[Entry]] = []
        rejected: list[Rejected] = []
        filtered = 0
        with self.catalogue.transaction():
            for item in source.items(container):
                number = next(numbers)
                stat = Stat(0, "") if source.is_sequential else _stat(source, item)
                if not source.is_sequential:
                    running.add_item(source, item, stat)
                try:
                    if item.fault is not None:
                        raise Reject(*item.fault)
                    if filters.passes(self.config.dataset.filter, item.fields):
                        listed.append(self._entry(index, source, number, item, stat))
                    else:
                        filtered += 1
                except Reject as reject:
                    rejected.append(_rejected(number, item, reject))
                if number % AT_ONCE == 0:
                    self._write(listed, rejected)
                    self.progress(number, 0, NOTE)
            self._write(listed, rejected)
            self.spill.flush()
            self.catalogue.note("spill", self.spill.sizes)
            self.catalogue.close_container(index, container.name, repr(container.stat), filtered)

    def _write(self, listed: list[Weighed[Entry]], rejected: list[Rejected]) -> None:
        self.catalogue.add(listed)
        self.catalogue.reject(rejected)
        listed.clear()
        rejected.clear()

    def _entry(self, index: int, source: Source, number: int, item: Item, stat: Stat) -> Weighed[Entry]:
        rules = self.config.dataset
        key = key_of(item.original_key)
        group = splits.group_of(rules.splits, item.fields)
        split = splits.split_of(rules.splits, key, group, item.fields)
        place = position(key)
        spilled = None
        weight = 1
        if item.members is not None:
            stat = _stat_of(item.members)
            spilled = self.spill.write(place, item.members)
            if rules.shard.bytes is not None:
                weight = span_bytes([len(content) for content in item.members.values()])
        elif rules.shard.bytes is not None:
            weight = source.stored_bytes(item.file, stat.size, item.content)
        entry = Entry(
            number,
            key,
            item.original_key,
            item.place,
            index,
            item.file,
            stat.size,
            stat.stamp,
            item.content,
            split,
            group,
            spilled,
        )
        return Weighed(place, weight, entry)


def _stat(source: Source, item: Item) -> Stat:
    return source.stat(item.file)


def _stat_of(members: Members) -> Stat:
    """Of a sample that comes with its bytes: their number, and their digest in place of a time."""
    running = blake2b(digest_size=16)
    for suffix in sorted(members):
        running.update(f"{suffix}\0{len(members[suffix])}\0".encode())
        running.update(members[suffix])
    return Stat(sum(len(content) for content in members.values()), running.hexdigest())


def _require_known_sizes(dataset: Dataset) -> None:
    """Shards are planned before any sample is converted, so a maximum in bytes needs samples stored as they
    are."""
    if dataset.shard.bytes is None:
        return
    changes: Mapping[str, Any] = {
        "image.encode": dataset.image.encode != "keep",
        "image.max_side": dataset.image.max_side is not None,
    }
    for key, is_set in changes.items():
        if is_set and dataset.modality != "volume_report":
            raise UsageError(
                f"dataset.shard.bytes: no maximum can be kept with dataset.{key}, because the size of "
                "re-encoded images is not known beforehand; use dataset.shard.samples instead"
            )


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
