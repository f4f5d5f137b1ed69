"""Reads whole tars from front to back with webdataset: for foreign tars without an index, or slow seeks.

A batch still depends on seed and step alone: batch s comes from lane s modulo the number of lanes (see
lanes.py), whichever worker reads it. When the number of workers does not divide the number of lanes, some
lanes are read by more than one worker, each of which transforms only its own batches. Lanes are laid out for
the ranks that a training begins with, and kept when it resumes with others: a lane is then read by each rank
that needs a part of it. A stream costs this beside the index: samples are shuffled within blocks only, bytes
are not checked against a checksum, and resuming reads from the beginning the shard that it falls into.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.schema import Loader
from tasks.core.stores import is_remote
from tasks.core.units import counted
from tasks.loader import batch_memory, worker_state
from tasks.loader.bad import BadSampleError, Defect
from tasks.loader.collate import Collate, Delivery, WorkerFailure, pack
from tasks.loader.indexed import IndexedReader
from tasks.loader.lanes import Lane, RankShare, Segment, given_before, lane_count, shares_of
from tasks.loader.order import WINDOW, WINDOW_BYTES, rank_positions, sample_seeds
from tasks.loader.tars import Raw, Shard, folder_of, read_tar, shards_at, size_of
from tasks.loader.worker_state import WorkerStage
from tasks.loader.workers import Transform

PROBES = 64
logger = logging.getLogger(__name__)


class StreamedFeed(Protocol):
    """The part of a `tasks.loader.feed.Feed` that the plan of a stream depends on."""

    @property
    def loader(self) -> Loader: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


def plan_stream(
    feed: StreamedFeed,
    urls: Sequence[str | Shard],
    transform: Transform,
    collate: Collate,
    start_step: int,
    laid_out_for: int | None,
    sizes: Sequence[int] | None,
    samples: IndexedReader | None,
) -> StreamBatches:
    """Return the endless training batches of tars; braces as in `{000000..000042}` are expanded.

    `sizes` are the numbers of samples in each. Without them they are counted first, by reading all of the
    tars at each start and resume, and a warning is logged. `laid_out_for` is the number of ranks that the
    sequence began with, where it resumes with others. `samples` are those of the tars, where there is an
    index: a shard with excluded samples is then read through the index, also from front to back, so that
    neither they nor damage around them gets in the way.

    UsageError for an address that is neither a file nor of a known store, for fewer shards than ranks, and
    for `shuffle: samples`, which needs an index. DataError, here or from the iterator, for a tar that is
    truncated, broken, empty or not available from its store, and BadSampleError for a sample that `transform`
    rejects.
    """
    shuffle = feed.loader.shuffle
    if shuffle == "samples":
        raise UsageError("loader.shuffle: samples needs an index; set windows, or loader.reader: indexed")
    files = shards_at(urls)
    seats = laid_out_for or feed.world_size
    if len(files) < seats:
        raise UsageError(f"{len(files)} shards cannot feed {seats} ranks; write more, smaller shards")
    counts = _counted(files) if sizes is None else list(sizes)
    thinned = {} if samples is None else samples.thinned()
    counts = [len(thinned.get(file, range(count))) for file, count in zip(files, counts, strict=True)]
    if not sum(counts):
        raise DataError(f"{folder_of(files[0])}: holds no samples, so no batch would ever come")
    shares = shares_of(feed.rank, feed.world_size, seats, feed.batch_size)
    lanes = lane_count(len(files), seats)
    largest = max(_window(files, counts) // (lanes * seats), 1) if shuffle == "windows" else None
    plan = [
        [Lane(share.seat * lanes + lane, lanes * seats, counts, feed.seed, largest) for lane in range(lanes)]
        for share in shares
    ]
    return StreamBatches(
        files,
        transform,
        collate,
        feed.batch_size,
        feed.seed,
        feed.rank,
        feed.world_size,
        shares,
        plan,
        start_step,
        thinned,
        samples,
    )


def _counted(files: Sequence[Shard]) -> list[int]:
    """Count the samples of each tar by reading all of them."""
    logger.warning(
        "%s: %s without an index are read once to count their samples, and a resume reads them again; "
        "`tarmac index` saves both",
        folder_of(files[0]),
        counted(len(files), "shard"),
    )
    return [sum(1 for _ in read_tar(file)) for file in files]


def _window(files: Sequence[Shard], counts: Sequence[int]) -> int:
    """Return how many samples all lanes together hold for shuffling, estimated from some of the files."""
    probes = range(0, len(files), max(len(files) // PROBES, 1))
    samples = sum(counts[place] for place in probes)
    size = sum(size_of(files[place]) for place in probes)
    return min(WINDOW, WINDOW_BYTES * max(samples, 1) // max(size, 1))


@dataclass(frozen=True)
class StreamBatches(IterableDataset[Delivery]):
    """The batches of one rank; in a worker, every n-th of them."""

    files: Sequence[Shard]
    transform: Transform
    collate: Collate
    batch_size: int
    seed: int
    rank: int
    world_size: int
    shares: Sequence[RankShare]
    lanes: Sequence[Sequence[Lane]]
    """The lanes of each share."""
    start_step: int
    thinned: Mapping[Shard, range]
    samples: IndexedReader | None

    def __iter__(self) -> Iterator[Delivery]:
        try:
            yield from self._batches()
        except TarmacError as error:
            yield WorkerFailure.of(error)

    def _batches(self) -> Iterator[Delivery]:
        worker = get_worker_info()
        turn, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        number = len(self.lanes[0])
        mine = {(self.start_step + turn + ahead * workers) % number for ahead in range(number)}
        lanes = {lane: [self._from(share, lane) for share in range(len(self.shares))] for lane in mine}
        for step in count(self.start_step):
            if step % number not in lanes:
                continue
            worker_state.mine.enter(WorkerStage.READ)
            samples: list[Raw] = []
            for share, lane in zip(self.shares, lanes[step % number], strict=True):
                samples += list(islice(lane, share.size))[share.mine]
            if (step - self.start_step) % workers == turn:
                positions = rank_positions(step, self.batch_size, self.rank, self.world_size)
                seeds = sample_seeds(np.arange(positions.start, positions.stop), self.seed).tolist()
                worker_state.mine.enter(WorkerStage.TRANSFORM)
                batch_memory.begin(len(samples))
                made = [self._apply(raw, seed) for raw, seed in zip(samples, seeds, strict=True)]
                worker_state.mine.enter(WorkerStage.COLLATE)
                packed = pack(made, collate=self.collate)
                worker_state.mine.handing_over(len(made))
                yield packed

    def _from(self, share: int, number: int) -> Iterator[Raw]:
        """Yield a lane's samples from the first step on, without end."""
        reading, lane = _ShardReading(self), self.lanes[share][number]
        start = given_before(self.start_step, number, len(self.lanes[share])) * self.shares[share].size
        for block, skipped in lane.blocks(start):
            if lane.largest is None:
                samples = (raw for segment in block.segments for raw in reading.rows(segment))
                yield from islice(samples, skipped, None)
            else:
                held = [raw for segment in block.segments for raw in reading.rows(segment)]
                yield from (held[place] for place in block.order[skipped:])

    def open_shard(self, path: Shard) -> Iterator[Raw]:
        """Yield the samples of a shard that are not in quarantine, from front to back."""
        if self.samples is None or path not in self.thinned:
            yield from read_tar(path)
            return
        for sample in map(self.samples.read, self.thinned[path]):
            worker_state.mine.counting()
            yield {"__key__": sample.key, "__url__": str(path), **sample.members}

    def _apply(self, raw: Raw, seed: int) -> dict[str, Any]:
        members = {name: value for name, value in raw.items() if not name.startswith("__")}
        try:
            return {**self.transform(members, seed), "key": raw["__key__"]}
        except DataError as error:
            raise _undecodable(raw, members, str(error)) from error
        except Exception as error:
            error.add_note(f"in the transform of {raw['__url__']}, key {raw['__key__']!r}")
            raise


