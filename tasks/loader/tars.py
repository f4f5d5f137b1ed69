"""Reads a tar's samples from front to back, plain or compressed, with webdataset's grouping.

This module opens files and remote shards itself and never uses webdataset's opener, which would run a shell
command for `pipe:` and for every remote scheme.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from webdataset.shardlists import expand_urls
from webdataset.tariterators import group_by_keys, tar_file_expander

from tasks.core.errors import DataError, UsageError
from tasks.core.remote.remote_shards import RemoteShard, cache, remote_shard
from tasks.core.stores import REMOTE_SCHEMES, is_remote
from tasks.dataset.tar.format import END
from tasks.loader import worker_state
from tasks.loader.worker_state import WorkerStage

COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
"""First bytes of the compressed tars that webdataset unpacks."""
Raw = dict[str, Any]
Shard = Path | RemoteShard
"""A tar of this machine, or at an address."""


def shards_at(urls: Sequence[str | Shard]) -> list[Shard]:
    """Return the tars, with braces in a string expanded. UsageError for an address that is neither local nor
    of a remote store; DataError for a remote tar that does not exist."""
    shards: list[Shard] = []
    for url in urls:
        shards += [_shard(part) for part in expand_urls(url)] if isinstance(url, str) else [url]
    if not shards:
        raise UsageError("the list of shards is empty")
    return shards


def _shard(url: str) -> Shard:
    if is_remote(url):
        return remote_shard(url)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
    if (scheme and scheme[1] != "file") or url == "-":
        raise UsageError(
            f"{url}: neither a file nor an address of {', '.join(REMOTE_SCHEMES)}; commands are never run"
        )
    return Path(url.removeprefix("file://").removeprefix("file:"))


def folder_of(shard: Shard) -> str:
    """Return the shard's folder, for messages."""
    return str(shard.parent) if isinstance(shard, Path) else str(shard).rpartition("/")[0]


def size_of(shard: Shard) -> int:
    """Return the size in bytes; 0 where it is not known."""
    if isinstance(shard, RemoteShard):
        return max(shard.size, 0)
    return shard.stat().st_size if shard.exists() else 0


def read_tar(shard: Shard) -> Iterator[Raw]:
    """Yield webdataset's samples of one tar, plain or compressed: members by suffix, `__key__` and `__url__`.

    DataError when the tar is broken, ends early or holds no sample, or when its store does not deliver it. A
    remote tar is read as it arrives, so a cut one is noticed only at its end.
    """
    name = worker_state.shard_field("/".join(str(shard).split("/")[-2:]))
    worker_state.mine.opening(name)
    key = None
    try:
        with _opened(shard) as file:
            worker_state.mine.enter(WorkerStage.READ)
            for raw in group_by_keys(tar_file_expander([{"url": str(shard), "stream": file}])):
                key = raw["__key__"]
                worker_state.mine.streaming(name, file.tell())
                yield raw
    except DataError:
        raise
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        where = f"after sample {key!r}" if key else "at its start"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error.args[0]
        raise DataError(f"{shard}: cannot be read {where}: {reason}") from error
    if key is None:
        raise DataError(f"{shard}: holds no samples; remove it from the list of shards")


@contextmanager
def _opened(shard: Shard) -> Iterator[BinaryIO]:
    if isinstance(shard, RemoteShard):
        with cache().stream(shard) as stream:
            ending = _Ending(stream)
            yield cast(BinaryIO, ending)
            ending.check(shard)
        return
    with shard.open("rb") as file:
        _check_end(shard)
        yield file


class _Ending:
    """A stream that remembers its first and last bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._first, self._last = stream, b"", b""

    def read(self, count: int = -1) -> bytes:
        content = self._stream.read(count)
        self._first = self._first or content[:6]
        self._last = (self._last + content)[-len(END) :] if len(content) < len(END) else content[-len(END) :]
        return content

    def tell(self) -> int:
        return self._stream.tell()

    def check(self, shard: Shard) -> None:
        """DataError for a plain tar cut between two members; reads to the end."""
        while self.read(1 << 20):
            pass
        if not self._first.startswith(COMPRESSED) and self._last != END:
            raise _truncated(shard)


def _check_end(path: Path) -> None:
    """DataError for a plain tar cut between two members, which tar readers accept as complete."""
    size = path.stat().st_size
    with path.open("rb") as file:
        compressed = file.read(6).startswith(COMPRESSED)
        file.seek(max(size - len(END), 0))
        if not compressed and file.read() != END:
            raise _truncated(path)


def _truncated(shard: Shard) -> DataError:
    return DataError(f"{shard}: truncated, its end blocks are missing; copy or build it again")
