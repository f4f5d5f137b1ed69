"""Describes a training's input as one value: which samples, how they are transformed, and in which order.

The content of a batch is a function of this value and of a state, which is a position in the endless sequence
of units. Workers and prefetch change when a batch is ready, never what it holds, so a training resumes from a
state with any number of workers. The price is a fixed order of delivery: one slow sample holds up the batches
behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from torch.utils.data import Dataset

from tasks.core.errors import DataError, UsageError
from tasks.core.quarantine_file import Quarantined
from tasks.core.remote.remote_shards import cache, stage_cache
from tasks.core.schema import Config, Loader
from tasks.core.schema.training import JUDGED_AT_ONCE, STREAMS_REPLACE_NOTHING, Pack
from tasks.core.screen import Progress, no_progress
from tasks.dataset.foreign import foreign_split
from tasks.loader.bad import Budget, most_left_out
from tasks.loader.batches import TRAIN, LoaderSource, PositionBatches, Steps, open_split, shards_at, stand_at
from tasks.loader.collate import Collate, Delivery
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import Integers, Storage, portions
from tasks.loader.packing import lengths
from tasks.loader.packing.packs import Lengths, PackedPositions, PackLimits, Packs, PackSteps, window_size
from tasks.loader.staging import CHUNK, ShardsAhead, StagedPositions
from tasks.loader.streaming import plan_stream
from tasks.loader.tars import Shard, folder_of
from tasks.loader.worker_state import WorkerStates
from tasks.loader.workers import Batches, Transform

Unit = Literal["sample", "pack"]


class Shapes(Protocol):
    """How a recipe turns samples into batches."""

    collate: Collate

    def transform(self, is_train: bool) -> Transform: ...


@dataclass(frozen=True)
class Data:
    """A version of a dataset without its quarantined samples, and its weight in a mix of several."""

    version: Path
    quarantined: Sequence[Quarantined] = ()
    weight: float = 1.0


@dataclass(frozen=True)
class FeedState:
    """A position in the endless sequence: all ranks together trained on the units before it."""

    position: int
    unit: Unit = "sample"
    """Whether samples are counted, or packs of several."""
    ranks: int | None = None
    """For a stream, the number of ranks that it began with and is laid out for."""

    def to_json(self) -> dict[str, Any]:
        stream = {} if self.ranks is None else {"ranks": self.ranks}
        return {"position": self.position, "unit": self.unit, **stream}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FeedState:
        """Return the state that `to_json` wrote; DataError for any other values."""
        position, unit, ranks = values.get("position"), values.get("unit"), values.get("ranks", 1)
        is_place = isinstance(position, int) and position >= 0 and unit in get_args(Unit)
        if not is_place or not isinstance(ranks, int) or ranks < 1:
            raise DataError(f"{dict(values)} is no position of a loader; resume from an older checkpoint")
        return cls(cast(int, position), cast(Unit, unit), values.get("ranks"))


@dataclass(frozen=True)
class Packing:
    """The limits of a row, and the lengths of the samples of each dataset."""

    limits: PackLimits
    lengths: tuple[Lengths, ...]


@dataclass(frozen=True)
class Feed:
    """The input of one rank: `train` gives its endless batches, `split` one pass over a split.

    A worker makes `micro_batch` samples at a time, so the first arrive soon and a large batch is never held
    in one piece: a rank's share of a batch comes in `parts`, and in a single one from a stream. With several
    datasets, the splits of the first are evaluated. `batch_size` counts the samples of all ranks,
    `judged_at_once` is the batch size of `split` on each rank, and `prefetch` counts batches per worker.
    Raises UsageError for settings that the reader does not support.
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
    """Puts several samples into one row; `batch_size` then counts rows."""
    states: Path | None = None
    """The folder where the workers publish their state."""

    def __post_init__(self) -> None:
        if len(self.datasets) > 1 and self.loader.reader == "streaming":
            raise UsageError("train.data: reader: streaming reads one dataset; set reader: indexed")
        if self.loader.on_bad == "replace" and self.loader.reader == "streaming":
            raise UsageError(f"loader.{STREAMS_REPLACE_NOTHING}")

    @classmethod
    def of(cls, config: Config, datasets: Sequence[Data], recipe: Shapes, **others: Any) -> Feed:
        """Return the feed of a config with a train block; `others` are further fields of the feed."""
        assert config.train is not None
        train = config.train
        own = {"judged_at_once": config.judged_at_once, "micro_batch": train.micro_batch, **others}
        return cls(tuple(datasets), recipe, train.batch_size, config.loader, train.seed, **own)

    @property
    def data(self) -> Data:
        """The dataset whose splits are evaluated."""
        return self.datasets[0]

    @property
    def part_size(self) -> int:
        """Samples per part; the last part of a step may have fewer."""
        share = self.batch_size // self.world_size
        is_whole = self.micro_batch is None or self.loader.reader == "streaming"
        return share if is_whole else min(self.micro_batch or share, share)

    @property
    def parts(self) -> int:
        """The number of parts in a rank's share of a step."""
        return -(-self.batch_size // self.world_size // self.part_size)

    def state(self, steps: int = 0, begun: FeedState | None = None) -> FeedState:
        """Return the state after `steps` optimizer steps of a training that resumed from `begun`."""
        ranks = None
        if self.loader.reader == "streaming":
            ranks = (begun and begun.ranks) or self.world_size
        return FeedState(steps * self.batch_size, self._unit, ranks)

    @property
    def _unit(self) -> Unit:
        return "sample" if self.packed is None else "pack"

    def measure(self, folder: Path, most: int | None = None, progress: Progress = no_progress) -> None:
        """Write the lengths of the samples to `folder`, for `packing`; see `lengths.measure`."""
        readers = [source.reader for source in self._sources()]
        transform = cast(lengths.Measure, self.shapes.transform(is_train=True))
        lengths.measure(readers, transform, folder, most, progress)

    def packing(self, pack: Pack, folder: Path) -> Feed:
        """Return this feed with packed rows, planned by the lengths in `folder`."""
        limits = PackLimits(pack.tokens, pack.images, pack.images_per_sample)
        readers = [source.reader for source in self._sources()]
        return replace(self, packed=Packing(limits, lengths.read_lengths(readers, folder)))

    def is_read_here(self, position: int) -> bool:
        """Return whether this rank reads the position."""
        return position % self.batch_size * self.world_size // self.batch_size == self.rank

    def train(self, state: FeedState | None = None) -> Batches:
        """Return the endless sequence of this rank's parts of batches, from `state` or from the beginning.

        A step covers `batch_size` positions of the endless concatenation of shuffled epochs, and each rank
        gets an even slice of them; several datasets share the positions by weight. `reader: streaming` reads
        the shards from front to back instead (see streaming.py). Neither reader gives quarantined samples.

        The iterator raises BadSampleError for a sample that cannot be read or transformed. `on_bad: replace`
        replaces it by another sample, drawn from seed and position alone, with the augmentation of the
        position, and lists it in the iterator's `passed_over`.
        """
        state = state or self.state()
        version = self.data.version
        if self.loader.reader == "streaming":
            files, sizes = train_shards(version)
            samples = self._open(self.data, TRAIN) if self.data.quarantined else None
            return self.stream(files, state, sizes, samples)
        start = self._step(state)
        sources, transform = self._sources(), self.shapes.transform(is_train=True)
        dataset = PositionBatches(sources, transform, self.seed, self.loader.on_bad, self.shapes.collate)
        name = ", ".join(f"{data.version}/{TRAIN}" for data in self.datasets)
        return self._batches(dataset, name, self._steps(sources, start), transform)

    def stream(
        self,
        urls: Sequence[str | Shard],
        state: FeedState | None = None,
        sizes: Sequence[int] | None = None,
        samples: IndexedReader | None = None,
    ) -> Batches:
        """Return the endless sequence of training batches of tars, also without a dataset; see `plan_stream`
        for the arguments and errors."""
        state = state or self.state()
        transform = self.shapes.transform(is_train=True)
        start = self._step(state)
        stream = plan_stream(self, urls, transform, self.shapes.collate, start, state.ranks, sizes, samples)
        return self._batches(stream, folder_of(stream.files[0]), None, transform)

    def split(
        self,
        name: str,
        transform: Transform | None = None,
        most: int | None = None,
        after: tuple[int, int] = (0, 0),
        parts: Sequence[range] | None = None,
    ) -> Batches:
        """Return every sample of a split once, in storage order and unaugmented; the last batch may be
        smaller.

        A rank gets each `world_size`-th batch, so ranks may differ by one batch. `most` limits the samples to
        as many, in whole batches that are evenly spread. A metric over a split must not count a sample twice,
        so `on_bad: replace` leaves bad samples out here: batches get smaller, and more bad samples than the
        share `bad_budget` are an error. `transform` overrides that of the recipe. `after` is what an earlier
        pass had `reached`: this one yields the batches that it did not. `parts` are the positions of each
        batch, where not all samples are wanted.
        """
        version = self.data.version
        samples = self._open(self.data, name)
        transform = transform or self.shapes.transform(is_train=False)
        source = LoaderSource(samples, Storage())
        dataset = PositionBatches([source], transform, None, self.loader.on_bad, self.shapes.collate)
        if parts is None:
            parts = split_parts(len(samples), self.judged_at_once, most)
        parts = parts[self.rank :: self.world_size]
        left_out = most_left_out(self.loader.bad_budget, sum(map(len, parts)))
        where = f"{version}/{name}"
        budget = Budget(where, len(samples), left_out, f"see `tarmac verify {version}`", spent=after[1])
        ahead = parts[after[0] :]
        one_pass = replace(self, workers=min(self.workers, len(ahead)), pin_memory=False)
        batches = one_pass._batches(dataset, where, ahead, transform, name, budget)
        batches.reached = after
        return batches

    def _batches(
        self,
        dataset: Dataset[Delivery],
        name: str,
        sampler: Iterable[range | PackedPositions] | None,
        transform: Transform,
        split: str = TRAIN,
        budget: Budget | None = None,
    ) -> Batches:
        return Batches(
            dataset,
            name,
            sampler,
            transform,
            self.workers,
            self.prefetch,
            self.pin_memory,
            budget,
            keeper=None if self.states is None else WorkerStates(self.states, self.rank, split),
        )

    def _steps(self, sources: Sequence[LoaderSource], start: int) -> Iterable[range | PackedPositions]:
        if self.packed is None:
            steps = Steps(start, self.batch_size, self.rank, self.world_size, self.part_size)
            coming = partial(shards_at, sources, self.seed), start * self.batch_size
            if self.loader.stage is not None:
                samples = sum(len(source.reader) for source in sources)
                return StagedPositions(steps, lambda: ShardsAhead(*coming, stage_cache(), samples, CHUNK))
            is_fetched = any(source.reader.is_remote for source in sources)
            return StagedPositions(steps, lambda: ShardsAhead(*coming, cache())) if is_fetched else steps
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
        staged = stage_cache().folder if self.loader.stage is not None else None
        readers = [self._open(data, TRAIN, staged) for data in self.datasets]
        return [
            LoaderSource(reader, reader.order(self.loader.shuffle), portion)
            for reader, portion in zip(readers, counts, strict=True)
        ]

    def _open(self, data: Data, split: str, staged: Path | None = None) -> IndexedReader:
        return open_split(data.version, split, data.quarantined, staged, self.loader.checksums)

    def _step(self, state: FeedState) -> int:
        step, rest = divmod(state.position, self.batch_size)
        if state.unit != self._unit or rest:
            raise DataError(
                f"the loader cannot go on at {state.unit} {state.position}: it reads batches of "
                f"{self.batch_size} {self._unit}s; resume with the config that wrote the checkpoint"
            )
        return step


def train_shards(version: Path) -> tuple[Sequence[Shard], list[int]]:
    """Return the shards of a version's training split, and how many samples each holds."""
    sizes = json.loads((version / TRAIN / "sizes.json").read_bytes())
    foreign = foreign_split(version, TRAIN)
    files = (foreign and foreign.remote) or [version / TRAIN / name for name in sizes]
    return files, list(sizes.values())


def split_parts(samples: int, size: int, most: int | None = None) -> list[range]:
    """Return the positions of each batch of `size`. Where there are more than `most` samples, return only as
    many batches as fit into `most`, evenly spread, and at least one."""
    parts = [range(start, min(start + size, samples)) for start in range(0, samples, size)]
    if most is None or samples <= most:
        return parts
    count = max(most // size, 1)
    return [parts[place * len(parts) // count] for place in range(count)]
