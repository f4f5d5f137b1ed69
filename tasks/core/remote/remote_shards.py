"""Shards on web servers and in buckets: read as they arrive, and kept on a disk of this node.

A thread fetches a few blocks ahead of the reader, so memory stays bounded and a server's pauses do not show.
What arrives is counted and hashed, and is kept under its own digest: a copy is compared with that once in
each process that reads it. Copies appear by rename and are shared by workers and ranks; those used longest
ago make room. Where a shard cannot be had whole there is an error, never a shorter shard. Requests have the
deadlines and tries of `remote_stores`. The price of the cache is a write to disk for each fetched byte.

`TARMAC_CACHE` names its folder (below TMPDIR unless given), `TARMAC_CACHE_SIZE` the bytes that it may take.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from blake3 import blake3

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file, is_disk_full, own_folder
from tasks.core.folders import open_store
from tasks.core.stores import ObjectStat, StoreUnreachable, redact, split_location
from tasks.core.units import parse_size

BLOCK_BYTES = 2 << 20
BLOCKS_AHEAD = 3
"""Of each shard that is being read."""
SIZE = "64GB"
"""Of the cache unless TARMAC_CACHE_SIZE is given."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteShard:
    """A tar at an address: its size in bytes (-1 where the server does not say), the store's own stamp of its
    content, and its BLAKE3 where an index has it."""

    url: str
    size: int
    stamp: str
    blake3: str = ""

    def __str__(self) -> str:
        """For a person, without what in the address would let others read the shard."""
        return redact(self.url)

    @property
    def cache_key(self) -> str:
        return hashlib.blake2b(f"{self.url}\0{self.size}\0{self.stamp}".encode(), digest_size=16).hexdigest()

    def changed(self) -> DataError:
        known = "since it was indexed; run `tarmac index` again" if self.blake3 else "while it was read"
        return DataError(f"{self}: has changed {known}")


