"""The examination of many shards, every core busy, and what it comes to: faults and bad samples.

BLAKE3 leaves the interpreter to other threads; following a tar's headers and decoding do not, so these go to
processes where there is enough of them to be worth their start. Nothing is held but the results of a few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from tasks.core.engines.local import map_here, map_in_threads
from tasks.core.process import available_cores
from tasks.core.screen import Progress
from tasks.core.stores import StoreUnreachable, is_remote
from tasks.dataset.verify.duplicates import KeyFault, SampleKeys
from tasks.dataset.verify.findings import Fault, Level, shortened
from tasks.dataset.verify.tars import blake3_of

if TYPE_CHECKING:
    from tasks.dataset.verify.scan import ShardTask
    from tasks.dataset.verify.shard import ShardResult

WORTH_PROCESSES_BYTES: dict[Level, int] = {"default": 5_000_000_000, "full": 100_000_000}
"""Below this, starting worker processes (0.7 s) costs more than it saves; decoding is the slowest."""
REQUESTS = 4
"""Remote shards read at the same time, at least."""


@dataclass(frozen=True)
class BadSample:
    """A sample that may not be trusted, and the code of the first thing that is wrong with it."""

    split: str
    shard: str
    key: str
    reason: str


OnBad = Callable[[BadSample], None]


class ShardExamination:
    """Examines shards at a level, reports the progress, and takes the results in any order."""

    def __init__(self, level: Level, progress: Progress, on_bad: OnBad | None = None) -> None:
        self.level = level
        self.faults: list[Fault] = []
        self.blake3: dict[str, str] = {}
        """Of each tar that was read."""
        self.counts: dict[str, int] = {}
        """The samples of each tar that was examined to its end."""
        self.undecoded: set[str] = set()
        self.keys = SampleKeys()
        self._progress = progress
        self._on_bad = on_bad
        self._listed: Counter[str] = Counter()

    @property
    def wants_bad_samples(self) -> bool:
        return self._on_bad is not None

    def hash_all(self, folder: str, names: Iterable[str]) -> None:
        """Take the BLAKE3 of each file that can be read; Unreachable."""

        def one(name: str) -> str | None:
            try:
                return blake3_of(folder, name)
            except StoreUnreachable:
                raise
            except OSError:
                return None

        names = list(names)
        threads = available_cores()
        if is_remote(folder):
            threads = max(threads, REQUESTS)
        found = map_in_threads(one, names, threads) if threads > 1 else map(one, names)
        for done, (name, digest) in enumerate(zip(names, found, strict=True), 1):
            if digest is not None:
                self.blake3[name] = digest
            self._progress(done, len(names), "shards")

    def examine(self, tasks: Iterator[ShardTask], sizes: Mapping[str, int]) -> Iterator[ShardResult]:
        """The shards of the tasks examined, in any order; their sizes are given by name."""
        from tasks.dataset.verify.shard import check_shard  # it decodes, and sound shards need none of that

        cores = available_cores()
        if cores > 1 and sum(sizes.values()) >= WORTH_PROCESSES_BYTES[self.level]:
            results: Iterable[ShardResult] = map_here(check_shard, tasks, cores)
        elif cores > 1 and self.level != "full":
            results = map_in_threads(check_shard, tasks, max(cores, REQUESTS))
        else:
            results = map(check_shard, tasks)
        for done, result in enumerate(results, 1):
            yield result
            self._progress(done, len(sizes), "shards")

    def take(self, result: ShardResult) -> None:
        """What the examination of a shard has brought."""
        self.undecoded |= result.undecoded
        if result.blake3 is not None:
            self.blake3[result.name] = result.blake3
        if result.is_read:
            self.counts[result.name] = len(result.keys)
        self._list(result.faults)
        for key, reason in result.bad.items():
            self.bad(result.name, key, reason)
        self.keys.add(result.name, result.keys, result.bad)

    def bad(self, shard: str, key: str, reason: str) -> None:
        if self._on_bad is not None:
            self._on_bad(BadSample(shard.rpartition("/")[0], shard, key, reason))

    def finish(self) -> None:
        """Add what is known only now that all shards were seen."""
        for found in (self.keys.lacking(), self.keys.duplicates()):
            for _, group in groupby(found, key=attrgetter("shard")):
                self._list(self._reported(group))

    def _reported(self, found: Iterable[KeyFault]) -> Iterator[Fault]:
        for one in found:
            if not one.is_known:
                self.bad(one.shard, one.key, one.fault.code)
            yield one.fault

    def _list(self, faults: Iterable[Fault]) -> None:
        """Take the faults of one shard, as far as there is room for them."""
        listed = shortened(faults, self._listed)
        self._listed.update(one.code for one in listed)
        self.faults += listed

    def close(self) -> None:
        self.keys.close()
