"""CPU time and seconds to get a crop of a CT volume, or all of it, into a batch: out of a shard, and by other ways.

The same 240 x 480 x 480 int16 voxels lie in a shard as `volume.b2nd` and as `volume.npy`, and as `.npy`, `.npz`,
NIfTI and zarr 3 with the same chunks, codec and filter, and are read on one thread unless said. Ours is what a
loader's worker does: the sample is found by the index and proven by its CRC32C, and the chunks by theirs, which only
`zarr ... crc32c` does besides. The voxels are written once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.dataset.formats import npy
from tasks.dataset.modalities.volume_report import VOLUME_REPORT
from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version.index import INDEX
from tasks.dataset.version.layout import index_name, shard_name
from tasks.loader.decoders import decode_volume
from tasks.loader.indexed import IndexedReader
from tests.benchmarks import bench_volumes, volumes_peers
from tests.benchmarks.harness import (
    Benchmark,
    Case,
    Column,
    Command,
    Contestant,
    Promise,
    Setup,
    call,
    quicker,
)

SAMPLES = 4
KEYS = ("cpu_ms", "wall_ms")
REPEATS = {"32x128x128": 30, "64x224x224": 15, "whole": 4}
PACKED = {"np.load, npz compressed", "spdl load_npz compressed", "nibabel dataobj, nii.gz"}
"""Peers that decompress all for any crop; they are read once per process."""
OURS = {"tarmac, volume.b2nd": ("blosc2", 1), "tarmac, volume.npy": ("npy", 1)}
THREADS = {"tarmac, volume.b2nd, 2 threads": ("blosc2", 2)}
B2ND, NPY, ZARR = "tarmac, volume.b2nd", "tarmac, volume.npy", "zarr 3, sharded, lz4, crc32c"
PROMISES = (
    ("32x128x128", B2ND, ZARR, 1.5),
    ("32x128x128", NPY, "np.load, npy", 5.0),
    ("64x224x224", B2ND, ZARR, 1.5),
    ("whole", B2ND, ZARR, 1.5),
    ("whole", NPY, "np.load, npy", 0.8),
    ("whole", NPY, "spdl load_npz", 1.5),
)
"""What is promised: the other's CPU time over the one's."""


def prepare(folder: Path, setup: Setup, side: int) -> None:
    """Write the voxels in every way; those of `bench_volumes`, prepared as CT-CLIP wants them."""
    rules = {
        "window": [-1000, 1000],
        "spacing_mm": bench_volumes.TARGET_SPACING,
        "shape": bench_volumes.TARGET_SHAPE,
    }
    volume = npy.dump(bench_volumes.raw_volume(side))
    facts = json.dumps({"spacing_mm": bench_volumes.spacing_of(side)}).encode()
    raw = {"volume": volume, "json": facts, "txt": b"No effusion."}
    for encoding in ("blosc2", "npy"):
        block = bench_volumes.dataset_block({**rules, "encode": encoding})
        members = {name: bytes(data) for name, data in VOLUME_REPORT.take(raw, block).members.items()}
        write_version(folder / encoding, members)
    (folder / "volume.npy").write_bytes(members["volume.npy"])
    peers = setup.peer("volumes", "volumes_peers", "write", folder)
    if isinstance(peers, Command):
        peers.output()


def write_version(version: Path, members: dict[str, bytes]) -> None:
    for path in (version / index_name("train"), version / shard_name("train", 0)):
        path.parent.mkdir(parents=True)
    with ShardWriter(version / shard_name("train", 0)) as writer:
        spans = [writer.add(f"s{number}", members) for number in range(SAMPLES)]
        writer.finish()
    rows = [(0, span.offset, span.length, span.crc32c) for span in spans]
    np.save(version / index_name("train"), np.array(rows, INDEX))


def ours(version: str, threads: int, crop: str, repeats: int) -> dict[str, float]:
    """What `volumes_peers.measured` gives, for the loader's reader."""
    reader, number = IndexedReader(Path(version), "train"), 0
    shape = decode_volume(reader.read(0).members).shape

    def read(place: Any, batch: Any) -> None:
        nonlocal number
        members = reader.read(number % SAMPLES, crops=True).members
        decode_volume(members, place, batch[0], threads)
        number += 1

    return dict(zip(KEYS, volumes_peers.measured(read, shape, crop, repeats), strict=True))


def cases(setup: Setup) -> Iterator[Case]:
    side = setup.sized(bench_volumes.SIDE, 256)
    folder = setup.lasting("crops", partial(prepare, setup=setup, side=side))
    for crop, usual in REPEATS.items():
        repeats = setup.sized(usual, 1)
        names = OURS | (THREADS if crop == "whole" else {})
        found: dict[str, Contestant] = {
            name: call(ours, folder / encoding, threads, crop, repeats)
            for name, (encoding, threads) in names.items()
        }
        for name in volumes_peers.PEERS:
            given = [name, folder, crop, 1 if name in PACKED else repeats]
            found[name] = setup.peer("volumes", "volumes_peers", *given, keys=KEYS)
        yield Case(crop, found)


BENCHMARKS = (
    Benchmark(
        "crops",
        "Crops of a CT volume",
        "A crop of 240 x 480 x 480 int16 voxels, or all of them, into a batch, by one thread. Ours is what a worker of "
        "the loader does, checksums included; of the others only `zarr ... crc32c` has any.",
        cases,
        (Column("cpu_ms", "ms of CPU", ".1f"), Column("wall_ms", "ms", ".1f")),
        promises=[
            Promise(
                f"{one} beside {other}, times as little CPU",
                quicker("cpu_ms", one, other),
                "at least",
                limit,
                cases=(crop,),
            )
            for crop, one, other, limit in PROMISES
        ],
        packages=("numpy", "blosc2", "google-crc32c"),
        environments=("volumes",),
        ratio="cpu_ms",
        is_time=True,
        plot="cpu_ms",
    ),
)
