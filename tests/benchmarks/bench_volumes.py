"""Seconds to get a CT volume ready for training: from its NIfTI or NPZ file each time, or from a prepared sample.

The raw volume is a CT-like one of 1024 x 1024 x 251 voxels in HU, with correlated noise. CT-CLIP's way (load, rescale, resample with torch, clip, crop
and pad) is done with one thread, as a loader's worker has it. A prepared sample
is read as the indexed reader does: its span of the shard, its CRC32C, decompression. A crop comes out of a map
of the shard, its chunks compared with their checksums. Prepared voxels are int16 HU, which the first step on
the device makes floats; that step is also measured on the CPU. A measurement is of the read after a first one, in a
process of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import nibabel
import numpy as np
import torch
from torch.nn import functional

from tasks.core.config import validate
from tasks.core.schema import Dataset
from tasks.dataset.formats import npy
from tasks.dataset.modalities.volume_report import VOLUME_REPORT
from tasks.dataset.tar.format import Buffer
from tasks.loader.decoders import decode_volume
from tests.benchmarks.harness import Benchmark, Case, Column, Setup, call

DEPTH, SIDE = 251, 1024
TARGET_SPACING, TARGET_SHAPE = (1.5, 0.75, 0.75), (240, 480, 480)
CROP = (32, 128, 128)


def spacing_of(side: int) -> tuple[float, float, float]:
    """Millimetres of a voxel, of which so many lie side by side."""
    return 1.5, 0.4 * SIDE / side, 0.4 * SIDE / side


def raw_volume(side: int) -> np.ndarray:
    """Air, a body, two lungs, and noise of about 25 HU that neighbours share, as a scanner's kernel makes it."""
    shape = (DEPTH, side, side)
    draws = np.random.default_rng(0)
    z, y, x = np.ogrid[tuple(slice(-1, 1, length * 1j) for length in shape)]
    volume = np.full(shape, -1000, np.int16)
    volume[np.broadcast_to((y / 0.7) ** 2 + (x / 0.9) ** 2 < 1, shape)] = 40
    for lung in (-0.4, 0.4):
        volume[(z / 0.9) ** 2 + (y / 0.5) ** 2 + ((x - lung) / 0.3) ** 2 < 1] = -850
    for slab in volume:
        noise = draws.standard_normal(shape[1:], np.float32)
        noise += np.roll(noise, 1, 0)
        noise += np.roll(noise, 1, 1)
        slab += np.rint(noise * 12.5).astype(np.int16)
    return volume


def write_nifti(path: Path, volume: np.ndarray) -> None:
    """As CT-RATE stores it: (height, width, depth), packed by gzip."""
    nibabel.save(nibabel.Nifti1Image(volume.transpose(1, 2, 0), np.eye(4)), path)


def from_nifti(path: Path) -> torch.Tensor:
    """As CT-CLIP prepares a volume for training (scripts/data.py), in float64 as there."""
    voxels = 1.0 * nibabel.load(path).get_fdata() + 0.0
    return prepared_as_ct_clip(torch.tensor(voxels.transpose(2, 0, 1))).float()


def from_npz(path: Path) -> torch.Tensor:
    """The same from its first release's files, in float32."""
    with np.load(path, allow_pickle=False) as file:
        return prepared_as_ct_clip(torch.from_numpy(file["arr_0"]).float())


