"""Reads shards from web servers and buckets as they arrive, and keeps copies of shards on a disk of this
node.

Ranges are fetched ahead of the reader, so memory stays bounded and a server's pauses do not show. The bytes
that arrive are counted and hashed, and a copy is named after its digest: each process that reads the copy
compares the two once. Copies appear by rename and are shared by workers and ranks; the least recently used
ones make room. A shard that cannot be fetched whole is an error, never a shorter shard.
Requests have the deadlines and retries of `remote_stores`. The price of the cache is a write to disk for each
fetched byte.

`TARMAC_CACHE` names its folder (by default below TMPDIR), `TARMAC_CACHE_SIZE` the bytes that it may take.
`loader.stage: node` keeps copies of this machine's own shards in a second cache, which may fill the disk up
to a spare tenth and is emptied by the training that filled it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from blake3 import blake3

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file, is_disk_full, own_folder
from tasks.core.folders import open_store
from tasks.core.remote import ranges
from tasks.core.stores import ObjectStat, StoreUnreachable, redact, split_location
from tasks.core.units import parse_size

SIZE = "64GB"
"""Default of TARMAC_CACHE_SIZE."""
SPARE = 0.1
"""Share of the disk that staged copies leave free."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteShard:
    """A tar at an address: its size in bytes (-1 where the server does not report it), the store's own stamp
    of its content, and its BLAKE3 where an index records it. The fields are those of foreign.json.
    """

    url: str
    size: int
    stamp: str
    blake3: str = ""

    def __str__(self) -> str:
        """Return the address for messages, without credentials."""
        return redact(self.url)

    @property
    def cache_key(self) -> str:
        return hashlib.blake2b(f"{self.url}\0{self.size}\0{self.stamp}".encode(), digest_size=16).hexdigest()

    def copy_name(self, digest: str) -> str:
        """Return the file name in the cache of a copy with this digest."""
        return f"{self.cache_key}-{digest}.tar"

    def changed(self) -> DataError:
        known = "since it was indexed; run `tarmac index` again" if self.blake3 else "while it was read"
        return DataError(f"{self}: has changed {known}")


@dataclass(frozen=True)
class StagedShard(RemoteShard):
    """A shard of this machine, `url` being its path, that is copied to the file `copy` of the cache.

    Every sample read from the copy is compared with a checksum, so the copy is not compared with a digest.
    """

    copy: str = ""

    def copy_name(self, digest: str) -> str:
        return self.copy


