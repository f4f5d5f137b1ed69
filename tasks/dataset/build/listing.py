"""Every raw sample of every source, brought into the catalogue, and the digest of all that was listed.

Where samples have files of their own, listing opens none of them: one `stat` a sample. Samples of a
sequential source come with their bytes, which are spilled. Filtered samples and what cannot be a sample are
sorted out here; whatever can only be known by decoding is left to the conversion.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.files import digest
from tasks.core.screen import Progress, no_progress
from tasks.core.schema import Config
from tasks.core.stores import Stat
from tasks.dataset import filters, splits
from tasks.dataset.build.catalogue import NAME, SCHEMA, Catalogue
from tasks.dataset.build.check import check
from tasks.dataset.build.entries import Entry, Rejected
from tasks.dataset.build.fingerprint import Fingerprint, members_digest, source_digests
from tasks.dataset.build.shard_plan import Weighed
from tasks.dataset.build.spill import Spill, is_whole
from tasks.dataset.keys import key_of, position
from tasks.dataset.rejects import Reject, printable
from tasks.dataset.sources import Container, Item, Source, of_files
from tasks.dataset.tar.writer import Members, span_bytes

AT_ONCE = 1000
"""Samples between two writes, and two reports of progress."""
SPILL = "spill"
NOTE = "samples listed"


COMMIT_BYTES = 256_000_000
COMMIT_S = 5.0
"""A killed listing loses at most what it read since this much."""


def fingerprint(config: Config, progress: Progress = no_progress) -> str:
    """The digest that `list_samples` would note, found without keeping anything or reading a sequential
    source; UsageError for a config that does not fit, DataError for a source that cannot be listed."""
    running = Fingerprint(config)
    for index, source in enumerate(check(config.dataset)):
        for container in source.containers():
            if source.is_sequential:
                running.add_container(index, container)
                continue
            for number, item in enumerate(source.items(container)):
                running.add_item(source, item, item.stat)
                if number % AT_ONCE == 0:
                    progress(number, 0, NOTE)
    return running.hexdigest()


def list_samples(
    config: Config, staging: Path, progress: Progress = no_progress, *, anew: bool = False
) -> Catalogue:
    """The catalogue of all sources, listed and sorted; what a killed build had read of sequential sources is
    not read again, unless `anew`. Its fact `inputs` is the digest of all that was listed. UsageError and
    DataError as `fingerprint`; DataError too when the sources hold nothing."""
    sources = check(config.dataset)
    catalogue = _opened(config, sources, staging, anew)
    try:
        if catalogue.fact("inputs") is None:
            spill = Spill(staging / SPILL, _spilled(catalogue))
            try:
                _Lister(config, sources, catalogue, spill, progress).run()
            finally:
                spill.close()
    except BaseException:
        catalogue.close()
        raise
    return catalogue


def _opened(config: Config, sources: list[Source], staging: Path, anew: bool) -> Catalogue:
    """The catalogue that a killed build left, when all it says still holds; else a new one."""
    path = staging / NAME
    is_kept = all(source.is_sequential for source in sources)
    rules = "".join([digest(SCHEMA), Fingerprint(config).hexdigest(), *source_digests(config.dataset)])
    if is_kept and path.exists() and not anew:
        with contextlib.suppress(sqlite3.DatabaseError):  # torn by a crash of the machine
            catalogue = Catalogue(path, is_kept=True)
            if catalogue.fact("rules") == rules and _still_holds(catalogue, sources, staging):
                return catalogue
            catalogue.close()
    for left in staging.glob(f"{NAME}*"):
        left.unlink()
    catalogue = Catalogue(path, is_kept=is_kept)
    catalogue.note("rules", rules)
    return catalogue


def _spilled(catalogue: Catalogue) -> dict[int, int]:
    """The sizes of the spill's parts when the last container was done."""
    return {int(part): size for part, size in (catalogue.fact("spill") or {}).items()}