def prepared_as_ct_clip(volume: torch.Tensor) -> torch.Tensor:
    spacing = spacing_of(volume.shape[-1])
    sizes = [
        int(side * (old / new)) for side, old, new in zip(volume.shape, spacing, TARGET_SPACING, strict=True)
    ]
    volume = functional.interpolate(volume[None, None], size=sizes, mode="trilinear", align_corners=False)[
        0, 0
    ]
    volume = volume.clip_(-1000, 1000).div_(1000)
    padding: list[int] = []
    for axis, target in enumerate(TARGET_SHAPE):
        start = max((volume.shape[axis] - target) // 2, 0)
        volume = volume.narrow(axis, start, min(target, volume.shape[axis]))
        before = (target - volume.shape[axis]) // 2
        padding = [before, target - volume.shape[axis] - before, *padding]
    return functional.pad(volume, padding, value=-1)


def prepared(folder: Path, encoding: str, volume: np.ndarray) -> Path:
    """The sample's members in one file, behind each other; beside it where they begin."""
    rules = {"window": [-1000, 1000], "spacing_mm": TARGET_SPACING, "shape": TARGET_SHAPE, "encode": encoding}
    raw = {"npy": npy.dump(volume), "json": json.dumps({"spacing_mm": spacing_of(volume.shape[-1])}).encode()}
    members = VOLUME_REPORT.take(
        {"volume": raw["npy"], "json": raw["json"], "txt": b"clear"}, dataset_block(rules)
    ).members
    places, content = {}, b""
    for name, data in members.items():
        places[name] = [len(content), len(content) + len(data)]
        content += bytes(data)
    path = folder / encoding
    path.write_bytes(content)
    path.with_suffix(".json").write_text(
        json.dumps({"places": places, "crc32c": google_crc32c.value(content)})
    )
    return path


def dataset_block(rules: dict[str, object]) -> Dataset:
    source = {"kind": "npz", "path": "x", "reports": {"path": "r.csv", "key": "k", "text": ["t"]}}
    block = {"output": "out", "modality": "volume_report", "source": source, "volume": rules}
    return validate({"name": "bench", "dataset": block}, "bench").dataset


def members_of(path: Path, in_map: bool = False) -> dict[str, Buffer]:
    """The sample's members: read and compared with its checksum, or in a map of the file."""
    about = json.loads(path.with_suffix(".json").read_text())
    content: Buffer = np.memmap(path, np.uint8, "r") if in_map else path.read_bytes()
    if not in_map and google_crc32c.value(content) != about["crc32c"]:
        raise SystemExit("damaged")
    return {name: content[start:stop] for name, (start, stop) in about["places"].items()}


def from_shard(path: Path) -> np.ndarray:
    return decode_volume(members_of(path))


def as_floats(path: Path) -> np.ndarray:
    return np.multiply(from_shard(path), np.float32(0.001), dtype=np.float32)


def crop_from_shard(path: Path) -> np.ndarray:
    """A crop out of a map of the shard, its chunks compared with their checksums."""
    members = members_of(path, in_map=True)
    members["json"] = bytes(members["json"])
    crop = tuple(
        slice((side - part) // 2, (side + part) // 2) for side, part in zip(TARGET_SHAPE, CROP, strict=True)
    )
    return decode_volume(members, crop)  # type: ignore[arg-type]


WAYS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "prepared, volume.b2nd": (from_shard, "blosc2"),
    "prepared, volume.b2nd, as floats": (as_floats, "blosc2"),
    "prepared, volume.npy": (from_shard, "npy"),
    "crop, volume.b2nd": (crop_from_shard, "blosc2"),
    "crop, volume.npy": (crop_from_shard, "npy"),
    "NIfTI, int16, gzip": (from_nifti, "scan.nii.gz"),
    "NPZ, int16, compressed": (from_npz, "packed.npz"),
    "NPZ, int16, not compressed": (from_npz, "plain.npz"),
    "NPZ, float32, not compressed": (from_npz, "floats.npz"),
}
"""How a volume is had, and from which file."""
QUICK = ["prepared, volume.b2nd", "crop, volume.b2nd", "NIfTI, int16, gzip"]


def make(folder: Path, side: int) -> None:
    volume = raw_volume(side)
    write_nifti(folder / "scan.nii.gz", volume)
    np.savez_compressed(folder / "packed.npz", arr_0=volume)
    np.savez(folder / "plain.npz", arr_0=volume)
    np.savez(folder / "floats.npz", arr_0=volume.astype(np.float32))
    prepared(folder, "blosc2", volume)
    prepared(folder, "npy", volume)


def had(way: str, folder: str) -> dict[str, float]:
    """Milliseconds that a volume takes by one thread, and megabytes of its file."""
    torch.set_num_threads(1)
    action, name = WAYS[way]
    action(Path(folder, name))
    began = time.perf_counter()
    action(Path(folder, name))
    took = time.perf_counter() - began
    return {"ms": 1e3 * took, "mb": Path(folder, name).stat().st_size / 1e6}


def difference(folder: str) -> dict[str, float]:
    """HU by which a prepared volume differs from CT-CLIP's own, at most."""
    apart = np.abs(from_npz(Path(folder, "plain.npz")).numpy() - as_floats(Path(folder, "blosc2"))).max()
    return {"hu": float(apart) * 1000}


def cases(setup: Setup) -> Iterator[Case]:
    side = setup.sized(SIDE, 256)
    folder = setup.lasting("volumes", partial(make, side=side))
    yield Case(
        f"{side} x {side} x {DEPTH} voxels",
        {way: call(had, way, folder) for way in setup.sized([*WAYS], QUICK)},
    )
    yield Case("beside CT-CLIP's own", {"prepared, volume.b2nd": call(difference, folder)})


BENCHMARKS = (
    Benchmark(
        "volumes",
        "Preparing a CT volume",
        "Milliseconds until a volume of 240 x 480 x 480 voxels is there, by one thread: CT-CLIP's own preparation of a "
        "file each time, or reading the sample that a build has prepared, all of it or a crop of 32 x 128 x 128.",
        cases,
        (Column("ms", "ms", ",.1f"), Column("mb", "MB of file"), Column("hu", "HU apart at most", ".2f")),
        packages=("torch", "numpy", "nibabel", "blosc2"),
        ratio="ms",
        is_time=True,
    ),
)
