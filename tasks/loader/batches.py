"""The batches of a dataset version: endless and shuffled for training, or one split once in storage order.

What a batch holds is a function of version, seed, shuffle and step alone. Workers, prefetch and restarts
change when it is there, never what is in it. The price of that is a fixed order of delivery: one slow sample
holds up the batches behind it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import Dataset

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.quarantine import NAME, Entry
from tasks.core.schema.training import BAD_BUDGET, STREAMS_REPLACE_NOTHING
from tasks.dataset.quarantine import rows
from tasks.loader.bad import BadSampleError, Budget, OnBad, PassedOver, most_left_out
from tasks.loader.collate import Failure, Packed, pack
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import ORDERS, TRIES, Order, Shuffle, rank_positions, sample_seeds, stand_ins
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
    quarantined: Sequence[Entry] = (),
    on_bad: OnBad = "raise",
) -> Batches:
    """The endless sequence of training batches from step `start_step` on.

    The batch of step s covers the positions [s * batch_size, (s + 1) * batch_size) of the endless
    concatenation of shuffled epochs, and a rank gets its even slice of them. `prefetch` is in batches a
    worker and means nothing without workers. `reader: streaming` reads the shards from front to back instead
    (see streaming.py). Samples that are `quarantined` do not exist for either.

    The iterator raises BadSampleError for a sample that cannot be read or transformed. `on_bad: replace` puts
    another one in its place, drawn from seed and position alone, with the augmentation of the position, and
    `passed_over` of the iterator tells; it is for the indexed reader.
    """
    if reader == "streaming":
        if on_bad == "replace":
            raise UsageError(f"loader.{STREAMS_REPLACE_NOTHING}")
        sizes = json.loads((version / TRAIN / "sizes.json").read_bytes())
        return stream_batches(
            [version / TRAIN / name for name in sizes],
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
            samples=open_split(version, TRAIN, quarantined) if quarantined else None,
        )
    dataset = PositionBatches(
        open_split(version, TRAIN, quarantined), transform, ORDERS[shuffle], seed, on_bad
    )
    steps = Steps(start_step, batch_size, rank, world_size)
    return Batches(dataset, f"{version}/{TRAIN}", steps, transform, workers, prefetch, pin_memory)


def split_batches(
    version: Path,
    split: str,
    transform: Transform,
    *,
    batch_size: int,
    workers: int,
    prefetch: int = 2,
    quarantined: Sequence[Entry] = (),
    on_bad: OnBad = "raise",
    bad_budget: float = BAD_BUDGET,
) -> Batches:
    """Every sample of a split once, in storage order and unaugmented; the last batch may be smaller.

    What is measured over a split must not count a sample twice, so `on_bad: replace` leaves bad ones out
    here: batches are smaller by these, and it is an error when they are more than the share `bad_budget`.
    """
    samples = open_split(version, split, quarantined)
    dataset = PositionBatches(samples, transform, ORDERS["none"], seed=None, on_bad=on_bad)
    count = len(samples)
    parts = [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    name = f"{version}/{split}"
    budget = Budget(name, count, most_left_out(bad_budget, count), f"see `tarmac verify {version}`")
    workers = min(workers, len(parts))
    return Batches(dataset, name, parts, transform, workers, prefetch, pin_memory=False, budget=budget)


def open_split(version: Path, split: str, quarantined: Sequence[Entry]) -> IndexedReader:
    """The samples of a split without those in quarantine; DataError when none are left."""
    excluded = rows(version, split, quarantined)
    reader = IndexedReader(version, split, excluded)
    if len(reader):
        return reader
    if len(excluded):
        problem = f"all {len(excluded):,} samples of split {split} are left out: {NAME}"
        raise DataError(f"{version}: {problem}; `tarmac repair {version}` takes back what is sound")
    raise DataError(f"{version}: split {split} holds no samples, so no batch would ever come")


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

    def __init__(
        self, reader: IndexedReader, transform: Transform, order: Order, seed: int | None, on_bad: OnBad
    ) -> None:
        self.reader = reader
        self.transform = transform
        self.order = order
        self.seed = seed
        self.on_bad = on_bad

    def __getitem__(self, positions: range) -> Packed | Failure:
        places = np.arange(positions.start, positions.stop)
        numbers = self.order.indices(places, len(self.reader), self.seed or 0).tolist()
        seeds = [None] * len(numbers) if self.seed is None else sample_seeds(places, self.seed).tolist()
        samples, passed_over = [], []
        try:
            for position, number, seed in zip(positions, numbers, seeds, strict=True):
                try:
                    samples.append(self._sample(number, seed))
                except BadSampleError as bad:
                    stand_in = self._in_place_of(bad, position, seed)
                    samples += stand_in
                    key = stand_in[0]["key"] if stand_in else None
                    passed_over.append(PassedOver(position, bad.defect, key))
            return pack(samples, passed_over)
        except TarmacError as error:
            return Failure.of(error)

    def _in_place_of(self, bad: BadSampleError, position: int, seed: int | None) -> list[dict[str, Any]]:
        """The one sample that stands in; none where a split is read once. Raises `bad` where it has to."""
        if self.on_bad == "raise":
            raise bad
        if self.seed is None:
            return []
        for number in stand_ins(position, len(self.reader), self.seed):
            with contextlib.suppress(BadSampleError):
                return [self._sample(number, seed)]
        raise BadSampleError(f"{bad}; {TRIES} samples drawn in its place are bad as well", bad.defect)

    def _sample(self, number: int, seed: int | None) -> dict[str, Any]:
        sample = self.reader.read(number)
        try:
            return {**self.transform(sample.members, seed), "key": sample.key}
        except DataError as error:
            raise self.reader.undecodable(number, sample, str(error)) from error
        except Exception as error:
            error.add_note(f"in the transform of {self.reader.place(number)}, key {sample.key!r}")
            raise
