"""Reads whole tars from front to back with webdataset: for foreign tars without an index, or slow seeks.

A batch still depends on seed and step alone. The shards of each epoch are dealt to a fixed number of lanes,
and batch s comes from lane s modulo that number, whichever worker reads it. When the number of workers does
not divide the number of lanes, some lanes are read by more than one worker, each of which transforms only its
own batches. What a stream costs beside the index: samples are shuffled within a buffer only, bytes are not
checked against a checksum, and resuming replays (reads, without decoding) everything before the step.

Only local files are opened, by this module and never by webdataset's opener, which would run a shell command
for `pipe:` and for every remote scheme.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from webdataset.filters import shuffle as shuffle_buffer
from webdataset.shardlists import expand_urls
from webdataset.tariterators import group_by_keys, tar_file_expander

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.loader.collate import Failure, Packed, pack
from tasks.loader.order import Samples, Shuffle, rank_positions, sample_seeds
from tasks.loader.workers import Batches, Transform

LANES = (24, 12, 6, 2, 1)
"""Each is divided by many numbers of workers; a stream takes the first that its shards can fill."""
BUFFER = 4096
"""Samples held for shuffling, over all lanes."""
END_OF_TAR = bytes(1024)
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")

Raw = dict[str, Any]


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
) -> Batches:
    """The endless sequence of training batches of local tars; braces as in `{000000..000042}` are expanded.

    UsageError for anything but a local file, for fewer shards than ranks, and for `shuffle: samples`, which
    needs an index. The iterator raises DataError for a tar that is truncated, broken or empty.
    """
    if shuffle == "samples":
        raise UsageError("loader.shuffle: samples needs an index; take windows, or loader.reader: indexed")
    files = local_files(urls)
    if len(files) < world_size:
        raise UsageError(f"{len(files)} shards cannot feed {world_size} ranks; write more, smaller shards")
    shuffled = shuffle == "windows"
    stream = StreamBatches(files, transform, batch_size, seed, shuffled, start_step, rank, world_size)
    return Batches(stream, str(files[0].parent), None, transform, workers, prefetch, pin_memory)


def local_files(urls: Sequence[str | Path]) -> list[Path]:
    """Paths of the tars; a path stands for itself, in a string braces are expanded."""
    files = [url for url in urls if isinstance(url, Path)]
    for url in (part for pattern in urls if isinstance(pattern, str) for part in expand_urls(pattern)):
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
        if (scheme and scheme[1] != "file") or url == "-":
            raise UsageError(
                f"{url}: only local files are read, since webdataset runs a shell command for any other "
                "address; copy the shards to this machine first"
            )
        files.append(Path(url.removeprefix("file://").removeprefix("file:")))
    if not files:
        raise UsageError("the list of shards is empty")
    return files


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

    def __iter__(self) -> Iterator[Packed | Failure]:
        try:
            yield from self._batches()
        except TarmacError as error:
            yield Failure(type(error), str(error))

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
        """The endless sequence of a lane's samples. Every epoch deals all shards anew to ranks and lanes."""
        shards = np.arange(len(self.files))
        for epoch in count():
            order = Samples().indices(shards + epoch * len(shards), len(shards), self.seed)
            dealt = (order if self.shuffled else shards)[self.rank :: self.world_size][lane::lanes]
            samples = (raw for shard in dealt.tolist() for raw in read_tar(self.files[shard]))
            if self.shuffled:
                size = max(BUFFER // lanes, 1)
                rng = Random(f"{self.seed} {epoch} {self.rank} {lane}")
                samples = shuffle_buffer(size, initial=size, rng=rng)(samples)
            yield from samples

    def _apply(self, raw: Raw, seed: int) -> dict[str, Any]:
        members = {name: value for name, value in raw.items() if not name.startswith("__")}
        try:
            return {**self.transform(members, seed), "key": raw["__key__"]}
        except DataError as error:
            raise DataError(f"{raw['__url__']}, key {raw['__key__']!r}: {error}") from error
        except Exception as error:
            error.add_note(f"in the transform of {raw['__url__']}, key {raw['__key__']!r}")
            raise


def read_tar(path: Path) -> Iterator[Raw]:
    """webdataset's samples of one tar, plain or compressed: members by suffix, `__key__` and `__url__`.

    DataError when it is broken, ends early or holds no sample.
    """
    key = None
    try:
        with path.open("rb") as file:
            _check_end(path)
            for raw in group_by_keys(tar_file_expander([{"url": str(path), "stream": file}])):
                key = raw["__key__"]
                yield raw
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        where = f"after sample {key!r}" if key else "at its start"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error.args[0]
        raise DataError(f"{path}: cannot be read {where}: {reason}") from error
    if key is None:
        raise DataError(f"{path}: holds no samples; take it off the list of shards")


def _check_end(path: Path) -> None:
    """DataError for a plain tar cut between two members, which tar readers take for a complete one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        compressed = file.read(6).startswith(COMPRESSED)
        file.seek(max(size - len(END_OF_TAR), 0))
        if not compressed and file.read() != END_OF_TAR:
            raise DataError(f"{path}: truncated, its end blocks are missing; copy or build it again")
