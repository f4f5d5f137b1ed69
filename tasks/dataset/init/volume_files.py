"""What a few volumes say: shape, spacing, slope, and whether their voxels can be HU."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

from tasks.core.errors import TarmacError
from tasks.core.stores import Store, Unreachable
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes.hounsfield import implausible
from tasks.dataset.formats.volumes.stored import require_package
from tasks.dataset.init.evidence import listed, shown, spread
from tasks.dataset.rejects import Reject
from tasks.dataset.sources import npz

HEADERS = 12
VOXELS = 2
"""Volumes whose voxels are looked at; reading one may take seconds."""
LARGEST_BYTES = 1 << 30
Seen = TypeVar("Seen")


@dataclass
class Looks:
    """What was seen of the files looked at; `broken` are those that cannot be read, `doubts` what is odd."""

    looked_at: int = 0
    broken: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    spacings: list[tuple[float, ...]] = field(default_factory=list)
    slopes: list[tuple[float, float]] = field(default_factory=list)
    arrays: list[tuple[str, ...]] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    stored: list[str | None] = field(default_factory=list)
    rescaled: list[str | None] = field(default_factory=list)
    """Why the numbers as stored, and after slope and intercept, are no HU; None where they can be."""

    @property
    def warnings(self) -> list[str]:
        if not self.broken:
            return self.doubts[:1]
        unread = f"{len(self.broken)} of {self.looked_at} looked at cannot be read: {self.broken[0]}"
        return [unread, *self.doubts[:1]]

    @property
    def shape(self) -> str:
        different = list(dict.fromkeys(self.shapes))
        return listed([" × ".join(map(str, shape)) for shape in different], 2) if different else ""

    @property
    def is_hu(self) -> bool:
        return bool(self.stored) and None in self.stored


def look_at_npz(store: Store, files: Sequence[str]) -> Looks:
    looks = Looks()
    for file in spread(files, HEADERS):
        arrays = _tried(looks, file, lambda file=file: npz.headers(store, file))  # type: ignore[misc]
        if arrays is None:
            continue
        looks.arrays.append(tuple(arrays))
        volumes = [header for header in arrays.values() if len(header.shape) == 3]
        if volumes:
            looks.shapes.append(volumes[0].shape)
            looks.dtypes.append(str(volumes[0].dtype))
    return looks


def npz_voxels(store: Store, files: Sequence[str], array: str | None, looks: Looks) -> None:
    """Add what the voxels of a few files say."""
    for file in spread(files, VOXELS):
        try:
            if npz.peek(store, file, array).size_bytes <= LARGEST_BYTES:
                looks.stored.append(implausible(npy.parse(npz.read_npy(store, file, array, None))))
        except Reject:
            continue  # counted among the broken when its header was looked at, or torn further on


def look_at_nifti(store: Store, files: Sequence[str]) -> Looks:
    """Headers of some, voxels of the first two that can be read."""
    require_package("nibabel", "PATH: looking into NIfTI files")
    from tasks.dataset.sources import nifti

    looks = Looks()
    for file in spread(files, HEADERS):
        head = _tried(looks, file, lambda file=file: nifti.peek(store, file))  # type: ignore[misc]
        if head is None:
            continue
        x, y, z = head.shape
        looks.shapes.append((z, x, y))  # as it will be stored, and as spacings are told
        looks.slopes.append((head.slope, head.intercept))
        try:
            looks.spacings.append(head.spacing())
        except Reject as reject:
            looks.doubts.append(f"{shown(file)}: {reject.detail}")
        if len(looks.stored) < VOXELS and prod(head.shape) * head.dtype.itemsize <= LARGEST_BYTES:
            read = _tried(looks, file, lambda file=file: nifti.read(store, file), again=True)  # type: ignore[misc]
            if read is not None:
                looks.stored.append(implausible(read[1]))
                looks.rescaled.append(implausible(read[1].astype("float32") * head.slope + head.intercept))
    return looks


def _tried(looks: Looks, file: str, look: Callable[[], Seen], again: bool = False) -> Seen | None:
    looks.looked_at += not again
    try:
        return look()
    except Unreachable:
        raise
    except Reject as reject:
        looks.broken.append(f"{shown(file)}: {reject.detail}")
    except (TarmacError, OSError, zipfile.BadZipFile, ValueError, RuntimeError) as error:
        looks.broken.append(f"{shown(file)}: {shown(error, 100)}")
    return None
