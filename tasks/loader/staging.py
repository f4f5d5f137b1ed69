"""Copies shards to a disk of this node before they are used.

A thread of the training process goes through the coming positions and copies the shards that hold them. It
stops where the cache is full of copies that the training has not passed, and goes on as these are passed.
With `loader.stage: node` it copies shards of this machine as far ahead as the disk has room. Readers take a
copy where there is one and the shard itself otherwise, so nothing ever waits for a copy: staging changes how
fast a sample arrives, never which one. Remote shards are fetched for the next CHUNK positions only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.folders import open_store
from tasks.core.remote.remote_shards import RemoteShard, ShardCache, StagedShard
from tasks.dataset.version.layout import shard_name

CHUNK = 4096
"""Positions that are staged together: about those of a window."""
FETCHED_FOR = 256
"""Positions whose remote shards are fetched together: few, as these are fetched in arbitrary order."""
logger = logging.getLogger(__name__)

ShardsAt = Callable[[range], Sequence[RemoteShard]]
"""The shards that hold the samples at some positions, each once."""


def copy_name(version: Path, split: str, shard: int) -> str:
    """Return the name of a staged shard's copy; `version` is a path without links, for its last part to be
    the version's name."""
    return f"{version.name}-{shard_name(split, shard).replace('/', '-')}"


def staged_shard(version: Path, split: str, shard: int) -> StagedShard:
    """Return a shard of this machine that is to be staged; its size is -1 where the file is missing."""
    found = open_store(str(version)).stat(shard_name(split, shard))
    copy = copy_name(version, split, shard)
    return StagedShard(str(version / shard_name(split, shard)), found.size, found.stamp, copy=copy)


class StagedPositions(Iterable[range]):
    """Passes on the positions of a training while the thread that `ahead` makes copies the shards of the
    coming ones. The thread ends with the iterator."""

    def __init__(self, positions: Iterable[range], ahead: Callable[[], ShardsAhead]) -> None:
        self._positions, self._ahead = positions, ahead

    def __iter__(self) -> Iterator[range]:
        thread = self._ahead()
        thread.start()
        try:
            for positions in self._positions:
                thread.reach(positions.start)
                yield positions
        finally:
            thread.close()


class ShardsAhead(threading.Thread):
    """Copies the shards of the positions to come into a cache, `chunk` positions at a time and at most
    `ahead` positions after the one that the training has reached.

    A shard that cannot be copied is logged. A remote one then ends the training where it is needed; a shard
    of this machine is read where it lies.
    """

    def __init__(
        self, shards_at: ShardsAt, start: int, cache: ShardCache, ahead: int = CHUNK, chunk: int = FETCHED_FOR
    ) -> None:
        super().__init__(name="stage-shards", daemon=True)
        self._shards_at, self._cache, self._ahead, self._chunk = shards_at, cache, ahead, chunk
        self._reached, self._changed, self._is_over = start, threading.Condition(), False
        self._used_last: dict[RemoteShard, int] = {}
        """For each shard that the training has not passed, the end of the last chunk that needs it."""
        self._copied: set[RemoteShard] = set()

    def reach(self, position: int) -> None:
        """Report that the training has come to `position`."""
        with self._changed:
            self._reached = position
            self._changed.notify()

    def close(self) -> None:
        """End the thread. The copies of `loader.stage` are removed; those of remote shards stay."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._cache.most_bytes is None:
            self.join()
            for shard in self._copied:
                self._cache.remove(shard)

    def run(self) -> None:
        for start in count(self._reached, self._chunk):
            if not self._wait(partial(self._is_near, start)):
                return
            for shard in self._shards_at(range(start, start + self._chunk)):
                self._copy(shard, start + self._chunk)
                if self._is_over:
                    return

    def _is_near(self, position: int) -> bool:
        return position < self._reached + self._ahead

    def _wait(self, is_time: Callable[[], bool]) -> bool:
        """Wait until `is_time()`; return False where the thread is to end instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or is_time())
            return not self._is_over

    def _copy(self, shard: RemoteShard, until: int) -> None:
        """Copy a shard that is used before position `until`, once the cache has room for it."""
        if self._used_last.get(shard, 0) > self._reached:
            self._used_last[shard] = until
            return
        try:
            limit = self._cache.limit()  # looks at every copy: not while the training waits for the lock
            if shard.size > limit:
                raise DataError(f"{shard}: {self._cache.folder} has no room for {shard.size:,} bytes")
            self._wait(lambda: self._reached >= until or self._in_use_bytes() + shard.size <= limit)
            if self._is_over or self._reached >= until:
                return
            self._used_last[shard] = until
            self._copied.add(shard)
            self._cache.fetch_ahead(shard, self._in_use(), lambda: not self._is_over)
        except (DataError, OSError) as error:
            logger.warning("not copied ahead: %s", error)

    def _in_use(self) -> list[RemoteShard]:
        """Return the copied shards that the training has not passed, and forget the others."""
        self._used_last = {shard: until for shard, until in self._used_last.items() if until > self._reached}
        return list(self._used_last)

    def _in_use_bytes(self) -> int:
        return sum(shard.size for shard in self._in_use())
