"""How fast a source of batches is; needs nothing, as peers are measured in environments of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

SECONDS = 4.0


def measure(batches: AbstractContextManager[Iterator[Any]], skipped: int) -> tuple[float, float]:
    """Samples a second once `skipped` batches have come, and seconds to the first."""
    begin = time.perf_counter()
    with batches as source:
        next(source)
        first = time.perf_counter() - begin
        for _ in range(skipped):
            next(source)
        samples, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < SECONDS:
            samples += len(next(source)["image"])
        return samples / (time.perf_counter() - begin), first