def _still_holds(catalogue: Catalogue, sources: list[Source], staging: Path) -> bool:
    """Whether the containers read so far are the first of those there are now, unchanged; they could all be
    read, and their samples are still there."""
    if catalogue.fact("unread_containers"):
        return False
    known = catalogue.containers()
    there = (
        (index, c.name, repr(c.stat)) for index, source in enumerate(sources) for c in source.containers()
    )
    is_finished = catalogue.fact("inputs") is not None
    are_first = all(one == next(there, None) for one in known)
    are_all = not is_finished or next(there, None) is None
    return are_first and are_all and is_whole(staging / SPILL, _spilled(catalogue))


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
        with ExitStack() as stack:
            since = self._begin(stack)
            for index, source in enumerate(self.sources):
                holds_some = False
                for container in source.containers():
                    if source.is_sequential:
                        running.add_container(index, container)
                    if (index, container.name) in done:
                        holds_some = True
                        continue
                    holds_some |= self._container(index, source, container, numbers, running)
                    since = self._commit_in_time(stack, since)
                if not holds_some:
                    raise DataError(f"{self._named(index)}: holds no samples")
            self._note_spill()
        with self.catalogue.transaction():
            self.catalogue.sort(by_hash=self.config.dataset.shard.order == "hash")
            self.catalogue.note("inputs", running.hexdigest())

    def _named(self, source: int) -> str:
        """The key and place of a source."""
        dataset = self.config.dataset
        key = "dataset.source" if dataset.source is not None else f"dataset.sources[{source}]"
        return f"{key}.path: {dataset.all_sources[source].path}"

    def _begin(self, stack: ExitStack) -> tuple[float, int]:
        """Open a transaction; when, and how much was spilled by then."""
        stack.enter_context(self.catalogue.transaction())
        return time.monotonic(), self.spill.size_bytes

    def _commit_in_time(self, stack: ExitStack, since: tuple[float, int]) -> tuple[float, int]:
        """End the transaction after a container when enough has been read since it began."""
        began, size = since
        if time.monotonic() - began < COMMIT_S and self.spill.size_bytes - size < COMMIT_BYTES:
            return since
        self._note_spill()
        stack.close()
        return self._begin(stack)

    def _note_spill(self) -> None:
        self.spill.flush()
        self.catalogue.note("spill", self.spill.sizes)

    def _container(
        self, index: int, source: Source, container: Container, numbers: Iterator[int], running: Fingerprint
    ) -> bool:
        """Note the samples of a container, and that it is done; whether there were any."""
        rules = self.config.dataset.filter
        listed: list[Weighed[Entry]] = []
        rejected: list[Rejected] = []
        filtered = unread = 0
        number = None
        for item in source.items(container):
            number = next(numbers)
            if not source.is_sequential:
                running.add_item(source, item, item.stat)
            try:
                if item.fault is not None:
                    unread += item.may_pass
                    raise Reject(*item.fault)
                if filters.passes(rules, item.fields):
                    listed.append(self._entry(index, source, number, item))
                else:
                    filtered += 1
            except Reject as reject:
                rejected.append(_rejected(number, item, reject))
            if number % AT_ONCE == 0:
                self._write(listed, rejected)
                self.progress(number, 0, NOTE)
        self._write(listed, rejected)
        self.catalogue.close_container(index, container.name, repr(container.stat), filtered)
        if unread:
            self.catalogue.note("unread_containers", (self.catalogue.fact("unread_containers") or 0) + unread)
        return number is not None

    def _write(self, listed: list[Weighed[Entry]], rejected: list[Rejected]) -> None:
        self.catalogue.add(listed)
        self.catalogue.reject(rejected)
        listed.clear()
        rejected.clear()

    def _entry(self, index: int, source: Source, number: int, item: Item) -> Weighed[Entry]:
        rules = self.config.dataset
        key = key_of(item.original_key)
        group = splits.group_of(rules.splits, item.fields)
        split = splits.split_of(rules.splits, key, group, item.fields)
        place = position(key)
        stat, spilled = item.stat, None
        weight = 1
        if item.members is not None:
            stat = _stat_of(item.members)
            spilled = self.spill.write(place, item.members)
            if rules.shard.bytes is not None:
                weight = span_bytes([len(content) for content in item.members.values()])
        elif rules.shard.bytes is not None:
            weight = of_files(source).stored_bytes(item.file, stat.size, item.content)
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


def _stat_of(members: Members) -> Stat:
    """Of a sample that comes with its bytes: their number, and their digest in place of a time."""
    return Stat(sum(len(content) for content in members.values()), members_digest(members).hexdigest())


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
