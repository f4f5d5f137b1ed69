"""How fast a source of batches is; needs nothing, as peers are measured in environments of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 4.0


class Pace(NamedTuple):
    """Samples a second, seconds to the first batch, and milliseconds of CPU that all processes took a sample."""

    rate: float
    first_s: float
    cpu_ms: float


def measure(
    batches: AbstractContextManager[Iterator[Any]], skipped: int, parts: int = 1, seconds: float = SECONDS
) -> Pace:
    """The pace once `skipped` batches have come after the first; a batch comes in so many `parts`."""
    begin = time.perf_counter()
    with batches as source:
        for _ in range(parts):
            next(source)
        first = time.perf_counter() - begin
        if not seconds:
            return Pace(0.0, first, 0.0)
        for _ in range(skipped * parts):
            next(source)
        samples, begin, cpu = 0, time.perf_counter(), cpu_seconds()
        while time.perf_counter() - begin < seconds:
            samples += len(next(source)["image"])
        return Pace(samples / (time.perf_counter() - begin), first, (cpu_seconds() - cpu) / samples * 1e3)


def read_us(samples: Iterator[Any]) -> tuple[float, float]:
    """Microseconds of CPU that each of the samples takes, p50 and p99: with the page cache warm that is all there
    is, and what a busy machine adds is not the reader's."""
    taken, before = [], time.thread_time()
    for _ in samples:
        now = time.thread_time()
        taken.append((now - before) * 1e6)
        before = now
    taken = sorted(taken[1:])
    return taken[len(taken) // 2], taken[len(taken) * 99 // 100]


def cpu_seconds() -> float:
    """CPU time of this process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(folder.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        spent[pid] = sum(map(int, fields[11:15]))  # with that of children which have ended
    family = [os.getpid()]
    for pid in family:
        family += parents.get(pid, [])
    return sum(spent.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")