class _ShardReading:
    """Reads a shard in pieces; the next piece usually begins where the last one ended."""

    def __init__(self, stream: StreamBatches) -> None:
        self._stream = stream
        self._shard, self._row = -1, 0
        self._samples: Iterator[Raw] = iter(())

    def rows(self, segment: Segment) -> Iterator[Raw]:
        """Yield the samples of a segment; DataError where the shard ends before them."""
        path = self._stream.files[segment.shard]
        if segment.shard != self._shard or segment.rows.start < self._row:
            self._shard, self._row = segment.shard, 0
            self._samples = self._stream.open_shard(path)
        begin, end = segment.rows.start - self._row, segment.rows.stop - self._row
        self._row = segment.rows.stop
        missing = len(segment.rows)
        for raw in islice(self._samples, begin, end):
            missing -= 1
            yield raw
        if not missing and segment.rows.stop == self._stream.lanes[0][0].sizes[segment.shard]:
            next(self._samples, None)  # reading its end raises where the shard is cut
        if missing:
            fix = "run `tarmac index` again"
            if isinstance(path, Path):
                fix = f"`tarmac verify {path.parent.parent}` names them"
            raise DataError(f"{path}: {missing} of the samples that sizes.json counts are missing; {fix}")


def _undecodable(raw: Raw, members: Mapping[str, bytes], problem: str) -> BadSampleError:
    from tasks.loader import culprit  # here, because most loader workers never read a bad sample

    path, key = Path(raw["__url__"]), raw["__key__"]
    member, reason = culprit.in_members(members)
    place = path.parent.name, f"{path.parent.name}/{path.name}", None, key
    defect = Defect(*place, member if reason else None, "member.undecodable")
    text = f"{path.parent.parent}/{defect}: {problem}; see `tarmac verify {path} --full`"
    if is_remote(raw["__url__"]):
        text = f"{raw['__url__']}, key {key!r}: {problem}; remove it from the tar, or write it again"
    return BadSampleError(text, defect)
