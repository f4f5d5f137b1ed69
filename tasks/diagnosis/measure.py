"""Measures one number of loader workers: the rate it keeps up, and the time to its first batch.

The rate counts from when the queues' first contents are used up, since those were made while nobody watched.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.core.quarantine import Entry
from tasks.core.schema import Loader
from tasks.loader.batches import train_batches
from tasks.loader.settings import Measurement
from tasks.loader.workers import Batches, Transform

MEASURED_S = 2.0


@dataclass(frozen=True)
class Bench:
    """What all measurements have in common."""

    version: Path
    transform: Transform
    loader: Loader
    prefetch: int
    threads: int
    quarantined: Sequence[Entry]

    def __post_init__(self) -> None:
        torch.set_num_threads(self.threads)  # without workers the training process loads

    def batches(self, workers: int, batch_size: int, seed: int = 0) -> Batches:
        return train_batches(
            self.version,
            self.transform,
            batch_size=batch_size,
            seed=seed,
            shuffle=self.loader.shuffle,
            workers=workers,
            prefetch=self.prefetch,
            reader=self.loader.reader,
            quarantined=self.quarantined,
            on_bad=self.loader.on_bad,
        )

    def samples_within(self, seconds: float) -> int:
        """How many samples, at least one, this process loads in that time."""
        with self.batches(workers=0, batch_size=1) as batches:
            next(batches)  # opens files and whatever the transform sets up once
            started = time.perf_counter()
            samples, elapsed = 0, 0.0
            while elapsed < seconds:
                samples += len(next(batches)["key"])
                elapsed = time.perf_counter() - started
        return max(int(samples * seconds / elapsed), 1)

    def await_forkserver(self) -> None:
        """Its imports take seconds once, for which the first measurement with workers would pay."""
        with self.batches(workers=1, batch_size=1) as batches:
            next(batches)

    def measure(self, workers: int, batch_size: int, seed: int) -> Measurement:
        """Time to the first batch, then the rate once the queues' contents are used up.

        `seed` differs between measurements, so that each reads other samples where there are many: what one
        has read lies in the page cache and would flatter the next.
        """
        started = time.perf_counter()
        with self.batches(workers, batch_size, seed) as batches:
            next(batches)
            first_batch_s = time.perf_counter() - started
            for _ in range(workers * self.prefetch):
                next(batches)
            samples, started, elapsed = 0, time.perf_counter(), 0.0
            while elapsed < MEASURED_S:
                samples += len(next(batches)["key"])
                elapsed = time.perf_counter() - started
        return Measurement(
            workers=workers, samples_per_s=round(samples / elapsed, 1), first_batch_s=round(first_batch_s, 3)
        )
