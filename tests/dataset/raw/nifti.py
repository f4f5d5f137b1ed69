"""CT volumes as NIfTI files, whose every header field a test can set."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from tasks.core.schema import Config
from tests.dataset import raw

LPS = np.diag([-0.75, -0.75, 1.5, 1.0])
"""The affine of CT-RATE's files."""
METADATA = {"path": "metadata.csv", "key": "VolumeName"}


def header(array: np.ndarray, affine: np.ndarray | None = LPS, **fields: Any) -> Any:
    """The header of the array (i, j, k); without an affine it tells no orientation."""
    made = nibabel.Nifti1Header(endianness=">" if array.dtype.byteorder == ">" else "<")
    made.set_data_dtype(array.dtype)
    made.set_data_shape(array.shape)
    if affine is not None:
        made.set_sform(affine, code=1)
        sides = np.sqrt((affine[:3, :3] ** 2).sum(0))
        made["pixdim"][1:4] = sides
    made["scl_slope"], made["scl_inter"] = 1, 0
    made["vox_offset"], made["magic"] = 352, b"n+1"
    for name, value in fields.items():
        made[name] = value
    return made


def nifti(array: np.ndarray, affine: np.ndarray | None = LPS, **fields: Any) -> bytes:
    """The bytes of a `.nii` file."""
    made = header(array, affine, **fields)
    return bytes(made.binaryblock) + bytes(4) + array.tobytes(order="F")


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def stored(seed: int, shape: tuple[int, int, int] = (6, 5, 4)) -> np.ndarray:
    """A volume as CT-RATE's files hold it: (i, j, k), HU."""
    return raw.volume(seed, shape)


def config(folder: Path, source: Any = None, **dataset: Any) -> Config:
    block = {"kind": "nifti", **(source or {})}
    return raw.volume_config(folder, folder.parent / "out", source=block, **dataset)


def tables(folder: Path, names: list[str], metadata: str = '1,0,"[0.75, 0.75]",1.5') -> None:
    lines = {
        "reports": ["VolumeName,Findings,Impression"],
        "labels": ["VolumeName,effusion,nodule"],
        "metadata": ["VolumeName,RescaleSlope,RescaleIntercept,XYSpacing,ZSpacing"],
    }
    for name in names:
        lines["reports"].append(f"{name}.nii.gz,Clear lungs.,Healthy {name}.")
        lines["labels"].append(f"{name}.nii.gz,0,1")
        lines["metadata"].append(f"{name}.nii.gz,{metadata}")
    for table, rows in lines.items():
        (folder / f"{table}.csv").write_text("\n".join(rows) + "\n")


def volumes(folder: Path, count: int, make_one: Callable[[int], bytes] = lambda n: nifti(stored(n))) -> None:
    """`count` files of two scans a patient, in folders as CT-RATE has them."""
    names = [f"p{number // 2}_scan_{number % 2}" for number in range(count)]
    for number, name in enumerate(names):
        path = folder / name.partition("_")[0] / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed(make_one(number)))
    tables(folder, names)


def make(folder: Path) -> Config:
    volumes(folder, 6)
    return config(folder)
