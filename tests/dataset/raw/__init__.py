"""Small raw data for the tests of this folder, and configs that read it."""

from __future__ import annotations

import csv
import io
import shutil
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
from blake3 import blake3
from PIL import Image

from tasks.core.config import validate
from tasks.core.schema import Config

TURNS = {
    1: None,
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}
"""By the camera's orientation: how the sensor saw an upright picture."""
VOLATILE = ("build.json", "inputs.arrow")


@cache
def png(seed: int, side: int = 12, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def heic(orientation: int = 1, colour: str = "red") -> bytes:
    """A picture of 32 x 64 pixels, blue below, as a camera in that orientation writes it."""
    upright = Image.new("RGB", (32, 64), colour)
    upright.paste("blue", (0, 32, 32, 64))
    turn = TURNS[orientation]
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    seen = upright if turn is None else upright.transpose(turn)
    pillow_heif.from_pillow(seen).save(file, exif=exif.tobytes(), quality=90)
    return file.getvalue()


def png_chunk(name: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def png_file(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + png_chunk(b"IEND", b"")


def giant_png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A small PNG that claims to be huge."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return png_file(png_chunk(b"IHDR", head), png_chunk(b"IDAT", zlib.compress(rows)))


def write_table(
    folder: Path, rows: list[tuple[Any, ...]], header: tuple[str, ...] = ("file", "caption", "label")
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "captions.csv"
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def pictures(folder: Path, count: int, side: int = 12) -> list[tuple[str, str, str]]:
    """`count` images with captions; returns the table's rows."""
    rows = [(f"{number:04d}.png", f"picture {number}", f"label {number % 3}") for number in range(count)]
    write_table(folder, rows)
    for number, (name, _, _) in enumerate(rows):
        (folder / name).write_bytes(png(number, side))
    return rows


def config(folder: Path, output: Path, workers: int = 1, **dataset: Any) -> Config:
    block = {
        "output": str(output),
        "modality": "image_text",
        "source": {
            "kind": "table",
            "path": str(folder / "captions.csv"),
            "image": "file",
            "caption": "caption",
        },
        "shard": {"samples": 16},
        **dataset,
    }
    return validate(
        {"name": "test", "dataset": block, "engine": {"build": {"kind": "local", "workers": workers}}}, "test"
    )


def volume(seed: int, shape: tuple[int, ...] = (4, 6, 5)) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(np.int16)


def volumes(folder: Path, count: int, **arguments: Any) -> None:
    """`count` NPZ files of two scans a patient, with reports and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"p{number // 2}_scan_{number % 2}" for number in range(count)]
    for number, name in enumerate(names):
        np.savez_compressed(folder / f"{name}.npz", arr_0=volume(number))
    (folder / "reports.csv").write_text(
        "VolumeName,Findings,Impression\n"
        + "".join(f"{name}.nii.gz,Clear lungs.,Healthy {name}.\n" for name in names)
    )
    (folder / "labels.csv").write_text(
        "VolumeName,effusion,nodule\n" + "".join(f"{name}.nii.gz,0,1\n" for name in names)
    )


def volume_config(folder: Path, output: Path, workers: int = 1, source: Any = None, **dataset: Any) -> Config:
    block = {
        "output": str(output),
        "modality": "volume_report",
        "source": {
            "kind": "npz",
            "path": str(folder),
            "fields": {"patient": r"(p\d+)_"},
            "reports": {"path": "reports.csv", "key": "VolumeName", "text": ["Findings", "Impression"]},
            "labels": {"path": "labels.csv", "key": "VolumeName"},
            **(source or {}),
        },
        "shard": {"samples": 4},
        **dataset,
    }
    return validate(
        {"name": "test", "dataset": block, "engine": {"build": {"kind": "local", "workers": workers}}}, "test"
    )


def contents(version: Path, without: tuple[str, ...] = VOLATILE) -> dict[str, str]:
    """The BLAKE3 of every file of a version that must not depend on time, host or workers."""
    return {
        path.relative_to(version).as_posix(): blake3(path.read_bytes()).hexdigest()
        for path in sorted(version.rglob("*"))
        if path.is_file() and path.name not in without
    }


def vanish(folder: Path) -> None:
    """Remove a folder of raw data."""
    shutil.rmtree(folder)


def unmount(folder: Path) -> None:
    """Leave the empty folder that a disk was mounted on."""
    shutil.rmtree(folder)
    folder.mkdir()
