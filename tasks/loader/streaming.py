"""Reads whole tars from front to back with webdataset: for foreign tars without an index, or slow seeks.

A batch still depends on seed and step alone. The shards of each epoch are dealt to a fixed number of lanes,
and batch s comes from lane s modulo that number, whichever worker reads it. When the number of workers does
not divide the number of lanes, some lanes are read by more than one worker, each of which transforms only its
own batches. What a stream costs beside the index: samples are shuffled within a buffer only, bytes are not
checked against a checksum, and resuming replays (reads, without decoding) everything before the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from webdataset.filters import shuffle as shuffle_buffer

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.loader.bad import BadSampleError, Defect
from tasks.loader.collate import Failure, Packed, pack
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import Samples, Shuffle, rank_positions, sample_seeds
from tasks.loader.tars import Raw, local_files, read_tar
from tasks.loader.workers import Batches, Transform

LANES = (24, 12, 6, 2, 1)
"""Each is divided by many numbers of workers; a stream takes the first that its shards can fill."""
BUFFER = 4096
"""Samples held for shuffling, over all lanes."""


def stream_batches(
    urls: Sequence[str | Path],
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
    samples: IndexedReader | None = None,
) -> Batches:
    """The endless sequence of training batches of local tars; braces as in `{000000..000042}` are expanded.

    UsageError for anything but a local file, for fewer shards than ranks, and for `shuffle: samples`, which
    needs an index. The iterator raises DataError for a tar that is truncated, broken or empty, and
    BadSampleError for a sample that `transform` cannot take.

    `samples` are those of the tars, where there is an index: a shard that holds excluded ones is read by it,
    from front to back as well, so that neither they nor what is broken around them is in the way.
    """
    if shuffle == "samples":
        raise UsageError("loader.shuffle: samples needs an index; take windows, or loader.reader: indexed")
    thinned = {} if samples is None else samples.thinned()
    files = [file for file in local_files(urls) if file not in thinned or thinned[file]]
    if len(files) < world_size:
        raise UsageError(f"{len(files)} shards cannot feed {world_size} ranks; write more, smaller shards")
    shuffled = shuffle == "windows"
    stream = StreamBatches(
        files, transform, batch_size, seed, shuffled, start_step, rank, world_size, thinned, samples
    )
    return Batches(stream, str(files[0].parent), None, transform, workers, prefetch, pin_memory)


@dataclass(frozen=True)
class StreamBatches(IterableDataset[Packed | Failure]):
    """The batches of one rank; in a worker, those whose turn it is."""

    files: Sequence[Path]
    transform: Transform
    batch_size: int
    seed: int
    shuffled: bool
    start_step: int
    rank: int
    world_size: int
    thinned: Mapping[Path, range]
    samples: IndexedReader | None

    def __iter__(self) -> Iterator[Packed | Failure]:
        try:
            yield from self._batches()
        except TarmacError as error:
            yield Failure.of(error)

    def _batches(self) -> Iterator[Packed]:
        worker = get_worker_info()
        turn, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        number = next(lanes for lanes in LANES if lanes <= len(self.files) // self.world_size)
        mine = {(self.start_step + turn + ahead * workers) % number for ahead in range(number)}
        lanes = {lane: self._lane(lane, number) for lane in mine}
        for step in count():
            positions = rank_positions(step, self.batch_size, self.rank, self.world_size)
            if step % number not in lanes:
                continue
            samples = list(islice(lanes[step % number], len(positions)))
            if step >= self.start_step and (step - self.start_step) % workers == turn:
                seeds = sample_seeds(np.arange(positions.start, positions.stop), self.seed).tolist()
                yield pack([self._apply(raw, seed) for raw, seed in zip(samples, seeds, strict=True)])

    def _lane(self, lane: int, lanes: int) -> Iterator[Raw]:
        """The endless sequence of a lane's samples. Every epoch deals all shards anew to ranks and lanes.

        A lane with fewer samples is through with its epochs sooner, so without shuffling the shards move on
        by one an epoch: each lane meets them all equally often.
        """
        shards = np.arange(len(self.files))
        for epoch in count():
            order = Samples().indices(shards + epoch * len(shards), len(shards), self.seed)
            order = order if self.shuffled else np.roll(shards, -epoch)
            dealt = order[self.rank :: self.world_size][lane::lanes]
            samples = (raw for shard in dealt.tolist() for raw in self._read(self.files[shard]))
            if self.shuffled:
                size = max(BUFFER // lanes, 1)
                rng = Random(f"{self.seed} {epoch} {self.rank} {lane}")
                samples = shuffle_buffer(size, initial=size, rng=rng)(samples)
            yield from samples

    def _read(self, path: Path) -> Iterator[Raw]:
        if self.samples is None or path not in self.thinned:
            yield from read_tar(path)
            return
        for sample in map(self.samples.read, self.thinned[path]):
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


def _undecodable(raw: Raw, members: Mapping[str, bytes], problem: str) -> BadSampleError:
    from tasks.loader import culprit  # here, because most loader workers never meet a bad sample

    path, key = Path(raw["__url__"]), raw["__key__"]
    member, reason = culprit.in_members(members)
    place = path.parent.name, f"{path.parent.name}/{path.name}", None, key
    defect = Defect(*place, member if reason else None, "member.undecodable")
    text = f"{path.parent.parent}/{defect}: {problem}; see `tarmac verify {path} --full`"
    return BadSampleError(text, defect)
