"""All that a training is fed with, as one value: which samples, made into what, in which order.

What a batch holds is a function of this value and of a state, and a state is a place in the endless sequence
of units. Workers and prefetch change when a batch is there, never what is in it, so a training goes on from a
state on any number of them. The price of that is a fixed order of delivery: one slow sample holds up the
batches behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np

from tasks.core.errors import DataError, UsageError
from tasks.core.quarantine_file import Quarantined
from tasks.core.schema import Config, Loader
from tasks.core.schema.training import JUDGED_AT_ONCE, STREAMS_REPLACE_NOTHING, Pack
from tasks.core.screen import Progress, no_progress
from tasks.dataset.foreign import foreign_split
from tasks.loader.bad import Budget, most_left_out
from tasks.loader.batches import TRAIN, LoaderSource, PositionBatches, Steps, open_split, shards_at, stand_at
from tasks.loader.collate import Collate
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import Integers, Storage, portions
from tasks.loader.packing import lengths
from tasks.loader.packing.packs import Lengths, PackedPositions, PackLimits, Packs, PackSteps, window_size
from tasks.loader.staging import Fetcher, StagedPositions, Stager, folder_of
from tasks.loader.streaming import stream_batches
from tasks.loader.worker_state import WorkerStates
from tasks.loader.workers import Batches, Transform

Unit = Literal["sample", "pack"]


class Shapes(Protocol):
    """What a recipe makes of samples."""

    collate: Collate

    def transform(self, is_train: bool) -> Transform: ...


@dataclass(frozen=True)
class Data:
    """A version of a dataset without its quarantined samples, and its weight beside the others."""

    version: Path
    quarantined: Sequence[Quarantined] = ()
    weight: float = 1.0


@dataclass(frozen=True)
class FeedState:
    """A place in the endless sequence: the units before it were trained on, over all ranks."""

    position: int
    unit: Unit = "sample"
    """What is counted: samples, or packs of several."""
    ranks: int | None = None
    """Of a stream: how many it is laid out for, which are those that it began with."""

    def to_json(self) -> dict[str, Any]:
        stream = {} if self.ranks is None else {"ranks": self.ranks}
        return {"position": self.position, "unit": self.unit, **stream}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FeedState:
        """The state that wrote itself so; DataError for what is none."""
        position, unit, ranks = values.get("position"), values.get("unit"), values.get("ranks", 1)
        is_place = isinstance(position, int) and position >= 0 and unit in get_args(Unit)
        if not is_place or not isinstance(ranks, int) or ranks < 1:
            raise DataError(f"{dict(values)} is no place of a loader; resume from an older checkpoint")
        return cls(cast(int, position), cast(Unit, unit), values.get("ranks"))


@dataclass(frozen=True)
class Packing:
    """What a row holds at most, and how long the samples of each dataset are."""

    limits: PackLimits
    lengths: tuple[Lengths, ...]


@dataclass(frozen=True)
class Feed:
    """`train` gives the endless batches of a rank, `split` one pass over a split.

    A worker makes `micro_batch` samples at a time, so the first are there soon and a large batch never lies
    in one piece: a rank's share of a batch comes in `parts`, of which a stream has one. Of several datasets
    the first is the one whose splits are judged. `batch_size` is over all ranks, `judged_at_once` the batch
    size of `split`, for each rank, and `prefetch` in batches a worker. UsageError for what the reader cannot
    do.
    """

    datasets: tuple[Data, ...]
    shapes: Shapes
    batch_size: int
    loader: Loader = field(default_factory=Loader)
    seed: int = 0
    micro_batch: int | None = None
    workers: int = 0
    prefetch: int = 2
    pin_memory: bool = False
    rank: int = 0
    world_size: int = 1
    judged_at_once: int = JUDGED_AT_ONCE
    packed: Packing | None = None
    """Puts several samples into one row: `batch_size` counts rows then."""
    states: Path | None = None
    """The folder in which the workers keep their state, for others to read."""

    def __post_init__(self) -> None:
        if len(self.datasets) > 1 and self.loader.reader == "streaming":
            raise UsageError("train.data: reader: streaming reads one dataset; take reader: indexed")
        if self.loader.on_bad == "replace" and self.loader.reader == "streaming":
            raise UsageError(f"loader.{STREAMS_REPLACE_NOTHING}")

    @classmethod
    def of(cls, config: Config, datasets: Sequence[Data], recipe: Shapes, **others: Any) -> Feed:
        """That of a config with a train block; `others` are further fields of it."""
        assert config.train is not None
        train = config.train
        own = {"judged_at_once": config.judged_at_once, "micro_batch": train.micro_batch, **others}
        return cls(tuple(datasets), recipe, train.batch_size, config.loader, train.seed, **own)

    @property
    def data(self) -> Data:
        """Whose splits are judged."""
        return self.datasets[0]

    @property
    def part_size(self) -> int:
        """Samples of a part, of which the last of a step may have fewer."""
        share = self.batch_size // self.world_size
        is_whole = self.micro_batch is None or self.loader.reader == "streaming"
        return share if is_whole else min(self.micro_batch or share, share)

    @property
    def parts(self) -> int:
        """How many parts a rank's share of a step comes in."""
        return -(-self.batch_size // self.world_size // self.part_size)

    def state(self, steps: int = 0, begun: FeedState | None = None) -> FeedState:
        """Where the sequence is after so many optimizer steps, of a training that went on from `begun`."""
        ranks = None
        if self.loader.reader == "streaming":
            ranks = (begun and begun.ranks) or self.world_size
        return FeedState(steps * self.batch_size, self._unit, ranks)

    @property
    def _unit(self) -> Unit:
        return "sample" if self.packed is None else "pack"

    def measure(self, folder: Path, most: int | None = None, progress: Progress = no_progress) -> None:
        """Leave the lengths of the samples in `folder`, for `packing`; see `lengths.measure`."""
        readers = [source.reader for source in self._sources()]
        transform = cast(lengths.Measure, self.shapes.transform(is_train=True))
        lengths.measure(readers, transform, folder, most, progress)

    def packing(self, pack: Pack, folder: Path) -> Feed:
        """This feed with rows of packs, by the lengths in `folder`."""
        limits = PackLimits(pack.tokens, pack.images)
        readers = [source.reader for source in self._sources()]
        return replace(self, packed=Packing(limits, lengths.read_lengths(readers, folder)))

    def is_read_here(self, position: int) -> bool:
        """Whether it is this rank that reads the position, and not another."""
        return position % self.batch_size * self.world_size // self.batch_size == self.rank

    def train(self, state: FeedState | None = None) -> Batches:
        """The endless sequence of this rank's parts of batches from `state` on, or from the beginning.

        A step covers `batch_size` positions of the endless concatenation of shuffled epochs, and a rank gets
        its even slice of them; several datasets share them by their weights. `reader: streaming` reads the
        shards from front to back instead (see streaming.py). Samples in quarantine do not exist for either.

        The iterator raises BadSampleError for a sample that cannot be read or transformed. `on_bad: replace`
        puts another one in its place, drawn from seed and position alone, with the augmentation of the
        position, and `passed_over` of the iterator tells.
        """
        state = state or self.state()
        start = self._step(state)
        transform, collate = self.shapes.transform(is_train=True), self.shapes.collate
        if self.loader.reader == "streaming":
            return self._streamed(transform, start, state.ranks)
        sources = self._sources()
        dataset = PositionBatches(sources, transform, self.seed, self.loader.on_bad, collate)
        steps = self._steps(sources, start)
        name = ", ".join(f"{data.version}/{TRAIN}" for data in self.datasets)
        return Batches(
            dataset,
            name,
            steps,
            transform,
            self.workers,
            self.prefetch,
            self.pin_memory,
            keeper=self._keeper(TRAIN),
            sharing_strategy=self.loader.sharing_strategy,
        )

    def split(self, name: str, transform: Transform | None = None, most: int | None = None) -> Batches:
        """Every sample of a split once, in storage order and unaugmented; the last batch may be smaller.

        A rank gets each `world_size`-th batch, and perhaps one fewer than others. `most` samples in whole
        batches, evenly spread, are given at most. What is measured over a split must not count a sample
        twice, so `on_bad: replace` leaves bad ones out here: batches are smaller by these, and it is an error
        when they are more than the share `bad_budget`. `transform` stands in for the recipe's.
        """
        version = self.data.version
        samples = self._open(self.data, name)
        transform = transform or self.shapes.transform(is_train=False)
        dataset = PositionBatches(
            [LoaderSource(samples, Storage())], transform, None, self.loader.on_bad, self.shapes.collate
        )
        parts = split_parts(len(samples), self.judged_at_once, most)[self.rank :: self.world_size]
        count = sum(map(len, parts))
        left_out = most_left_out(self.loader.bad_budget, count)
        where = f"{version}/{name}"
        budget = Budget(where, len(samples), left_out, f"see `tarmac verify {version}`")
        workers = min(self.workers, len(parts))
        keeper = self._keeper(name)
        return Batches(
            dataset,
            where,
            parts,
            transform,
            workers,
            self.prefetch,
            False,
            budget,
            keeper,
            self.loader.sharing_strategy,
        )

    def _steps(self, sources: Sequence[LoaderSource], start: int) -> Iterable[range | PackedPositions]:
        if self.packed is None:
            steps = Steps(start, self.batch_size, self.rank, self.world_size, self.part_size)
            coming = partial(shards_at, sources, self.seed), start * self.batch_size
            if self.loader.stage is not None:
                samples = sum(len(source.reader) for source in sources)
                return StagedPositions(steps, lambda: Stager(*coming, samples))
            is_fetched = any(source.reader.is_remote for source in sources)
            return StagedPositions(steps, lambda: Fetcher(*coming)) if is_fetched else steps
        known, seed = self.packed.lengths, self.seed

        def draw(places: Integers) -> Lengths:
            which, numbers = stand_at(sources, places, seed)
            drawn_lengths = Lengths(*(np.empty(len(places), np.int32) for _ in Lengths._fields))
            for place, one in enumerate(known):
                here = which == place
                for column, values in zip(drawn_lengths, one, strict=True):
                    column[here] = values[numbers[here]]
            return drawn_lengths

        window = window_size(known, self.packed.limits)
        packs = Packs(draw, self.packed.limits, window, seed)
        return PackSteps(packs, start, self.batch_size, self.rank, self.world_size, self.part_size)

    def _sources(self) -> list[LoaderSource]:
        counts = portions([data.weight for data in self.datasets])
        is_staged = self.loader.stage is not None
        readers = [
            self._open(data, TRAIN, folder_of(data.version) if is_staged else None) for data in self.datasets
        ]
        return [
            LoaderSource(reader, reader.order(self.loader.shuffle), portion)
            for reader, portion in zip(readers, counts, strict=True)
        ]

    def _open(self, data: Data, split: str, staged: Path | None = None) -> IndexedReader:
        return open_split(data.version, split, data.quarantined, staged, self.loader.checksums)

    def _keeper(self, split: str) -> WorkerStates | None:
        return None if self.states is None else WorkerStates(self.states, self.rank, split)

    def _step(self, state: FeedState) -> int:
        step, rest = divmod(state.position, self.batch_size)
        if state.unit != self._unit or rest:
            raise DataError(
                f"the loader cannot go on at {state.unit} {state.position}: it reads batches of "
                f"{self.batch_size} {self._unit}s; resume with the config that wrote the checkpoint"
            )
        return step

    def _streamed(self, transform: Transform, start: int, ranks: int | None) -> Batches:
        version = self.data.version
        sizes = json.loads((version / TRAIN / "sizes.json").read_bytes())
        foreign = foreign_split(version, TRAIN)
        return stream_batches(
            (foreign and foreign.remote) or [version / TRAIN / name for name in sizes],
            transform,
            sizes=list(sizes.values()),
            batch_size=self.batch_size,
            seed=self.seed,
            shuffle=self.loader.shuffle,
            workers=self.workers,
            prefetch=self.prefetch,
            start_step=start,
            pin_memory=self.pin_memory,
            rank=self.rank,
            world_size=self.world_size,
            laid_out_for=ranks,
            samples=self._open(self.data, TRAIN) if self.data.quarantined else None,
            collate=self.shapes.collate,
            keeper=self._keeper(TRAIN),
            sharing_strategy=self.loader.sharing_strategy,
        )


def split_parts(samples: int, size: int, most: int | None = None) -> list[range]:
    """The positions of each batch of `size`; where all were more than `most` samples, as many as fit into
    those, evenly spread, and one at least."""
    parts = [range(start, min(start + size, samples)) for start in range(0, samples, size)]
    if most is None or samples <= most:
        return parts
    count = max(most // size, 1)
    return [parts[place * len(parts) // count] for place in range(count)]