class Arriving(io.RawIOBase):
    """The bytes of a shard from front to back, fetched ahead; the last read compares size and digest. They
    are also written to the open file `keep`, until its disk is full.

    Any read may raise a DataError that names the address and the cause.
    """

    def __init__(self, shard: RemoteShard, keep: BinaryIO | None = None) -> None:
        self._shard, self.keep = shard, keep
        self._hasher, self._position, self._block = blake3(), 0, memoryview(b"")
        self._blocks, self.is_whole = self._fetched(), False
        self._written: Future[None] | None = None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()

    def read(self, count: int = -1) -> bytes:
        """Return up to `count` bytes, of one block, or all; the inherited method copies each byte twice."""
        return self.readall() if count < 0 else bytes(self._taken(count))

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        content = self._taken(len(view))
        view[: len(content)] = content
        return len(content)

    def _taken(self, count: int) -> memoryview:
        if not self._block and not self.is_whole:
            self._block = self._next()
        content, self._block = self._block[:count], self._block[count:]
        self._position += len(content)
        return content

    def drain(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Read the rest, as long as it is wanted: a tar ends before its file does."""
        while not self.is_whole and is_wanted():
            self._position += len(self._block)
            self._block = self._next()

    def close(self) -> None:
        self._await_copy()
        self._blocks.close()
        super().close()

    def _next(self) -> memoryview:
        """Return the next block, an empty one at the end."""
        try:
            block = next(self._blocks, memoryview(b""))
        except Exception as error:
            raise _as_error(self._shard, error) from error
        self._hasher.update(block)
        self.is_whole = not block
        if self.is_whole and self._shard.blake3 not in ("", self.digest):
            raise self._shard.changed()
        self._await_copy()
        if self.keep is not None and block:
            self._written = ranges.writers().submit(_write, self.keep, block)
        return block

    def _await_copy(self) -> None:
        """Wait until the last block is written to the copy, which is given up where its disk is full."""
        written, self._written = self._written, None
        try:
            if written is not None:
                written.result()
        except OSError as error:
            self.keep = None
            logger.warning(
                "%s: its copy cannot be written: %s; set TARMAC_CACHE or TMPDIR", self._shard, error
            )

    def _fetched(self) -> Generator[memoryview, None, None]:
        folder, name = split_location(self._shard.url)
        store = open_store(folder, "URL")
        looked_at, count = ranges.threads().submit(store.stat, name), 0
        with contextlib.closing(store.blocks(name, self._shard.size)) as blocks:
            before = None
            for block in blocks:
                before = before or self._looked_at(looked_at.result())
                count += len(block)
                yield block
        before = before or self._looked_at(looked_at.result())
        size = self._shard.size if self._shard.size >= 0 else before.size
        is_known = bool(self._shard.blake3)  # by which the reader compares the content itself
        if count != size >= 0 or (not is_known and store.stat(name).stamp != before.stamp):
            raise self._shard.changed()

    def _looked_at(self, found: ObjectStat) -> ObjectStat:
        """Return the store's present description of the shard; raise where it is another one than
        expected."""
        if found.size < 0 and not found.stamp:
            raise FileNotFoundError(2, "no such file, or access is denied")
        if found.size not in (-1, self._shard.size) or found.stamp != self._shard.stamp:
            raise self._shard.changed()
        return found


def _write(file: BinaryIO, block: memoryview) -> None:
    file.write(block)
    file.flush()


class ShardCache:
    """Sound copies of shards in a folder that takes at most `most_bytes`, drafts included.

    With `most_bytes` None it takes the free space of its disk except for the share SPARE.
    """

    def __init__(self, folder: Path, most_bytes: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.most_bytes = folder, most_bytes
        self._sound: set[tuple[str, int, int]] = set()
        """Copies that this process has compared with their digest: name, inode and time of change."""

    def limit(self) -> int:
        """Return the bytes that all copies together may take now."""
        if self.most_bytes is not None:
            return self.most_bytes
        disk = shutil.disk_usage(self.folder)
        own = sum(found.st_blocks * 512 for _, found in self._files())
        return own + disk.free - int(SPARE * disk.total)

    def remove(self, shard: RemoteShard) -> None:
        """Remove the copy of a shard, if there is one."""
        self._path(shard, shard.blake3).unlink(missing_ok=True)

    @contextlib.contextmanager
    def stream(self, shard: RemoteShard) -> Iterator[BinaryIO]:
        """Open the shard for reading from front to back: its copy, or its bytes as they arrive, which become
        a copy once all were read. It never waits for other processes that fetch the same shard."""
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
        """Return a descriptor of the shard's copy, open for reading. Where there is none, one process of this
        node fetches it first. The descriptor stays valid when the copy has to make room.

        Raises DataError where the shard cannot be fetched or kept.
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
        """Make a copy before the shard is used, unless another process is fetching it. The copies of
        `others`, which are staged or have a digest, are the last to make room for it. Raises DataError."""
        for other in others:
            path = self._path(other, other.blake3)
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
                f"{shard}: {shard.size:,} bytes do not fit into the cache of {self.limit():,}; "
                "set TARMAC_CACHE_SIZE higher, or loader.reader: streaming"
            )
        with Arriving(shard, draft) as arriving:
            arriving.drain()
            if arriving.keep is None:
                raise DataError(f"{shard}: {self.folder} has no room for it; set TARMAC_CACHE")
            self._keep(draft, shard, arriving.digest)
        return draft

    def _opened(self, shard: RemoteShard) -> BinaryIO | None:
        """Return a sound copy, open, so that its removal does not matter any more; None where there is
        none."""
        for path in sorted(self.folder.glob(self._path(shard, shard.blake3 or "*").name)):
            with contextlib.suppress(FileNotFoundError):
                file = path.open("rb")
                if self._is_sound(path, file, shard):
                    return file
                file.close()
                logger.warning("%s: its copy in the cache is damaged and is fetched again", shard)
                path.unlink(missing_ok=True)
        return None

    def _is_sound(self, path: Path, file: BinaryIO, shard: RemoteShard) -> bool:
        found = os.fstat(file.fileno())
        if shard.size not in (-1, found.st_size):
            return False
        known = path.name, found.st_ino, found.st_mtime_ns
        if known not in self._sound and not isinstance(shard, StagedShard):
            if blake3_file(path) != path.stem.rpartition("-")[2]:
                return False
            self._sound.add(known)
        os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))  # the time of last use, by which room is made
        return True

    @contextlib.contextmanager
    def _draft(self, shard: RemoteShard, name: str, waits: bool) -> Iterator[BinaryIO | None]:
        """Open a file of the shard's size that belongs to this process alone; None where the file would be
        too large or where another process has it and this one does not wait (`waits`)."""
        if shard.size > self.limit():
            yield None
            return
        path = self.folder / name
        with contextlib.ExitStack() as stack:
            file = None
            while file is None:
                with self._lock():  # else `_make_room` may hold the draft to see whether it is left over
                    file = stack.enter_context(path.open("ab"))
                    is_ours = _locked(file)
                if not is_ours and not waits:
                    yield None
                    return
                if not is_ours:
                    fcntl.flock(file, fcntl.LOCK_EX)
                if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    file = None  # its previous owner has renamed or removed it meanwhile
            self._make_room(max(shard.size, 0))
            draft = stack.enter_context(path.open("r+b"))
            draft.truncate(max(shard.size, 0))
            try:
                yield draft
            finally:
                if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    path.unlink()

    def _keep(self, draft: BinaryIO, shard: RemoteShard, digest: str) -> None:
        path = self._path(shard, digest)
        os.replace(draft.name, path)
        found = path.stat()
        self._sound.add((path.name, found.st_ino, found.st_mtime_ns))
        self._make_room(0)

    def _path(self, shard: RemoteShard, digest: str) -> Path:
        return self.folder / shard.copy_name(digest)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_room(self, size: int) -> None:
        """Remove leftovers of killed processes, then the least recently used copies, until `size` bytes
        fit."""
        with self._lock():
            for draft in [*self.folder.glob("*.part"), *self.folder.glob("*.stream")]:
                with contextlib.suppress(OSError), draft.open("rb") as file:
                    if _locked(file):  # no, while it is in use
                        draft.unlink()
            limit, files = self.limit(), list(self._files())
            taken = sum(found.st_size for _, found in files)
            copies = [(path, found) for path, found in files if path.suffix == ".tar"]
            for path, found in sorted(copies, key=lambda copy: copy[1].st_atime_ns):
                if taken + size <= limit:
                    return
                path.unlink(missing_ok=True)
                taken -= found.st_size


