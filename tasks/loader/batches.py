"""The batches of a dataset version: endless and shuffled for training, or one split once in storage order.

What a batch holds is a function of version, seed, shuffle and step alone. Workers, prefetch and restarts
change when it is there, never what is in it. The price of that is a fixed order of delivery: one slow sample
holds up the batches behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import Dataset

from tasks.core.errors import DataError, TarmacError
from tasks.loader.collate import Failure, Packed, pack
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import ORDERS, Order, Shuffle, rank_positions, sample_seeds
from tasks.loader.streaming import stream_batches
from tasks.loader.workers import Batches, Transform

TRAIN = "train"


def train_batches(
    version: Path,
    transform: Transform,
    *,
    batch_size: int,
    seed: int,
    shuffle: Shuffle,
    workers: int,
    prefetch: int,
    start_step: int = 0,
    pin_memory: bool = False,
    rank: int = 0,
    world_size: int = 1,
    reader: Literal["indexed", "streaming"] = "indexed",
) -> Batches:
    """The endless sequence of training batches from step `start_step` on.

    The batch of step s covers the positions [s * batch_size, (s + 1) * batch_size) of the endless
    concatenation of shuffled epochs, and a rank gets its even slice of them. `prefetch` is in batches a
    worker and means nothing without workers. The iterator raises DataError, naming shard, row and key, for a
    sample that cannot be read or transformed. `reader: streaming` reads the shards from front to back instead
    (see streaming.py).
    """
    if reader == "streaming":
        files = [version / TRAIN / name for name in json.loads((version / TRAIN / "sizes.json").read_bytes())]
        return stream_batches(
            files,
            transform,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            workers=workers,
            prefetch=prefetch,
            start_step=start_step,
            pin_memory=pin_memory,
            rank=rank,
            world_size=world_size,
        )
    dataset = PositionBatches(_open(version, TRAIN), transform, ORDERS[shuffle], seed)
    steps = Steps(start_step, batch_size, rank, world_size)
    return Batches(dataset, f"{version}/{TRAIN}", steps, transform, workers, prefetch, pin_memory)


def split_batches(
    version: Path, split: str, transform: Transform, *, batch_size: int, workers: int, prefetch: int = 2
) -> Batches:
    """Every sample of a split once, in storage order and unaugmented; the last batch may be smaller."""
    samples = _open(version, split)
    dataset = PositionBatches(samples, transform, ORDERS["none"], seed=None)
    parts = [
        range(start, min(start + batch_size, len(samples))) for start in range(0, len(samples), batch_size)
    ]
    workers = min(workers, len(parts))
    return Batches(dataset, f"{version}/{split}", parts, transform, workers, prefetch, pin_memory=False)


def _open(version: Path, split: str) -> IndexedReader:
    reader = IndexedReader(version, split)
    if not len(reader):
        raise DataError(f"{version}: split {split} holds no samples, so no batch would ever come")
    return reader


@dataclass(frozen=True)
class Steps(Iterable[range]):
    """For each step from `start` on, without end, the positions that one rank reads."""

    start: int
    batch_size: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        rank_positions(self.start, self.batch_size, self.rank, self.world_size)  # uneven slices show at once

    def __iter__(self) -> Iterator[range]:
        step = self.start
        while True:
            yield rank_positions(step, self.batch_size, self.rank, self.world_size)
            step += 1


class PositionBatches(Dataset[Packed | Failure]):
    """From a range of positions to the batch of the samples that stand there."""

    def __init__(self, reader: IndexedReader, transform: Transform, order: Order, seed: int | None) -> None:
        self.reader = reader
        self.transform = transform
        self.order = order
        self.seed = seed

    def __getitem__(self, positions: range) -> Packed | Failure:
        places = np.arange(positions.start, positions.stop)
        numbers = self.order.indices(places, len(self.reader), self.seed or 0).tolist()
        seeds = [None] * len(numbers) if self.seed is None else sample_seeds(places, self.seed).tolist()
        try:
            return pack([self._sample(number, seed) for number, seed in zip(numbers, seeds, strict=True)])
        except TarmacError as error:
            return Failure(type(error), str(error))

    def _sample(self, number: int, seed: int | None) -> dict[str, Any]:
        sample = self.reader.read(number)
        try:
            return {**self.transform(sample.members, seed), "key": sample.key}
        except DataError as error:
            raise DataError(f"{self.reader.place(number)}, key {sample.key!r}: {error}") from error
        except Exception as error:
            error.add_note(f"in the transform of {self.reader.place(number)}, key {sample.key!r}")
            raise
