"""Tarmac reads shards from afar, for bench_remote, which calls `main` in a process of its own.

`open` reads each as a build reads a tar or a table; `stream` as `reader: streaming` does, with the digest and without a
copy in the cache; `cached` and `indexed` are the two readers with a copy. `small` reads small files as a conversion does.
Prints bytes, seconds and seconds of CPU; imports and the client are not counted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.core.files import blake3_file
from tasks.core.folders import open_store
from tasks.core.remote.remote_shards import RemoteShard, cache, remote_shard
from tasks.core.stores import split_location

READ = 1 << 20
MOST = 100 << 20


def opened(urls: Sequence[str]) -> int:
    size = 0
    for url in urls:
        folder, name = split_location(url)
        known = (Path(os.environ["THERE"]) / name).stat().st_size  # as listed
        with open_store(folder).open(name, size=known) as file:
            size += sum(map(len, iter(lambda: file.read(READ), b"")))
    return size


def shards(urls: Sequence[str]) -> list[RemoteShard]:
    """The shards as an index has them."""
    there = Path(os.environ["THERE"])
    return [replace(remote_shard(url), blake3=blake3_file(there / url.rpartition("/")[2])) for url in urls]


def streamed(given: Sequence[RemoteShard]) -> int:
    size = 0
    for shard in given:
        with cache().stream(shard) as file:
            size += sum(map(len, iter(lambda: file.read(READ), b"")))
    return size


def uncached(given: Sequence[RemoteShard]) -> int:
    os.environ["TARMAC_CACHE_SIZE"] = "1B"
    return streamed(given)


def indexed(given: Sequence[RemoteShard]) -> int:
    size = 0
    for shard in given:
        descriptor = cache().descriptor(shard)
        size += os.fstat(descriptor).st_size
        os.close(descriptor)
    return size


def small(urls: Sequence[str]) -> int:
    store = open_store(split_location(urls[0])[0])
    names = [split_location(url)[1] for url in urls]
    store.announce(names, MOST)
    return sum(len(store.read(name, MOST)) for name in names)


WAYS: dict[str, Callable[[Any], int]] = {
    "open": opened,
    "stream": uncached,
    "cached": streamed,
    "indexed": indexed,
    "small": small,
}


def main(way: str, urls: Sequence[str]) -> None:
    remote_shard(urls[0])
    known = shards(urls) if way in ("stream", "cached", "indexed") else urls
    began, cpu = time.perf_counter(), time.process_time()
    size = WAYS[way](known)
    print(size, time.perf_counter() - began, time.process_time() - cpu)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
