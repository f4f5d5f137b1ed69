"""Tarmac reads shards from afar, for bench_remote, which calls `main` in a process of its own.

`open` reads each as a build reads a tar or a table; `stream` as `reader: streaming` does, with the digest and without a
copy in the cache; `cached` and `indexed` are the two readers with a copy. `small` reads small files as a conversion does.
Prints bytes, seconds and seconds of CPU; imports and the client are not counted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from tasks.core.folders import open_store
from tasks.core.remote.remote_shards import cache, remote_shard
from tasks.core.stores import split_location

READ = 4 << 20
MOST = 100 << 20


def opened(urls: Sequence[str]) -> int:
    size = 0
    for url in urls:
        folder, name = split_location(url)
        with open_store(folder).open(name) as file:
            size += sum(map(len, iter(lambda: file.read(READ), b"")))
    return size


def streamed(urls: Sequence[str]) -> int:
    size = 0
    for url in urls:
        with cache().stream(remote_shard(url)) as file:
            size += sum(map(len, iter(lambda: file.read(READ), b"")))
    return size


def uncached(urls: Sequence[str]) -> int:
    os.environ["TARMAC_CACHE_SIZE"] = "1B"
    return streamed(urls)


def indexed(urls: Sequence[str]) -> int:
    size = 0
    for url in urls:
        descriptor = cache().descriptor(remote_shard(url))
        size += os.fstat(descriptor).st_size
        os.close(descriptor)
    return size


def small(urls: Sequence[str]) -> int:
    store = open_store(split_location(urls[0])[0])
    names = [split_location(url)[1] for url in urls]
    store.announce(names, MOST)
    return sum(len(store.read(name, MOST)) for name in names)


WAYS = {"open": opened, "stream": uncached, "cached": streamed, "indexed": indexed, "small": small}


def main(way: str, urls: Sequence[str]) -> None:
    remote_shard(urls[0])
    began, cpu = time.perf_counter(), time.process_time()
    size = WAYS[way](urls)
    print(size, time.perf_counter() - began, time.process_time() - cpu)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
