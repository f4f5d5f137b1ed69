"""`volumes_peers.py write|NAME FOLDER CROP REPEATS`: other ways to keep a volume, in an environment of their own.

Each reads crops of the same voxels, (32, 128, 128) say, at the same random places, into a batch of one, as a
loader's worker would; `whole` reads all. Prints milliseconds of CPU and of wall time per volume, the page
cache warm, the first read not counted. The file is opened for each, since a loader's samples are different ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = (16, 120, 120)
Crop = tuple[slice, ...]


def crops(shape: tuple[int, ...], crop: str, count: int) -> Iterator[Crop]:
    """Crops of these sides, `32x128x128`, at random places; or the whole."""
    sides = shape if crop == "whole" else tuple(map(int, crop.split("x")))
    draws = np.random.default_rng(0)
    for _ in range(count):
        starts = [int(draws.integers(side - part + 1)) for side, part in zip(shape, sides, strict=True)]
        yield tuple(slice(at, at + part) for at, part in zip(starts, sides, strict=True))


def measured(
    read: Callable[[Crop, Any], None], shape: tuple[int, ...], crop: str, repeats: int
) -> list[float]:
    """`read` fills the batch, which is made anew each time, with the crop."""
    took = []
    for place in crops(shape, crop, repeats + 1):
        cpu, wall = time.process_time(), time.perf_counter()
        read(place, np.empty((1, *(part.stop - part.start for part in place)), np.int16))
        took.append((time.process_time() - cpu, time.perf_counter() - wall))
    return [sum(each) / repeats * 1e3 for each in zip(*took[1:], strict=True)]


def write(folder: Path) -> None:
    """Store `volume.npy` in every other way."""
    import nibabel
    import zarr
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

    volume = np.load(folder / "volume.npy")
    np.savez(folder / "plain.npz", volume=volume)
    np.savez_compressed(folder / "packed.npz", volume=volume)
    for name in ("scan.nii", "scan.nii.gz"):
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / name)
    packed = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=2)
    for name, after in (("zarr", []), ("zarr-crc32c", [Crc32cCodec()])):
        zarr.create_array(
            folder / name, data=volume, chunks=CHUNK, shards=volume.shape, serializer=BytesCodec(),
            compressors=[packed, *after],
        )  # fmt: skip


def zarr_array(name: str) -> Callable[[Path], Callable[[Crop, Any], None]]:
    def reader(folder: Path) -> Callable[[Crop, Any], None]:
        import zarr

        zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1})

        def read(crop: Crop, batch: Any) -> None:
            batch[0] = zarr.open_array(folder / name, mode="r")[crop]

        return read

    return reader


def numpy_file(name: str, **options: Any) -> Callable[[Path], Callable[[Crop, Any], None]]:
    def reader(folder: Path) -> Callable[[Crop, Any], None]:
        def read(crop: Crop, batch: Any) -> None:
            found = np.load(folder / name, **options)
            batch[0] = (found if name.endswith("npy") else found["volume"])[crop]

        return read

    return reader


def spdl_file(name: str) -> Callable[[Path], Callable[[Crop, Any], None]]:
    def reader(folder: Path) -> Callable[[Crop, Any], None]:
        import spdl.io

        def read(crop: Crop, batch: Any) -> None:
            content = (folder / name).read_bytes()
            found = spdl.io.load_npy(content) if name.endswith("npy") else spdl.io.load_npz(content)["volume"]
            batch[0] = found[crop]

        return read

    return reader


def nifti(name: str) -> Callable[[Path], Callable[[Crop, Any], None]]:
    def reader(folder: Path) -> Callable[[Crop, Any], None]:
        import nibabel

        def read(crop: Crop, batch: Any) -> None:
            batch[0] = nibabel.load(folder / name).dataobj[crop]

        return read

    return reader


PEERS = {
    "np.load, npy": numpy_file("volume.npy"),
    "np.load, npy by map": numpy_file("volume.npy", mmap_mode="r"),
    "np.load, npz": numpy_file("plain.npz"),
    "np.load, npz compressed": numpy_file("packed.npz"),
    "spdl load_npy": spdl_file("volume.npy"),
    "spdl load_npz": spdl_file("plain.npz"),
    "spdl load_npz compressed": spdl_file("packed.npz"),
    "zarr 3, sharded, lz4": zarr_array("zarr"),
    "zarr 3, sharded, lz4, crc32c": zarr_array("zarr-crc32c"),
    "nibabel dataobj, nii": nifti("scan.nii"),
    "nibabel dataobj, nii.gz": nifti("scan.nii.gz"),
}

if __name__ == "__main__":
    name, folder, *rest = sys.argv[1:]
    if name == "write":
        write(Path(folder))
    else:
        shape = np.load(Path(folder) / "volume.npy", mmap_mode="r").shape
        print(json.dumps(measured(PEERS[name](Path(folder)), shape, rest[0], int(rest[1]))))
