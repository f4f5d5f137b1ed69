"""Turns positions into batches of samples, by the index. It runs in the loader's workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from tasks.core.errors import DataError, TarmacError
from tasks.core.quarantine_file import NAME, Quarantined
from tasks.core.remote.remote_shards import RemoteShard
from tasks.dataset.version.quarantine import rows
from tasks.loader import batch_memory, worker_state
from tasks.loader.bad import BadSampleError, OnBad, PassedOver
from tasks.loader.collate import Collate, Delivery, WorkerFailure, pack
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import MIXED, TRIES, Integers, Order, mix, rank_positions, sample_seeds, stand_ins
from tasks.loader.packing.packs import PackedPositions
from tasks.loader.worker_state import WorkerStage
from tasks.loader.workers import Transform

TRAIN = "train"


def open_split(
    version: Path,
    split: str,
    quarantined: Sequence[Quarantined],
    staged: Path | None = None,
    checksums: bool = True,
) -> IndexedReader:
    """Open the samples of a split without those in quarantine; DataError when none are left."""
    excluded = rows(version, split, quarantined)
    reader = IndexedReader(version, split, excluded, staged=staged, checksums=checksums)
    if len(reader):
        return reader
    if len(excluded):
        problem = f"all {len(excluded):,} samples of split {split} are left out: {NAME}"
        raise DataError(f"{version}: {problem}; `tarmac repair {version}` takes back what is sound")
    raise DataError(f"{version}: split {split} holds no samples, so no batch would ever come")


@dataclass(frozen=True)
class Steps(Iterable[range]):
    """Yields the positions that one rank reads for each step from `start` on, without end, in parts of `part`
    positions."""

    start: int
    batch_size: int
    rank: int
    world_size: int
    part: int

    def __post_init__(self) -> None:
        rank_positions(self.start, self.batch_size, self.rank, self.world_size)  # raises for uneven slices

    def __iter__(self) -> Iterator[range]:
        step = self.start
        while True:
            mine = rank_positions(step, self.batch_size, self.rank, self.world_size)
            yield from (mine[first : first + self.part] for first in range(0, len(mine), self.part))
            step += 1


@dataclass(frozen=True)
class LoaderSource:
    """The samples of one dataset, the order in which they are read, and their share of order.MIXED positions
    where several datasets are mixed."""

    reader: IndexedReader
    order: Order
    portion: int = MIXED


def stand_at(sources: Sequence[LoaderSource], positions: Integers, seed: int) -> tuple[Integers, Integers]:
    """Return the sample at each position: the place of its source and its number there, both of shape [n]."""
    which, own = np.zeros_like(positions), positions
    if len(sources) > 1:
        which, own = mix(positions, [source.portion for source in sources], seed)
    numbers = np.empty_like(positions)
    for place, source in enumerate(sources):
        here = np.flatnonzero(which == place)
        # A seed of its own gives each dataset another order, also where two are equally large.
        numbers[here] = source.order.indices(own[here], len(source.reader), seed + place)
    return which, numbers


def shards_at(sources: Sequence[LoaderSource], seed: int, positions: range) -> list[RemoteShard]:
    """Return the shards of the samples at some positions, each once, as `IndexedReader.shards_of`."""
    which, numbers = stand_at(sources, np.arange(positions.start, positions.stop), seed)
    return [
        shard
        for place, source in enumerate(sources)
        for shard in source.reader.shards_of(numbers[which == place].tolist())
    ]


class PositionBatches(Dataset[Delivery]):
    """A dataset for torch whose item for a range of positions is the batch of the samples there."""

    def __init__(
        self,
        sources: Sequence[LoaderSource],
        transform: Transform,
        seed: int | None,
        on_bad: OnBad,
        collate: Collate,
    ) -> None:
        self.sources = sources
        self.transform = transform
        self.seed = seed
        self.on_bad = on_bad
        self.collate = collate
        self._reads_crops = getattr(transform, "reads_crops", False)

    def __getitem__(self, wanted: range | PackedPositions) -> Delivery:
        """Return the batch. For packed positions, `pack` of each sample is the number of its row."""
        positions, packs = (wanted, None) if isinstance(wanted, range) else wanted
        places = np.array(positions, np.int64)
        seeds = [None] * len(places) if self.seed is None else sample_seeds(places, self.seed).tolist()
        samples, passed_over = [], []
        batch_memory.begin(len(places))
        try:
            which, numbers = stand_at(self.sources, places, self.seed or 0)
            for position, place, number, seed in zip(
                positions, which.tolist(), numbers.tolist(), seeds, strict=True
            ):
                reader = self.sources[place].reader
                try:
                    samples.append(self._sample(reader, number, seed))
                except BadSampleError as bad:
                    stand_in = self._in_place_of(bad, reader, position, seed)
                    samples += stand_in
                    key = stand_in[0]["key"] if stand_in else None
                    passed_over.append(PassedOver(position, bad.defect, key))
            if packs is not None:
                samples = [{**one, "pack": row} for one, row in zip(samples, packs, strict=True)]
            worker_state.mine.enter(WorkerStage.COLLATE)
            packed = pack(samples, passed_over, self.collate)
            worker_state.mine.handing_over(len(samples))
            return packed
        except TarmacError as error:
            return WorkerFailure.of(error)

    def _in_place_of(
        self, bad: BadSampleError, reader: IndexedReader, position: int, seed: int | None
    ) -> list[dict[str, Any]]:
        """Return the sample of the same dataset that replaces a bad one, or none where a split is read once.
        Raises `bad` where nothing may be replaced."""
        if self.on_bad == "raise":
            raise bad
        if self.seed is None:
            return []
        for number in stand_ins(position, len(reader), self.seed):
            with contextlib.suppress(BadSampleError):
                return [self._sample(reader, number, seed)]
        raise BadSampleError(f"{bad}; {TRIES} samples drawn in its place are bad as well", bad.defect)

    def _sample(self, reader: IndexedReader, number: int, seed: int | None) -> dict[str, Any]:
        try:
            sample = reader.read(number, crops=self._reads_crops)
            worker_state.mine.transforming()
            try:
                return {**self.transform(sample.members, seed), "key": sample.key}
            except DataError as error:
                raise reader.undecodable(number, sample, str(error)) from error
            except Exception as error:
                error.add_note(f"in the transform of {reader.place(number)}, key {sample.key!r}")
                raise
        except BadSampleError:
            worker_state.mine.dropping()
            raise