class Arriving(io.RawIOBase):
    """The bytes of a shard from front to back, fetched ahead by a thread; the last read compares size and
    digest. `keep` is an open file that gets them as well, until its disk is full.

    DataError, from any read, that names the address and the cause.
    """

    def __init__(self, shard: RemoteShard, keep: BinaryIO | None = None) -> None:
        self._shard, self.keep = shard, keep
        self._hasher, self._position, self._block = blake3(), 0, memoryview(b"")
        self._blocks: deque[bytes | Exception] = deque()
        self._changed, self._is_over, self.is_whole = threading.Condition(), False, False
        self._thread = threading.Thread(target=self._fetch, name="fetch-shard", daemon=True)
        self._thread.start()

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()

    def readinto(self, buffer: Any) -> int:
        if not self._block and not self.is_whole:
            self._block = memoryview(self._next())
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._block))
        view[:count] = self._block[:count]
        self._block = self._block[count:]
        self._position += count
        return count

    def drain(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Read what is left, as long as it is wanted: a tar ends before its file does."""
        while not self.is_whole and is_wanted():
            self._position += len(self._block)
            self._block = memoryview(self._next())

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        super().close()

    def _next(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._blocks))  # the thread always ends with one
            block = self._blocks.popleft()
            self._changed.notify_all()
        if isinstance(block, Exception):
            raise _as_error(self._shard, block) from block
        self._hasher.update(block)
        self.is_whole = not block
        if self.is_whole and self._shard.blake3 not in ("", self.digest):
            raise self._shard.changed()
        if self.keep is not None:
            self._write(block)
        return block

    def _write(self, block: bytes) -> None:
        assert self.keep is not None
        try:
            self.keep.write(block)
            if not block:
                self.keep.flush()
        except OSError as error:
            self.keep = None
            logger.warning("%s: the disk of the cache fails: %s; set TARMAC_CACHE", self._shard, error)

    def _fetch(self) -> None:
        try:
            folder, name = split_location(self._shard.url)
            store = open_store(folder, "URL")
            before, count = self._looked_at(store.stat(name)), 0
            with store.open(name) as file:
                while block := file.read(BLOCK_BYTES):
                    count += len(block)
                    if not self._put(block):
                        return
            size = self._shard.size if self._shard.size >= 0 else before.size
            if count != size >= 0 or store.stat(name).stamp != before.stamp:
                raise self._shard.changed()
            self._put(b"")
        except Exception as error:  # noqa: BLE001 - the reader gets it, whatever it is
            self._put(error)

    def _looked_at(self, found: ObjectStat) -> ObjectStat:
        """What the store says of the shard now, if it can still be the one that is meant."""
        if found.size < 0 and not found.stamp:
            raise FileNotFoundError(2, "no such file, or access is denied")
        if found.size not in (-1, self._shard.size) or found.stamp != self._shard.stamp:
            raise self._shard.changed()
        return found

    def _put(self, block: bytes | Exception) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or len(self._blocks) < BLOCKS_AHEAD)
            self._blocks.append(block)
            self._changed.notify_all()
            return not self._is_over


class ShardCache:
    """Sound copies of remote shards in a folder that takes at most `most_bytes`, drafts included."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.most_bytes = folder, most_bytes
        self._sound: set[tuple[str, int, int]] = set()
        """Copies that this process has compared with their digest: name, inode and time of change."""

    @contextlib.contextmanager
    def stream(self, shard: RemoteShard) -> Iterator[BinaryIO]:
        """The shard from front to back: its copy, or its bytes as they arrive, which become a copy when all
        were read. Nothing waits for others who fetch it too."""
        copy = self._opened(shard)
        if copy is not None:
            with copy:
                yield copy
            return
        with (
            self._draft(shard, f"{shard.cache_key}.stream", waits=False) as draft,
            Arriving(shard, draft) as arriving,
        ):
            yield cast(BinaryIO, arriving)
            arriving.drain()
            if draft is not None and arriving.keep is not None:
                self._keep(draft, shard, arriving.digest)

    def descriptor(self, shard: RemoteShard) -> int:
        """That of the shard's copy, open for reading; it is fetched first where there is none, by one process
        of this node. It stays good when the copy has to make room.

        DataError where the shard cannot be fetched or kept.
        """
        with contextlib.ExitStack() as stack:
            copy = self._opened(shard)
            if copy is None:
                draft = stack.enter_context(self._draft(shard, f"{shard.cache_key}.part", waits=True))
                copy = self._opened(shard) or self._fetched(shard, draft)  # another may just have done it
            with copy:
                return os.dup(copy.fileno())

    def fetch_ahead(
        self, shard: RemoteShard, others: Iterable[RemoteShard], is_wanted: Callable[[], bool]
    ) -> None:
        """Have a copy there before it is used, unless another process fetches it. Copies of `others`, with a
        digest, make room for it last. DataError."""
        for other in others:
            path = self.folder / f"{other.cache_key}-{other.blake3}.tar"
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        copy = self._opened(shard)
        if copy is not None:
            copy.close()
            return
        with self._draft(shard, f"{shard.cache_key}.part", waits=False) as draft:
            if draft is None:
                return
            with Arriving(shard, draft) as arriving:
                arriving.drain(is_wanted)
                if arriving.is_whole and arriving.keep is not None:
                    self._keep(draft, shard, arriving.digest)

    def _fetched(self, shard: RemoteShard, draft: BinaryIO | None) -> BinaryIO:
        if draft is None:
            raise DataError(
                f"{shard}: {shard.size:,} bytes do not fit into the cache of {self.most_bytes:,}; "
                "set TARMAC_CACHE_SIZE higher, or loader.reader: streaming"
            )
        with Arriving(shard, draft) as arriving:
            arriving.drain()
            if arriving.keep is None:
                raise DataError(f"{shard}: {self.folder} has no room for it; set TARMAC_CACHE")
            self._keep(draft, shard, arriving.digest)
        return draft

    def _opened(self, shard: RemoteShard) -> BinaryIO | None:
        """A sound copy, open, so that nobody can take it away any more."""
        for path in sorted(self.folder.glob(f"{shard.cache_key}-{shard.blake3 or '*'}.tar")):
            with contextlib.suppress(FileNotFoundError):
                file = path.open("rb")
                if self._is_sound(path, file, shard):
                    return file
                file.close()
                logger.warning("%s: its copy in the cache is damaged, it is fetched again", shard)
                path.unlink(missing_ok=True)
        return None

    def _is_sound(self, path: Path, file: BinaryIO, shard: RemoteShard) -> bool:
        found = os.fstat(file.fileno())
        if shard.size not in (-1, found.st_size):
            return False
        known = path.name, found.st_ino, found.st_mtime_ns
        if known not in self._sound:
            if blake3_file(path) != path.stem.rpartition("-")[2]:
                return False
            self._sound.add(known)
        os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))  # used last, for those who make room
        return True

    @contextlib.contextmanager
    def _draft(self, shard: RemoteShard, name: str, waits: bool) -> Iterator[BinaryIO | None]:
        """A file of the shard's size that is this process's alone; None where it would be too large or, if
        nothing `waits`, another process has it."""
        if shard.size > self.most_bytes:
            yield None
            return
        path = self.folder / name
        with contextlib.ExitStack() as stack:
            file = None
            while file is None:
                file = stack.enter_context(path.open("ab"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
                except BlockingIOError:
                    yield None
                    return
                if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    file = None  # whoever had it has renamed or removed it meanwhile
            self._make_room(max(shard.size, 0))
            draft = stack.enter_context(path.open("r+b"))
            draft.truncate(max(shard.size, 0))
            try:
                yield draft
            finally:
                if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    path.unlink()

    def _keep(self, draft: BinaryIO, shard: RemoteShard, digest: str) -> None:
        path = self.folder / f"{shard.cache_key}-{digest}.tar"
        os.replace(draft.name, path)
        found = path.stat()
        self._sound.add((path.name, found.st_ino, found.st_mtime_ns))
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        """Remove what killed processes left, then copies used longest ago, until `size` bytes fit."""
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for draft in [*self.folder.glob("*.part"), *self.folder.glob("*.stream")]:
                with contextlib.suppress(OSError), draft.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # or it is in use
                    draft.unlink()
            taken = 0
            copies: list[tuple[int, int, Path]] = []
            for path in self.folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    found = path.stat()
                    taken += found.st_size
                    if path.suffix == ".tar":
                        copies.append((found.st_atime_ns, found.st_size, path))
            for _, copy_size, path in sorted(copies):
                if taken + size <= self.most_bytes:
                    return
                path.unlink(missing_ok=True)
                taken -= copy_size


def cache() -> ShardCache:
    """This node's cache, as the environment says; UsageError where that makes no sense."""
    return _cache(os.environ.get("TARMAC_CACHE", ""), os.environ.get("TARMAC_CACHE_SIZE", SIZE))


@lru_cache
def _cache(named: str, size: str) -> ShardCache:
    try:
        most_bytes = parse_size(size)
    except ValueError as error:
        raise UsageError(f"TARMAC_CACHE_SIZE: {error}") from None
    folder = Path(named) if named else own_folder("TARMAC_CACHE") / "shards"
    try:
        return ShardCache(folder, most_bytes)
    except OSError as error:
        raise UsageError(f"TARMAC_CACHE: {folder} cannot be made: {error.strerror}") from None


def _as_error(shard: RemoteShard, error: Exception) -> DataError:
    if isinstance(error, StoreUnreachable):
        return DataError(str(error))  # which, unlike this one, goes whole from worker to training
    if isinstance(error, DataError):
        return error
    if isinstance(error, UsageError):
        return DataError(f"{shard}: {error}")
    if is_disk_full(error):
        return DataError(f"{shard}: the disk for temporary files is full; set TMPDIR")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataError(f"{shard}: cannot be read: {reason or type(error).__name__}")


def remote_shard(url: str) -> RemoteShard:
    """The shard at an address, as its store describes it now; DataError where there is none."""
    folder, name = split_location(url)
    shard = RemoteShard(url, -1, "")
    try:
        found = open_store(folder, "URL").stat(name)
    except OSError as error:
        raise _as_error(shard, error) from error
    if found.size < 0 and not found.stamp:
        raise DataError(f"{shard}: there is no such file, or access is denied")
    return replace(shard, size=found.size, stamp=found.stamp)
