"""The raw samples of damaged shards, found again in their sources by key.

A source is listed, as for a build, but only what is sought is kept, so repairing one sample of a large source
takes neither a build's catalogue nor its room. Of a sequential source the containers that are remembered are
read first, and no more once all is found. What has changed is taken as well: whether it gives the same bytes
is for the BLAKE3 to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.errors import TarmacError
from tasks.core.schema import Dataset
from tasks.core.screen import Progress
from tasks.core.stores import ABSENT, Stat
from tasks.dataset import filters
from tasks.dataset.build.catalogue import Entry
from tasks.dataset.build.fingerprint import members_digest
from tasks.dataset.build.spill import Spill
from tasks.dataset.keys import key_of, shard_hash
from tasks.dataset.rejects import Reject, printable
from tasks.dataset.repair.cause import is_of_full_disk, is_of_host, is_reject_of_host, worded
from tasks.dataset.sources import Container, Item, Source, of_files, open_sources

AT_ONCE = 1000
NOTE = "samples of the source looked through"


@dataclass(frozen=True, slots=True)
class Sought:
    """A raw sample as it was when it was converted; `number` counts all that are sought. What is not known of
    it is None."""

    number: int
    shard: str
    original_key: str
    file: str | None
    size: int | None
    stamp: str | None


@dataclass
class Found:
    """The entries by key, why a key has none, and what kept a whole source from being read.

    `unread` are the keys that the host keeps from being read; `is_of_host` says it of a whole source.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    is_of_host: bool = False

    def add_trouble(self, error: Exception) -> None:
        """Note why a source cannot be read; a full disk, which is nothing of the source's, is raised."""
        if is_of_full_disk(error):
            raise error
        self.troubles.append(worded(error))
        self.is_of_host |= is_of_host(error)


def seek(dataset: Dataset, sought: Mapping[str, Sought], spill_folder: Path, progress: Progress) -> Found:
    """Look for all that is sought; raw members of sequential sources are spilled into the folder."""
    spill = Spill(spill_folder, {})
    try:
        seeker = _Seeker(dataset, sought, spill, progress)
        seeker.run()
        spill.flush()
    finally:
        spill.close()
    return seeker.found


class _Seeker:
    def __init__(
        self, dataset: Dataset, sought: Mapping[str, Sought], spill: Spill, progress: Progress
    ) -> None:
        self._dataset = dataset
        self._sought = sought
        self._spill = spill
        self._progress = progress
        self._unsure = set(sought)
        """Keys of which no sample has been seen that is as it was."""
        self.found = Found()

    def run(self) -> None:
        try:
            sources = open_sources(self._dataset)
        except TarmacError as error:
            self.found.add_trouble(error)
            return
        seen = 0
        for index, source in enumerate(sources):
            try:
                for item in self._items(source):
                    self._look_at(index, source, item)
                    seen += 1
                    if seen % AT_ONCE == 0:
                        self._progress(seen, 0, NOTE)
                    if not self._unsure:
                        return
            except (TarmacError, OSError, pa.ArrowException) as error:
                self.found.add_trouble(error)

    def _items(self, source: Source) -> Iterator[Item]:
        for container in self._containers(source):
            yield from source.items(container)

    def _containers(self, source: Source) -> Iterator[Container]:
        if not source.is_sequential:
            yield from source.containers()
            return
        remembered = {one.file for one in self._sought.values()}
        later = []
        for container in source.containers():
            if printable(container.name) in remembered:
                yield container
            else:
                later.append(container)
        yield from later

    def _look_at(self, index: int, source: Source, item: Item) -> None:
        key = key_of(item.original_key)
        wanted = self._sought.get(key)
        if wanted is None or key not in self._unsure:
            return
        if item.fault is not None:
            self._lose(key, *item.fault)
            return
        if not filters.passes(self._dataset.filter, item.fields):
            self.found.lost.setdefault(key, "dataset.filter leaves it out now")
            return
        stat = _stat(item)
        if stat == ABSENT and wanted.size != ABSENT.size:
            self._lose(key, *_why_absent(source, item))
            return
        is_same = (wanted.original_key, wanted.file, wanted.size, wanted.stamp) == (
            printable(item.original_key),
            printable(item.file),
            stat.size,
            stat.stamp,
        )
        if is_same:
            self._unsure.remove(key)
        if is_same or key not in self.found.entries:
            self.found.entries[key] = self._entry(key, wanted, index, item, stat)

    def _lose(self, key: str, reason: str, detail: str) -> None:
        if is_reject_of_host(reason, detail):
            self.found.unread.add(key)
        self.found.lost.setdefault(key, f"{reason}: {detail}" if reason else detail)

    def _entry(self, key: str, wanted: Sought, index: int, item: Item, stat: Stat) -> Entry:
        spilled: Any = (
            (None, None, None) if item.members is None else self._spill.write(shard_hash(key), item.members)
        )
        return Entry(
            number=wanted.number,
            key=key,
            original_key=item.original_key,
            place=item.place,
            source=index,
            file=item.file,
            size=stat.size,
            stamp=stat.stamp,
            content=item.content,
            split=wanted.shard,
            group=None,
            part=spilled[0],
            offset=spilled[1],
            length=spilled[2],
        )


def _why_absent(source: Source, item: Item) -> tuple[str, str]:
    """Reason and detail of a file that cannot be looked at."""
    try:
        of_files(source).read(item.file, item.content)
    except Reject as reject:
        if is_reject_of_host(reject.reason, reject.detail):
            return reject.reason, reject.detail
    return "", "its file is gone"


def _stat(item: Item) -> Stat:
    if item.members is None:
        return item.stat
    return Stat(
        sum(len(content) for content in item.members.values()), members_digest(item.members).hexdigest()
    )
