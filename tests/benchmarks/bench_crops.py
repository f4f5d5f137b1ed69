"""CPU time and seconds to get a crop of a CT volume, or all of it, into a batch: out of a shard, and by other ways.

The same 240 x 480 x 480 int16 voxels lie in a shard as `volume.b2nd` and as `volume.npy`, and as `.npy`, `.npz`,
NIfTI and zarr 3 with the same chunks, codec and filter. Each measurement is a process of its own on one thread
unless said; all take turns; the page cache is warm. Ours is what a loader's worker does: the sample is found
by the index and proven by its CRC32C, and the chunks by theirs, which only `zarr ... crc32c` does besides.

    .venv/bin/python -m tests.benchmarks.bench_crops [FOLDER [ROUNDS]]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
from tests.benchmarks import bench_volumes, results, volumes_peers
from tests.system.foreign_env import foreign_env

SAMPLES = 4
ROUNDS = 5
REPEATS = {"32x128x128": 30, "64x224x224": 15, "whole": 4}
PACKED = {"np.load, npz compressed", "spdl load_npz compressed", "nibabel dataobj, nii.gz"}
"""Peers that decompress all for any crop; they are read once per process."""
OURS = {"tarmac, volume.b2nd": ("blosc2", 1), "tarmac, volume.npy": ("npy", 1)}
THREADS = {"tarmac, volume.b2nd, 2 threads": ("blosc2", 2)}
PROMISES = (
    ("32x128x128", "tarmac, volume.b2nd", "zarr 3, sharded, lz4, crc32c", 1.5),
    ("32x128x128", "tarmac, volume.npy", "np.load, npy", 5.0),
    ("64x224x224", "tarmac, volume.b2nd", "zarr 3, sharded, lz4, crc32c", 1.5),
    ("whole", "tarmac, volume.b2nd", "zarr 3, sharded, lz4, crc32c", 1.5),
    ("whole", "tarmac, volume.npy", "np.load, npy", 0.8),
    ("whole", "tarmac, volume.npy", "spdl load_npz", 1.5),
)
"""What is promised: the other's CPU time over the one's."""


def prepare(folder: Path) -> None:
    """Write the voxels in every way; those of `bench_volumes`, prepared as CT-CLIP wants them."""
    rules = {
        "window": [-1000, 1000],
        "spacing_mm": bench_volumes.TARGET_SPACING,
        "shape": bench_volumes.TARGET_SHAPE,
    }
    volume = npy.dump(bench_volumes.raw_volume())
    facts = json.dumps({"spacing_mm": bench_volumes.SPACING}).encode()
    raw = {"volume": volume, "json": facts, "txt": b"No effusion."}
    for encoding in ("blosc2", "npy"):
        block = bench_volumes.dataset_block({**rules, "encode": encoding})
        members = {name: bytes(data) for name, data in VOLUME_REPORT.take(raw, block).members.items()}
        write_version(folder / encoding, members)
    (folder / "volume.npy").write_bytes(members["volume.npy"])
    subprocess.run([*peer_command("write", folder)], check=True)


def write_version(version: Path, members: dict[str, bytes]) -> None:
    for path in (version / index_name("train"), version / shard_name("train", 0)):
        path.parent.mkdir(parents=True)
    with ShardWriter(version / shard_name("train", 0)) as writer:
        spans = [writer.add(f"s{number}", members) for number in range(SAMPLES)]
        writer.finish()
    rows = [(0, span.offset, span.length, span.crc32c) for span in spans]
    np.save(version / index_name("train"), np.array(rows, INDEX))


def ours(version: str, threads: str, crop: str, repeats: str) -> None:
    """Print what `volumes_peers.measure` does, for the loader's reader."""
    reader, number = IndexedReader(Path(version), "train"), 0
    shape = decode_volume(reader.read(0).members).shape

    def read(place: Any, batch: Any) -> None:
        nonlocal number
        members = reader.read(number % SAMPLES, crops=True).members
        decode_volume(members, place, batch[0], int(threads))
        number += 1

    volumes_peers.measure(read, shape, crop, int(repeats))


def peer_command(*arguments: object) -> Sequence[str]:
    script = Path(__file__).with_name("volumes_peers.py")
    return [str(part) for part in (foreign_env("volumes") / "python", script, *arguments)]


def command_of(name: str, folder: Path, crop: str) -> Sequence[str]:
    repeats = REPEATS[crop]
    if name in (OURS | THREADS):
        encoding, threads = (OURS | THREADS)[name]
        call = "import sys; from tests.benchmarks.bench_crops import ours; ours(*sys.argv[1:])"
        return [sys.executable, "-c", call, str(folder / encoding), str(threads), crop, str(repeats)]
    return peer_command(name, folder, crop, 1 if name in PACKED else repeats)


def main(folder: Path, rounds: int) -> None:
    if not (folder / "volume.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder)
    known = results.versions(results.SECTIONS["crops"].packages, "volumes")
    print(", ".join(f"{name} {number}" for name, number in known.items()))
    for crop in REPEATS:
        names = [*OURS, *(THREADS if crop == "whole" else ()), *volumes_peers.PEERS]
        found: dict[str, list[list[float]]] = {name: [] for name in names}
        loads = []
        for _ in range(rounds):
            for name in names:
                done = subprocess.run(command_of(name, folder, crop), check=True, stdout=subprocess.PIPE)
                found[name].append(json.loads(done.stdout.split(b"\n")[-2]))
                loads.append(os.getloadavg()[0])
        report(crop, found, loads)


def report(crop: str, found: dict[str, list[list[float]]], loads: list[float]) -> None:
    medians = {
        name: [statistics.median(each) for each in zip(*took, strict=True)] for name, took in found.items()
    }
    print(
        f"\n{crop}: median of {len(loads) // len(found)}, load average {min(loads):.1f} to {max(loads):.1f}"
    )
    print(f"{'':32} {'CPU ms':>9} {'wall ms':>9}  its CPU time over ours: b2nd, npy")
    of_ours = [medians[name][0] for name in OURS]
    for name, (cpu, wall) in medians.items():
        print(f"{name:32} {cpu:9.1f} {wall:9.1f}  {' '.join(f'{cpu / own:8.2f} x' for own in of_ours)}")
    for size, one, other, promised in PROMISES:
        if size == crop:
            ratio = medians[other][0] / medians[one][0]
            verdict = "kept" if ratio >= promised else "NOT KEPT"
            print(f"{one} beside {other}: {ratio:.2f} x, promised {promised}: {verdict}")
    rows = {name: {"cpu_ms": cpu, "wall_ms": wall} for name, (cpu, wall) in medians.items()}
    results.save("crops", crop, rows, len(loads) // len(found), loads)


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(Path(given.get(0, Path(tempfile.gettempdir()) / "tarmac-bench-volumes")), int(given.get(1, ROUNDS)))
