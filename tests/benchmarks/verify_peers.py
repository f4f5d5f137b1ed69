"""`verify_peers.py HOW VERSION`: a bare loop of BLAKE3 over a version's tars, in a thread per core, the largest
first; prints the seconds of CPU and the seconds that it took.

Nobody compares, counts or reports anything. `read` is the loop that most people write, `page` reads more at once
into memory that begins at a page and is kept, `mapped` has the wheel map each file, which a failing disk
answers by killing the process, and `shared` maps each file and hashes it on all cores, as b3sum does.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blake3 import blake3

CORES = len(os.sched_getaffinity(0))
kept = threading.local()


def read(path: Path) -> str:
    return _digest(path, memoryview(bytearray(1 << 18)))


def page(path: Path) -> str:
    if not hasattr(kept, "buffer"):
        kept.buffer = memoryview(mmap.mmap(-1, 1 << 20))
    return _digest(path, kept.buffer)


def _digest(path: Path, buffer: memoryview) -> str:
    digest = blake3()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def mapped(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()


def shared(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


LOOPS: dict[str, Callable[[Path], str]] = {"read": read, "page": page, "mapped": mapped, "shared": shared}


def main(how: str, version: str) -> None:
    tars = sorted(Path(version).glob("*/*.tar"), key=lambda path: -path.stat().st_size)
    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(1 if how == "shared" else CORES) as pool:
        assert all(pool.map(LOOPS[how], tars))
    print(time.process_time() - cpu, time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