def _locked(file: BinaryIO) -> bool:
    """Lock a file, unless another process or descriptor has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def cache() -> ShardCache:
    """Return this node's cache, as the environment configures it; UsageError for an invalid setting."""
    return _cache(os.environ.get("TARMAC_CACHE", ""), os.environ.get("TARMAC_CACHE_SIZE", SIZE))


@lru_cache
def _cache(named: str, size: str) -> ShardCache:
    try:
        most_bytes = parse_size(size)
    except ValueError as error:
        raise UsageError(f"TARMAC_CACHE_SIZE: {error}") from None
    return _made("TARMAC_CACHE", Path(named) if named else own_folder("TARMAC_CACHE") / "shards", most_bytes)


def stage_cache() -> ShardCache:
    """Return the cache of `loader.stage: node`; UsageError where its folder cannot be made."""
    return _made("loader.stage", own_folder("loader.stage") / "staged", None)


def _made(setting: str, folder: Path, most_bytes: int | None) -> ShardCache:
    try:
        return ShardCache(folder, most_bytes)
    except OSError as error:
        raise UsageError(f"{setting}: {folder} cannot be made: {error.strerror}") from None


def _as_error(shard: RemoteShard, error: Exception) -> DataError:
    if isinstance(error, StoreUnreachable):
        return DataError(str(error))  # which a worker can hand over whole, unlike this one
    if isinstance(error, DataError):
        return error
    if isinstance(error, UsageError):
        return DataError(f"{shard}: {error}")
    if is_disk_full(error):
        return DataError(f"{shard}: the disk for temporary files is full; set TMPDIR")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataError(f"{shard}: cannot be read: {reason or type(error).__name__}")


def remote_shard(url: str) -> RemoteShard:
    """Return the shard at an address, as its store describes it now; DataError where there is none."""
    folder, name = split_location(url)
    shard = RemoteShard(url, -1, "")
    try:
        found = open_store(folder, "URL").stat(name)
    except OSError as error:
        raise _as_error(shard, error) from error
    if found.size < 0 and not found.stamp:
        raise DataError(f"{shard}: there is no such file, or access is denied")
    return replace(shard, size=found.size, stamp=found.stamp)
