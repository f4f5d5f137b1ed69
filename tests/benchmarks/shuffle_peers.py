"""`shuffle_peers.py NAME SHARDS SIZE BATCH WORKERS FOLDER OUT`: the order in which another loader gives samples.

Runs in an environment that knows nothing of Tarmac. OUT is an array of the samples' numbers in storage, of EPOCHS
epochs one after the other, as the training of one rank gets them: batches of the workers in turn. webdataset reads
real tars of tiny samples in FOLDER by its documented pipeline, each worker its own shards; MosaicML streaming's own
functions arrange the epoch, by its defaults for one node.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile

import numpy as np
import torch
from numpy.typing import NDArray

BUFFER, EPOCHS = 1000, 2


def write_tars(shards: int, size: int, folder: str) -> list[str]:
    """Each sample is its number."""
    paths = []
    for shard in range(shards):
        paths.append(f"{folder}/{shard:06d}.tar")
        with tarfile.open(paths[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * size, (shard + 1) * size):
                member = tarfile.TarInfo(f"{number:09d}.txt")
                member.size = 9
                tar.addfile(member, io.BytesIO(b"%09d" % number))
    return paths


def number_of(sample: dict[str, bytes]) -> int:
    return int(sample["txt"])


def by_webdataset(shards: int, size: int, batch: int, workers: int, folder: str) -> NDArray[np.int64]:
    import webdataset

    paths = write_tars(shards, size, folder)
    stream = webdataset.WebDataset(paths, shardshuffle=len(paths)).shuffle(BUFFER).map(number_of)
    loader = torch.utils.data.DataLoader(stream, batch, num_workers=workers)
    return np.concatenate([numbers.numpy() for _ in range(EPOCHS) for numbers in loader])


def by_mds(algorithm: str, shards: int, size: int, batch: int, workers: int) -> NDArray[np.int64]:
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    nodes = 64 if algorithm in ("py1s", "py2s") else 1
    block, samples = max(4_000_000 // nodes, 1 << 18), shards * size
    places = get_partitions("relaxed", samples, nodes, 1, 1, workers, batch)
    in_time = places.transpose(3, 2, 0, 1, 4).ravel()
    sizes = np.full(shards, size)
    epochs = [get_shuffle(algorithm, sizes, nodes, 9176, epoch, block)[in_time] for epoch in range(EPOCHS)]
    return np.concatenate([numbers[in_time >= 0] for numbers in epochs])


def main(name: str, shards: str, size: str, batch: str, workers: str, folder: str, out: str) -> None:
    shape = int(shards), int(size), int(batch), int(workers)
    os.makedirs(folder, exist_ok=True)
    found = by_webdataset(*shape, folder) if name == "webdataset" else by_mds(name, *shape)
    np.save(out, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
