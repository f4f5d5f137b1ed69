"""Reads whole tars from front to back with webdataset: for foreign tars without an index, or slow seeks.

A batch still depends on seed and step alone: batch s comes from lane s modulo their number (see lanes.py),
whichever worker reads it. When the number of workers does not divide the number of lanes, some lanes are read
by more than one worker, each of which transforms only its own batches. Lanes are laid out for the ranks that
a training begins with, and kept when it goes on with others: a lane is then read by each rank that gives a
part of it. What a stream costs beside the index: samples are shuffled within blocks only, bytes are not
checked against a checksum, and resuming reads the shard that it falls into from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.stores import is_remote
from tasks.core.units import counted
from tasks.loader import worker_state
from tasks.loader.bad import BadSampleError, Defect
from tasks.loader.collate import Collate, Packed, WorkerFailure, pack, stack
from tasks.loader.indexed import IndexedReader
from tasks.loader.lanes import Lane, RankShare, Segment, given_before, lane_count, shares_of
from tasks.loader.order import WINDOW, WINDOW_BYTES, Shuffle, rank_positions, sample_seeds
from tasks.loader.tars import Raw, Shard, folder_of, read_tar, shards_at, size_of
from tasks.loader.worker_state import WorkerStage, WorkerStates
from tasks.loader.workers import FILE_DESCRIPTOR, Batches, Transform

PROBES = 64
logger = logging.getLogger(__name__)


def stream_batches(
    urls: Sequence[str | Shard],
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
    laid_out_for: int | None = None,
    sizes: Sequence[int] | None = None,
    samples: IndexedReader | None = None,
    collate: Collate = stack,
    keeper: WorkerStates | None = None,
    sharing_strategy: str = FILE_DESCRIPTOR,
) -> Batches:
    """The endless sequence of training batches of tars; braces as in `{000000..000042}` are expanded.

    `sizes` are the samples of each; unless given they are counted first, by reading all of the tars at each
    start and resume, which a warning says.
    `laid_out_for` is the number of ranks that the sequence began with, where it goes on with others.
    UsageError for an address that is no file and of no known store, for fewer shards than ranks, and for
    `shuffle: samples`, which needs an index. DataError, here or from the iterator, for a tar that is
    truncated, broken or empty, or that its store does not give, and BadSampleError for a sample that
    `transform` cannot take.

    `samples` are those of the tars, where there is an index: a shard that holds excluded ones is read by it,
    from front to back as well, so that neither they nor what is broken around them is in the way.
    """
    if shuffle == "samples":
        raise UsageError("loader.shuffle: samples needs an index; take windows, or loader.reader: indexed")
    files = shards_at(urls)
    seats = laid_out_for or world_size
    if len(files) < seats:
        raise UsageError(f"{len(files)} shards cannot feed {seats} ranks; write more, smaller shards")
    counts = _counted(files) if sizes is None else list(sizes)
    thinned = {} if samples is None else samples.thinned()
    counts = [len(thinned.get(file, range(count))) for file, count in zip(files, counts, strict=True)]
    if not sum(counts):
        raise DataError(f"{folder_of(files[0])}: holds no samples, so no batch would ever come")
    rank_positions(start_step, batch_size, rank, world_size)  # uneven slices show at once
    lanes = lane_count(len(files), seats)
    largest = max(_window(files, counts) // (lanes * seats), 1) if shuffle == "windows" else None
    shares = shares_of(rank, world_size, seats, batch_size)
    plan = [
        [Lane(share.seat * lanes + lane, lanes * seats, counts, seed, largest) for lane in range(lanes)]
        for share in shares
    ]
    stream = StreamBatches(
        files,
        transform,
        batch_size,
        seed,
        shares,
        plan,
        start_step,
        rank,
        world_size,
        thinned,
        samples,
        collate,
    )
    return Batches(
        stream,
        folder_of(files[0]),
        None,
        transform,
        workers,
        prefetch,
        pin_memory,
        keeper=keeper,
        sharing_strategy=sharing_strategy,
    )


def _counted(files: Sequence[Shard]) -> list[int]:
    """The samples of each, by reading all of them."""
    logger.warning(
        "%s: %s without an index are read once to count their samples, and a resume reads them again; "
        "`tarmac index` saves both",
        folder_of(files[0]),
        counted(len(files), "shard"),
    )
    return [sum(1 for _ in read_tar(file)) for file in files]


def _window(files: Sequence[Shard], counts: Sequence[int]) -> int:
    """Samples that are held for shuffling, over all lanes, judged by some of the files."""
    probes = range(0, len(files), max(len(files) // PROBES, 1))
    samples = sum(counts[place] for place in probes)
    size = sum(size_of(files[place]) for place in probes)
    return min(WINDOW, WINDOW_BYTES * max(samples, 1) // max(size, 1))


@dataclass(frozen=True)
class StreamBatches(IterableDataset[Packed | WorkerFailure]):
    """The batches of one rank; in a worker, those whose turn it is."""

    files: Sequence[Shard]
    transform: Transform
    batch_size: int
    seed: int
    shares: Sequence[RankShare]
    lanes: Sequence[Sequence[Lane]]
    """Those of each share."""
    start_step: int
    rank: int
    world_size: int
    thinned: Mapping[Shard, range]
    samples: IndexedReader | None
    collate: Collate

    def __iter__(self) -> Iterator[Packed | WorkerFailure]:
        try:
            yield from self._batches()
        except TarmacError as error:
            yield WorkerFailure.of(error)

    def _batches(self) -> Iterator[Packed]:
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
                made = [self._apply(raw, seed) for raw, seed in zip(samples, seeds, strict=True)]
                worker_state.mine.enter(WorkerStage.COLLATE)
                packed = pack(made, collate=self.collate)
                worker_state.mine.handing_over(len(made))
                yield packed

    def _from(self, share: int, number: int) -> Iterator[Raw]:
        """The endless sequence of a lane's samples from the first step on."""
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
        """The samples of a shard that are not in quarantine, from front to back."""
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
    """A shard that is read in pieces, of which the next one mostly begins where the last one ended."""

    def __init__(self, stream: StreamBatches) -> None:
        self._stream = stream
        self._shard, self._row = -1, 0
        self._samples: Iterator[Raw] = iter(())

    def rows(self, segment: Segment) -> Iterator[Raw]:
        """DataError where the shard ends before them."""
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
            next(self._samples, None)  # how the shard ends says whether it came whole
        if missing:
            fix = "run `tarmac index` again"
            if isinstance(path, Path):
                fix = f"`tarmac verify {path.parent.parent}` says which"
            raise DataError(f"{path}: {missing} of the samples that sizes.json counts are not there; {fix}")


def _undecodable(raw: Raw, members: Mapping[str, bytes], problem: str) -> BadSampleError:
    from tasks.loader import culprit  # here, because most loader workers never meet a bad sample

    path, key = Path(raw["__url__"]), raw["__key__"]
    member, reason = culprit.in_members(members)
    place = path.parent.name, f"{path.parent.name}/{path.name}", None, key
    defect = Defect(*place, member if reason else None, "member.undecodable")
    text = f"{path.parent.parent}/{defect}: {problem}; see `tarmac verify {path} --full`"
    if is_remote(raw["__url__"]):
        text = f"{raw['__url__']}, key {key!r}: {problem}; leave it out, or have it written again"
    return BadSampleError(text, defect)
