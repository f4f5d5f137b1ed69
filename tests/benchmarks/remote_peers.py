"""`remote_peers.py HOW URL ...`: obstore and s3fs read objects, for bench_remote; prints bytes, seconds and CPU seconds.

`obstore` gets ranges of BLOCK bytes, IN_FLIGHT at once, and drops them; `obstore_file` also writes them to a file, as
whoever keeps a copy does. `s3fs` opens and reads one object after the other, as its documentation has it; `s3fs_own`
gets them by `cat`, at its own concurrency. `obstore_small` and the like read many small objects. `server` receives
ranges into one buffer and looks at nothing, which is what the server gives at most.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

BLOCK, IN_FLIGHT, SMALL_IN_FLIGHT = 4 << 20, 8, 32
TRIES = 8
Ranges = Iterable[tuple[int, int]]


def persistent(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Ask again where the server fails, which obstore does not always do; the last failure is raised."""
    for tried in itertools.count(1):
        try:
            return function(*arguments, **named)
        except Exception as error:
            if tried == TRIES:
                raise
            print(f"tried again: {type(error).__name__}", file=sys.stderr)
    raise AssertionError


def store_of(url: str) -> Any:
    """obstore's store of the bucket or server of an address."""
    from obstore.store import HTTPStore, S3Store

    parts = urlsplit(url)
    if parts.scheme == "s3":
        return S3Store(parts.netloc, client_options={"allow_http": True}, virtual_hosted_style_request=False)
    return HTTPStore.from_url(f"{parts.scheme}://{parts.netloc}", client_options={"allow_http": True})


def obstore(urls: Sequence[str], keeps: Callable[[int, Any, int], object] = lambda *_: None) -> int:
    import obstore

    store = store_of(urls[0])
    names = [urlsplit(url).path.lstrip("/") for url in urls]
    sizes = [persistent(obstore.head, store, name)["size"] for name in names]

    def get(number: int, start: int) -> int:
        end = min(start + BLOCK, sizes[number])
        content = persistent(obstore.get_range, store, names[number], start=start, end=end)
        keeps(number, content, start)
        return len(content)

    jobs = [(number, start) for number, size in enumerate(sizes) for start in range(0, size, BLOCK)]
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        return sum(threads.map(lambda job: get(*job), jobs))


def obstore_file(urls: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(dir=os.environ["TARMAC_CACHE"]) as folder:
        files = [os.open(f"{folder}/{number}", os.O_CREAT | os.O_RDWR) for number in range(len(urls))]
        return obstore(urls, lambda number, content, start: os.pwrite(files[number], content, start))


def obstore_small(urls: Sequence[str]) -> int:
    import obstore

    store = store_of(urls[0])

    def get(url: str) -> int:
        return len(persistent(lambda: obstore.get(store, urlsplit(url).path.lstrip("/")).bytes()))

    with ThreadPoolExecutor(SMALL_IN_FLIGHT) as threads:
        return sum(threads.map(get, urls))


def s3fs(urls: Sequence[str]) -> int:
    import s3fs

    files = s3fs.S3FileSystem()

    def read(url: str) -> int:
        with files.open(url) as file:
            return len(file.read())

    return sum(persistent(read, url) for url in urls)


def s3fs_own(urls: Sequence[str]) -> int:
    import s3fs

    files = s3fs.S3FileSystem()
    return sum(len(persistent(files.cat_file, url)) for url in urls)


def s3fs_own_small(urls: Sequence[str]) -> int:
    import s3fs

    return sum(map(len, s3fs.S3FileSystem().cat(list(urls)).values()))


def server(urls: Sequence[str]) -> int:
    at = urlsplit(os.environ.get("AWS_ENDPOINT_URL", urls[0]))

    def read(url: str) -> int:
        parts, size, received, start = urlsplit(url), BLOCK, 0, 0
        path = f"/{parts.netloc}{parts.path}" if parts.scheme == "s3" else parts.path
        buffer = bytearray(1 << 20)
        with socket.create_connection((at.hostname or "", at.port or 80)) as connection:
            while start < size:
                asked = f"GET {path} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{start + BLOCK - 1}\r\n\r\n"
                connection.sendall(asked.encode())
                head = connection.recv_into(buffer, 200)
                found = re.search(rb"bytes (\d+)-(\d+)/(\d+)\r\n", bytes(buffer[:head]))
                while found and b"\r\n\r\n" not in buffer[:head]:
                    head += connection.recv_into(memoryview(buffer)[head:], 200)
                if found is None:
                    continue  # a failure
                size = int(found[3])
                missing = int(found[2]) + 1 - start - (head - buffer.index(b"\r\n\r\n") - 4)
                start = int(found[2]) + 1
                while missing and (count := connection.recv_into(buffer, min(missing, len(buffer)))):
                    missing, received = missing - count, received + count
                if missing:
                    return received  # it has cut the connection
        return received

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        return sum(threads.map(read, [*urls] * 2))


WAYS = (obstore, obstore_file, obstore_small, s3fs, s3fs_own, s3fs_own_small, server)


def main(how: str, urls: Sequence[str]) -> None:
    if how.startswith("obstore"):
        import obstore

        persistent(obstore.head, store_of(urls[0]), urlsplit(urls[0]).path.lstrip("/"))
    elif how.startswith("s3fs"):
        import s3fs

        persistent(s3fs.S3FileSystem().info, urls[0])
    way = next(way for way in WAYS if way.__name__ == how)
    began, cpu = time.perf_counter(), time.process_time()
    size = way(urls)
    print(size, time.perf_counter() - began, time.process_time() - cpu)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
