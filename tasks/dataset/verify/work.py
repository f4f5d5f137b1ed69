"""Passes over shards: every core busy, progress shown, nothing held but the results of a few.

BLAKE3 leaves the interpreter to other threads; following a tar's headers and decoding do not, so these go to
processes where there is enough of them to be worth their start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from tasks.core.engines.local import map_here, map_in_threads
from tasks.core.process import available_cores
from tasks.core.screen import Progress
from tasks.core.stores import Unreachable, is_remote
from tasks.dataset.verify.report import Level
from tasks.dataset.verify.tars import blake3_of

if TYPE_CHECKING:
    from tasks.dataset.verify.shard import ShardResult, ShardTask

WORTH_PROCESSES_BYTES: dict[Level, int] = {"default": 5_000_000_000, "full": 100_000_000}
"""Below this, starting worker processes (0.7 s) costs more than it saves; decoding is the slowest."""
REQUESTS = 4
"""Remote shards read at the same time, at least."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Work:
    """Does what a level needs, and reports its progress."""

    def __init__(self, level: Level, progress: Progress) -> None:
        self.level = level
        self._progress = progress

    def hash_all(self, folder: str, names: Iterable[str]) -> dict[str, str]:
        """The BLAKE3 of each file that can be read, by its name; Unreachable."""

        def one(name: str) -> str | None:
            try:
                return blake3_of(folder, name)
            except Unreachable:
                raise
            except OSError:
                return None

        names = list(names)
        threads = available_cores()
        if is_remote(folder):
            threads = max(threads, REQUESTS)
        found = map_in_threads(one, names, threads) if threads > 1 else map(one, names)
        digests = {}
        for done, (name, digest) in enumerate(zip(names, found, strict=True), 1):
            if digest is not None:
                digests[name] = digest
            self._progress(done, len(names), "shards")
        return digests

    def examine(
        self, tasks: Iterator[ShardTask], sizes: Mapping[str, int]
    ) -> Iterator[tuple[ShardTask, ShardResult]]:
        """The shards of the tasks examined, in any order; their sizes are given by name."""
        from tasks.dataset.verify.shard import check_shard  # it decodes, and sound shards need none of that

        in_hand: dict[str, ShardTask] = {}

        def handed_over() -> Iterator[ShardTask]:
            for task in tasks:
                in_hand[task.name] = task
                yield task

        for done, result in enumerate(self._map(check_shard, handed_over(), sizes), 1):
            yield in_hand.pop(result.name), result
            self._progress(done, len(sizes), "shards")

    def _map(
        self, check: Callable[[ShardTask], ShardResult], tasks: Iterator[ShardTask], sizes: Mapping[str, int]
    ) -> Iterable[ShardResult]:
        cores = available_cores()
        if cores > 1 and sum(sizes.values()) >= WORTH_PROCESSES_BYTES[self.level]:
            return map_here(check, tasks, cores)
        if cores > 1 and self.level != "full":
            return map_in_threads(check, tasks, max(cores, REQUESTS))
        return map(check, tasks)
