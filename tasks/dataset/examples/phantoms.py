"""CT-like volumes of a simple chest, with reports and labels, in the layout of CT-RATE.

They show a body of soft tissue in air with two lungs, a heart and a spine; findings are shapes that a model
can learn to recognise. Noise and shapes are drawn as whole numbers, so that every machine writes the same
files. The volumes are written twice: as NIfTI, half of them in another orientation and stored without their
intercept as by scanners; and as NPZ of HU / 1000, as in CT-CLIP's first release.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

PATIENTS = 80
SHAPE = (32, 64, 64)
"""Depth (up), height (to the left), width (to the back), in CT-CLIP's layout."""
AIR, LUNG, FAT, TISSUE, FLUID, NODULE, BONE = -1000, -850, -100, 40, 10, 60, 600
INTERCEPT = -1024
NOISE_HU = 8
SPACINGS = ((6.0, 5.0, 5.0), (7.5, 5.0, 5.5), (6.0, 6.0, 6.0))
"""Spacings in mm along depth, height and width, which differ between patients."""
FINDINGS: Mapping[str, tuple[str, str]] = {
    "Cardiomegaly": ("Cardiomegaly is present.", "Cardiomegaly is not present."),
    "Lung nodule": ("Lung nodule is present.", "Lung nodule is not present."),
    "Pleural effusion": ("Pleural effusion is present.", "Pleural effusion is not present."),
}
"""The labels, with the sentences of the report if they are present and if not, in the words of CT-CLIP's
prompts: a text tower that was trained on a hundred reports knows no other words."""

Volume = NDArray[np.int16]


@dataclass(frozen=True)
class Scan:
    """One scan with its voxels in HU."""

    name: str
    spacing: tuple[float, float, float]
    labels: tuple[int, ...]
    voxels: Volume


def phantoms(folder: Path, patients: int = PATIENTS) -> int:
    """Write `nifti/`, `npz/`, reports.csv, labels.csv and metadata.csv, and return the number of scans.

    Every second patient has two scans.
    """
    scans = [scan for patient in range(patients) for scan in _scans(patient)]
    for kind in ("nifti", "npz"):
        (folder / kind).mkdir()
    for number, scan in enumerate(scans):
        _write_nifti(folder / "nifti" / f"{scan.name}.nii.gz", scan, is_flipped=number % 2 == 1)
        stored = scan.voxels.astype(np.float32) / np.float32(1000)
        np.savez_compressed(folder / "npz" / f"{scan.name}.npz", arr_0=stored)
    _write_tables(folder, scans)
    return len(scans)


def _scans(patient: int) -> list[Scan]:
    """Return one or two scans of a patient, with the same body and findings in both."""
    draws = np.random.default_rng(patient)
    labels = tuple(int(draw) for draw in draws.integers(0, 2, len(FINDINGS)))
    side = ("left", "right")[int(draws.integers(2))]
    spacing = SPACINGS[int(draws.integers(len(SPACINGS)))]
    anatomy = _anatomy(draws, labels, side)
    scans = []
    for scan in range(1 + patient % 2):
        noise = draws.integers(-3, 4, SHAPE) * NOISE_HU
        voxels = np.where(anatomy == AIR, AIR, anatomy + noise).astype(np.int16)
        scans.append(Scan(f"phantom_{patient:03d}_{'ab'[scan]}_1", spacing, labels, voxels))
    return scans


def _anatomy(draws: np.random.Generator, labels: Sequence[int], side: str) -> NDArray[np.int64]:
    """Return the chest without noise, in HU; positions are shares of the volume's half sides."""
    cardiomegaly, nodule, effusion = labels
    girth = draws.integers(80, 92) / 100
    z, across, back = np.ogrid[tuple(slice(-1, 1, sides * 1j) for sides in SHAPE)]

    def ball(centre: tuple[float, float, float], radius: tuple[float, float, float]) -> NDArray[np.bool_]:
        sides = zip((z, across, back), centre, radius, strict=True)
        depth, height, width = (((place - middle) / size) ** 2 for place, middle, size in sides)
        return np.asarray(depth + height + width < 1)

    volume = np.full(SHAPE, AIR)
    volume[ball((0, 0, 0), (99, girth, girth * 0.72))] = FAT
    volume[ball((0, 0, 0), (99, girth - 0.07, girth * 0.72 - 0.07))] = TISSUE
    lungs = {way: ball((0, sign * 0.38, 0), (0.95, 0.28, 0.44)) for way, sign in (("left", 1), ("right", -1))}
    volume[lungs["left"] | lungs["right"]] = LUNG
    if effusion:
        volume[lungs[side] & np.broadcast_to(back > 0.08, SHAPE)] = FLUID
    if nodule:
        sign = 1 if side == "left" else -1
        height, depth = draws.integers(-40, 41) / 100, draws.integers(-25, 6) / 100
        volume[ball((height, sign * 0.4, depth), (0.3, 0.17, 0.17))] = NODULE
    heart = (0.5, 0.3, 0.26) if cardiomegaly else (0.35, 0.17, 0.16)
    volume[ball((-0.2, 0.08, -0.12), heart)] = TISSUE
    volume[ball((0, 0, 0.48), (99, 0.1, 0.1))] = BONE
    return volume


def _write_nifti(path: Path, scan: Scan, is_flipped: bool) -> None:
    """Write the scan as from a scanner: with an intercept, in CT-RATE's orientation (LPS) or another
    (RAS)."""
    import nibabel  # here, because it takes a fifth of a second

    depth, height, width = scan.spacing
    array = (scan.voxels - np.int16(INTERCEPT)).transpose(1, 2, 0)  # to the left, to the back, up
    direction = -1.0
    if is_flipped:
        array, direction = array[::-1, ::-1], 1.0
    header = cast(Any, nibabel).Nifti1Header()
    header.set_data_dtype(array.dtype)
    header.set_data_shape(array.shape)
    header.set_zooms((height, width, depth))
    header.set_sform(np.diag([direction * height, direction * width, depth, 1.0]), code=1)
    header.set_xyzt_units("mm")
    header.set_slope_inter(1, INTERCEPT)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    # nibabel would choose another slope and intercept if it wrote the image
    content = bytes(header.binaryblock) + bytes(4) + array.tobytes(order="F")
    path.write_bytes(gzip.compress(content, mtime=0))


def _write_tables(folder: Path, scans: Sequence[Scan]) -> None:
    tables: dict[str, tuple[Sequence[str], list[Sequence[object]]]] = {
        "reports": (("VolumeName", "Findings_EN", "Impressions_EN"), []),
        "labels": (("VolumeName", *FINDINGS), []),
        "metadata": (("VolumeName", "RescaleSlope", "RescaleIntercept", "XYSpacing", "ZSpacing"), []),
    }
    for scan in scans:
        name = f"{scan.name}.nii.gz"
        found = [finding for finding, label in zip(FINDINGS, scan.labels, strict=True) if label]
        sentences = " ".join(FINDINGS[finding][finding not in found] for finding in FINDINGS)
        impression = f"{', '.join(found)}." if found else "No finding."
        tables["reports"][1].append((name, sentences, impression))
        tables["labels"][1].append((name, *scan.labels))
        z, across, back = scan.spacing
        tables["metadata"][1].append((name, 1, INTERCEPT, f"[{back}, {across}]", z))
    for table, (header, rows) in tables.items():
        with (folder / f"{table}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
