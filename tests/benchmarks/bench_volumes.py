"""Seconds to get a CT volume ready for training: from its NIfTI or NPZ file each time, or from a prepared sample.

The raw volume is a CT-like one of 1024 x 1024 x 251 voxels in HU, with correlated noise; of SIDE x SIDE x 251,
with voxels so much larger, where a side is given. CT-CLIP's way (load, rescale, resample with torch, clip, crop
and pad) is done with one thread, as a loader's worker has it. A prepared sample
is read as the indexed reader does: its span of the shard, its CRC32C, decompression. A crop comes out of a map
of the shard, its chunks compared with their checksums. Prepared voxels are int16 HU, which the first step on
the device makes floats; that step is also measured on the CPU. All take turns with the page cache warm.

    .venv/bin/python -m tests.benchmarks.bench_volumes [rounds [side]]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

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

SIDE = int(sys.argv[2]) if __name__ == "__main__" and len(sys.argv) > 2 else 1024
SHAPE = (251, SIDE, SIDE)
SPACING = (1.5, 0.4 * 1024 / SIDE, 0.4 * 1024 / SIDE)
TARGET_SPACING, TARGET_SHAPE = (1.5, 0.75, 0.75), (240, 480, 480)
CROP = (32, 128, 128)
PEER = "NIfTI, int16, gzip"


def raw_volume() -> np.ndarray:
    """Air, a body, two lungs, and noise of about 25 HU that neighbours share, as a scanner's kernel makes it."""
    draws = np.random.default_rng(0)
    z, y, x = np.ogrid[tuple(slice(-1, 1, side * 1j) for side in SHAPE)]
    volume = np.full(SHAPE, -1000, np.int16)
    volume[np.broadcast_to((y / 0.7) ** 2 + (x / 0.9) ** 2 < 1, SHAPE)] = 40
    for side in (-0.4, 0.4):
        volume[(z / 0.9) ** 2 + (y / 0.5) ** 2 + ((x - side) / 0.3) ** 2 < 1] = -850
    for slab in volume:
        noise = draws.standard_normal(SHAPE[1:], np.float32)
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
    sizes = [int(side * (old / new)) for side, old, new in zip(SHAPE, SPACING, TARGET_SPACING, strict=True)]
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
    raw = {"npy": npy.dump(volume), "json": json.dumps({"spacing_mm": SPACING}).encode()}
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


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        volume = raw_volume()
        write_nifti(folder / "scan.nii.gz", volume)
        np.savez_compressed(folder / "packed.npz", arr_0=volume)
        np.savez(folder / "plain.npz", arr_0=volume)
        np.savez(folder / "floats.npz", arr_0=volume.astype(np.float32))
        begin = time.perf_counter()
        b2nd = prepared(folder, "blosc2", volume)
        building = time.perf_counter() - begin
        plain = prepared(folder, "npy", volume)
        del volume
        difference = np.abs(from_npz(folder / "plain.npz").numpy() - as_floats(b2nd)).max()
        print(f"prepared in {building:.1f} s, at most {difference * 1000:.2f} HU from CT-CLIP's own")
        print(
            f"NIfTI {size(folder / 'scan.nii.gz')}, NPZ {size(folder / 'packed.npz')}, b2nd {size(b2nd)}, npy {size(plain)}"
        )
        ways = {
            PEER: partial(from_nifti, folder / "scan.nii.gz"),
            "NPZ, int16, compressed": partial(from_npz, folder / "packed.npz"),
            "NPZ, int16, not compressed": partial(from_npz, folder / "plain.npz"),
            "NPZ, float32, not compressed": partial(from_npz, folder / "floats.npz"),
            "prepared, volume.b2nd": partial(from_shard, b2nd),
            "prepared, volume.b2nd, as floats": partial(as_floats, b2nd),
            "prepared, volume.npy": partial(from_shard, plain),
            "crop, volume.b2nd": partial(crop_from_shard, b2nd),
            "crop, volume.npy": partial(crop_from_shard, plain),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, action in ways.items():
                took = seconds(action)
                if number:  # the first round warms the page cache
                    taken[name].append(took)
        report(taken)


def size(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.0f} MB"


def report(taken: dict[str, list[float]]) -> None:
    slowest = statistics.median(taken[PEER])
    print(f"medians of {len(next(iter(taken.values())))}, load average {os.getloadavg()[0]:.1f}")
    for name, measured in taken.items():
        median = statistics.median(measured)
        spread = f"{min(measured) * 1e3:,.1f} to {max(measured) * 1e3:,.1f}"
        print(f"{name:32} {median * 1e3:10,.1f} ms ({spread})  {slowest / median:8,.0f} x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
