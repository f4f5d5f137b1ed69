"""A dataset of 10^9 samples in 10^5 shards costs no more to open, to shuffle and to resume than a small one.

`python -m tests.soak.billion [SAMPLES SHARDS]` gives a feed an index of that size and takes its batches, as
each of 8 ranks, at the start, in the middle of the third epoch, and far out. The index is a sparse file whose
rows stand where batches are read, all of them for the same sample, and every shard is a link to one tar: what
is read is real, and takes no disk of 24 GB.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import google_crc32c
import numpy as np

from tasks.dataset.version.index import INDEX, _header
from tasks.dataset.version.layout import index_name, shard_name
from tasks.loader.feed import Feed
from tasks.loader.lanes import Lane, lane_count
from tasks.loader.order import order_of, rank_positions
from tests.loader import transforms
from tests.loader.conftest import members_of, write_tar
from tests.loader.feeds import feed_of

BATCH, RANKS, SEED = 2048, 8, 3
SHUFFLES = ("windows", "samples", "none")
MOST_BATCH_S, MOST_BYTES = 2.0, 64 << 20
PROBES = 64


def steps_of(samples: int) -> list[int]:
    epoch = samples // BATCH
    return [0, 5 * epoch // 2, 1000 * epoch + 7]


def numbers_read(samples: int, shards: int, length: int) -> np.ndarray:
    """The samples that the batches of all ranks hold, and those by which a reader judges the sizes."""
    found = [np.arange(0, samples, max(samples // PROBES, 1)), np.array([samples - 1])]
    for shuffle in SHUFFLES:
        order = order_of(shuffle, samples, shards, length)
        for step in steps_of(samples):
            for rank in range(RANKS):
                mine = rank_positions(step, BATCH, rank, RANKS)
                found.append(order.indices(np.arange(mine.start, mine.stop), samples, SEED))
    return np.unique(np.concatenate(found))


def write(version: Path, samples: int, shards: int) -> None:
    tar = version / "one.tar"
    [(offset, length)] = write_tar(tar, {"k": members_of(7)})
    checksum = google_crc32c.value(tar.read_bytes()[offset : offset + length])
    (version / "train").mkdir()
    path = version / index_name("train")
    path.parent.mkdir()
    header = _header(samples)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + samples * INDEX.itemsize)
    index = np.load(path, mmap_mode="r+")
    numbers = numbers_read(samples, shards, length)
    its = numbers * shards // samples
    rows = np.empty(len(numbers), INDEX)
    rows["shard"], rows["offset"], rows["length"], rows["crc32c"] = its, offset, length, checksum
    index[numbers] = rows
    index.flush()
    for shard in np.unique(its).tolist():
        os.symlink(tar, version / shard_name("train", shard))


def first_batch(feed: Feed, step: int) -> float:
    began = time.perf_counter()
    with feed.train(feed.state(step)) as batches:
        assert len(next(batches)["key"]) == BATCH // RANKS
    return time.perf_counter() - began


def check_indexed(version: Path, samples: int) -> None:
    first_batch(feed_of(version, transforms.plain, batch_size=BATCH, world_size=RANKS, seed=SEED), 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for shuffle in SHUFFLES:
        for step in steps_of(samples):
            slowest = max(
                first_batch(
                    feed_of(
                        version,
                        transforms.plain,
                        batch_size=BATCH,
                        world_size=RANKS,
                        rank=rank,
                        seed=SEED,
                        shuffle=shuffle,
                    ),
                    step,
                )
                for rank in range(RANKS)
            )
            print(f"{shuffle:8} step {step:>16,}: opened, and the first batch of a rank, in {slowest:.2f} s")
            assert slowest < MOST_BATCH_S
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(f"memory grew by {grown / 1e6:.1f} MB over all of them")
    assert grown < MOST_BYTES


def check_streaming(samples: int, shards: int) -> None:
    sizes = [samples // shards] * shards
    lanes = lane_count(shards, RANKS) * RANKS
    for start in (0, 5 * samples // 2, 1000 * samples + 7):
        began = time.perf_counter()
        block, _ = next(Lane(1, lanes, sizes, SEED, 4096 // lanes).blocks(start))
        seconds = time.perf_counter() - began
        print(f"stream, a lane's sample {start:>16,}: {len(block.order)} samples planned in {seconds:.2f} s")
        assert seconds < MOST_BATCH_S


def main(samples: int, shards: int) -> None:
    print(f"{samples:,} samples in {shards:,} shards; each of {RANKS} ranks has {BATCH // RANKS} samples of")
    print(f"{samples // BATCH:,} steps an epoch; load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="tarmac-billion-") as folder:
        # In a process of its own, whose memory is not that of the reader.
        writer = multiprocessing.get_context("spawn").Process(
            target=write, args=(Path(folder), samples, shards)
        )
        writer.start()
        writer.join()
        assert writer.exitcode == 0
        check_indexed(Path(folder), samples)
    check_streaming(samples, shards)


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:]) if len(sys.argv) > 1 else (10**9, 10**5)))
