"""Copies shards to a disk of this node ahead of their use: `loader.stage: node`.

A thread of the training process goes through the coming positions and copies the shards that they lie in, as
far ahead as the disk has room; what the training has passed makes room again. Readers take a copy where there
is one and the shard itself otherwise, so nothing ever waits for a copy: staging changes how fast a sample
comes, never which. Copies appear by rename, ranks of one node share them, and each sample read from one is
compared with its checksum like any other.

Remote shards, whose copies lie in the cache of `tasks.core.remote`, are fetched ahead in the same way: those
of the next CHUNK positions, as far as the cache holds them beside those in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError
from tasks.core.files import own_folder
from tasks.core.remote.remote_shards import RemoteShard, cache

CHUNK = 4096
"""Positions that are looked at together; those of a window, mostly."""
FETCHED_FOR = 256
"""Positions whose remote shards are fetched together: few, as they are had in no order of their own."""
BLOCK_BYTES = 8 << 20
SPARE = 0.1
"""Share of the disk that stays free."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StagedShard:
    """A shard, and where its copy belongs."""

    path: Path
    copy: Path


ShardsAt = Callable[[range], Sequence[StagedShard | RemoteShard]]
"""The shards that the samples at some positions lie in, each once."""


def folder_of(version: Path) -> Path:
    """Where copies of a version's shards lie on this node; UsageError as `own_folder`."""
    return own_folder("loader.stage") / version.resolve().name


class StagedPositions(Iterable[range]):
    """Passes on the positions of a training, and has the shards of those to come copied meanwhile by what
    `ahead` makes.

    It ends with its iterator.
    """

    def __init__(self, positions: Iterable[range], ahead: Callable[[], Ahead]) -> None:
        self._positions, self._ahead = positions, ahead

    def __iter__(self) -> Iterator[range]:
        stager = self._ahead()
        stager.start()
        try:
            for positions in self._positions:
                stager.reach(positions.start)
                yield positions
        finally:
            stager.close()


class Ahead(threading.Thread, ABC):
    """Has the shards of the positions to come copied, chunk by chunk."""

    def __init__(self, shards_at: ShardsAt, start: int, ahead: int, chunk: int = CHUNK) -> None:
        """`shards_at` is asked for at most `ahead` positions after the one that was reached."""
        super().__init__(name="stage-shards", daemon=True)
        self._shards_at, self._ahead, self._chunk = shards_at, ahead, chunk
        self._reached, self._changed, self._is_over = start, threading.Condition(), False

    def reach(self, position: int) -> None:
        """The training has come to `position`."""
        with self._changed:
            self._reached = position
            self._changed.notify()

    def close(self) -> None:
        """It ends soon."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def run(self) -> None:
        for start in count(self._reached, self._chunk):
            if not self._wait(partial(self._is_near, start)):
                return
            for shard in self._shards_at(range(start, start + self._chunk)):
                self._have(shard, start + self._chunk)
                if self._is_over:
                    return

    def _is_near(self, position: int) -> bool:
        return position < self._reached + self._ahead

    def _wait(self, is_time: Callable[[], bool]) -> bool:
        """Wait until then; whether it goes on at all."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or is_time())
            return not self._is_over

    @abstractmethod
    def _have(self, shard: Any, until: int) -> None:
        """Have its copy there until the training has passed `until`, if that can be."""


class Fetcher(Ahead):
    """Fetches remote shards. What cannot be had is logged here, and ends the training where it is needed."""

    def __init__(self, shards_at: ShardsAt, start: int) -> None:
        super().__init__(shards_at, start, CHUNK, FETCHED_FOR)
        self._cache = cache()
        self._used_last: dict[RemoteShard, int] = {}

    def _have(self, shard: RemoteShard, until: int) -> None:
        if shard in self._used_last:
            self._used_last[shard] = until
            return
        self._wait(lambda: self._reached >= until or self._has_room(shard))
        if self._is_over or self._reached >= until:
            return
        try:
            self._cache.fetch_ahead(shard, self._used_last, lambda: not self._is_over)
        except DataError as error:
            logger.info("not fetched ahead: %s", error)
        self._used_last[shard] = until

    def _has_room(self, shard: RemoteShard) -> bool:
        """Whether the cache takes it beside those that the training has not passed."""
        self._used_last = {one: until for one, until in self._used_last.items() if until > self._reached}
        return sum(one.size for one in self._used_last) + shard.size <= self._cache.most_bytes


class Stager(Ahead):
    """Copies shards, and takes its copies away at its end."""

    def __init__(self, shards_at: ShardsAt, start: int, ahead: int) -> None:
        super().__init__(shards_at, start, ahead)
        self._used_last: dict[Path, int] = {}
        """By copy, the last position of the last chunk that needs it."""

    def close(self) -> None:
        super().close()
        self.join()
        for copy in self._used_last:
            copy.unlink(missing_ok=True)

    def _have(self, shard: StagedShard, until: int) -> None:
        try:
            self._stage(shard, until)
        except OSError as error:
            logger.warning("loader.stage: %s is read where it lies: %s", shard.path, error)

    def _stage(self, shard: StagedShard, until: int) -> None:
        size = shard.path.stat().st_size
        if shard.copy.exists() and shard.copy.stat().st_size == size:
            self._used_last[shard.copy] = until
            return
        shard.copy.parent.mkdir(parents=True, exist_ok=True)
        if self._wait(lambda: self._has_room(shard.copy.parent, size)):
            self._used_last[shard.copy] = until
            self._copy(shard)

    def _has_room(self, folder: Path, size: int) -> bool:
        """Also by taking away what was passed. True for a shard that no room can be made for: copying says
        why."""
        disk = shutil.disk_usage(folder)
        free, needed = disk.free, size + int(SPARE * disk.total)
        for copy in [copy for copy, until in self._used_last.items() if until <= self._reached]:
            if free >= needed:
                break
            with contextlib.suppress(FileNotFoundError):
                free += copy.stat().st_size
                copy.unlink()
            del self._used_last[copy]
        return free >= needed or not self._used_last

    def _copy(self, shard: StagedShard) -> None:
        draft = shard.copy.with_suffix(".part")
        with shard.path.open("rb") as source, draft.open("ab") as target:
            try:
                fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another rank of this node copies it
            if not draft.exists() or not os.path.samestat(os.fstat(target.fileno()), draft.stat()):
                return  # and has just done so
            target.truncate(0)
            while block := source.read(BLOCK_BYTES):
                target.write(block)
                if self._is_over:
                    draft.unlink(missing_ok=True)
                    return
            target.flush()
            os.replace(draft, shard.copy)
