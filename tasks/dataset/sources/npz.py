"""CT volumes as NPZ files, one volume per file, with a table of reports and perhaps one of labels.

An array is read without ever running what is in the file: an object array is refused by its header, and a
member is read only as far as its header says, within a limit.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import Dataset, NpzSource
from tasks.core.stores import Store, Unreachable
from tasks.dataset.formats import npy, zips
from tasks.dataset.formats.volumes import geometry
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.files import open_file, unreadable
from tasks.dataset.sources.volume_folder import VolumeFolder, spacing_in
from tasks.dataset.tar.format import Buffer

PICKLE_MAGIC = b"\x80"
AT_ONCE = 1 << 24


class NpzVolumes(VolumeFolder):
    """An NPZ file states neither orientation nor axes: the config names the axes that the array runs along,
    and z is brought to the front."""

    suffixes = (".npz",)

    def __init__(self, config: NpzSource, dataset: Dataset, config_key: str) -> None:
        super().__init__(config, dataset, config_key)
        self._config = config
        self._depth = config.axes.index("z")

    @property
    def axes(self) -> str:
        return "z" + self._config.axes.replace("z", "")

    def _voxels(self, file: str, rows: Mapping[str, list[str]]) -> tuple[Buffer, dict[str, Any]]:
        config = self._config
        voxels = read_npy(self._store, file, config.array, config.scale)
        if self._depth:
            array = npy.parse(voxels)
            if array.ndim == 3:
                voxels = npy.dump(np.moveaxis(array, self._depth, 0))
        spacing = None if config.spacing_mm is None else geometry.ordered(self.axes, *config.spacing_mm)
        if config.metadata is not None:
            spacing = spacing_in(rows["metadata"], config.metadata, self.axes)
        rescale = {
            "from": "none" if config.scale is None else "scale",
            "slope": config.scale or 1,
            "intercept": 0,
        }
        return voxels, {"spacing_mm": spacing, "orientation": None, "rescale": rescale}

    def _shape(self, file: str) -> tuple[tuple[int, ...], Any]:
        shape = list(peek(self._store, file, self._config.array).shape)
        shape.insert(0, shape.pop(self._depth))
        spacing = self._config.spacing_mm
        return tuple(shape), None if spacing is None else geometry.ordered(self.axes, *spacing)


@dataclass(frozen=True)
class Member:
    """An array of the file, not read yet."""

    name: str
    header: npy.Header


def read_npy(store: Store, file: str, name: str | None, scale: float | None) -> NDArray[np.uint8]:
    """The array `name`, or the file's only 3D array, times `scale`, as the bytes of an NPY file.

    Reject when there is none that is safe to read.
    """
    with _opened(store, file) as archive:
        chosen = _choose(archive, name)
        npy.require_numbers(chosen.header, chosen.name)
        with archive.open(chosen.name) as member:
            return _read(member, chosen, 1.0 if scale is None else scale)


def peek(store: Store, file: str, name: str | None) -> npy.Header:
    """The header of the array that `read_npy` would read."""
    with _opened(store, file) as archive:
        return _choose(archive, name).header


def headers(store: Store, file: str) -> dict[str, npy.Header]:
    """The headers of all the file's arrays, by name; Reject when there is none."""
    with _opened(store, file) as archive:
        members = _members(archive)
    if not members:
        raise Reject("volume.shape", "holds no array")
    return {member.name.removesuffix(".npy"): member.header for member in members}


@contextmanager
def _opened(store: Store, file: str) -> Iterator[zipfile.ZipFile]:
    with open_file(store, file, in_order=False) as opened:
        try:
            start = opened.read(4)
            if start.startswith(PICKLE_MAGIC):
                raise Reject("volume.pickle", "the file is a pickle, which is never opened")
            if not start:
                raise Reject("volume.undecodable", "the file is empty")
            if not start.startswith(b"PK"):
                raise Reject("volume.undecodable", "no NPZ file: it does not start like a zip archive")
            opened.seek(0)
            with zips.opened(opened, "the file", "volume.undecodable") as archive:
                yield archive
        except Unreachable:
            raise
        except OSError as error:
            raise unreadable(error) from None


def _choose(archive: zipfile.ZipFile, name: str | None) -> Member:
    if name is not None:
        if name + ".npy" not in archive.namelist():
            there = ", ".join(sorted(entry.removesuffix(".npy") for entry in archive.namelist())[:8])
            raise Reject("member.missing", f"no array {name!r} (it has: {there or 'none'})")
        return _member(archive, archive.getinfo(name + ".npy"))
    members = _members(archive)
    volumes = [one for one in members if len(one.header.shape) == 3 and not one.header.dtype.hasobject]
    candidates = volumes or members
    if len(candidates) != 1:
        there = ", ".join(f"{one.name.removesuffix('.npy')} {one.header.shape}" for one in members[:8])
        raise Reject("volume.shape", f"{len(volumes)} 3D arrays ({there}); name one as source.array")
    return candidates[0]


def _members(archive: zipfile.ZipFile) -> list[Member]:
    return [_member(archive, entry) for entry in archive.infolist() if entry.filename.endswith(".npy")]


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    with archive.open(entry) as file:
        return Member(entry.filename, npy.parse_header(file.read(npy.LONGEST_HEADER), entry.filename))


def _read(file: IO[bytes], member: Member, scale: float) -> NDArray[np.uint8]:
    """Straight into the bytes that are returned, unless the order or the numbers must change."""
    header = member.header
    if not header.fortran and scale == 1:
        content, array = npy.blank(header.shape, header.dtype)
        _fill(file, array.reshape(-1), member)
        return content
    flat = np.empty(prod(header.shape), header.dtype)
    _fill(file, flat, member)
    return npy.dump(flat.reshape(header.shape, order="F" if header.fortran else "C"), scale)


def _fill(file: IO[bytes], flat: NDArray[Any], member: Member) -> None:
    file.read(member.header.offset)
    view = flat.view(np.uint8).data if flat.size else memoryview(b"")
    filled = 0
    while filled < len(view):
        count = file.readinto(view[filled : filled + AT_ONCE])  # type: ignore[attr-defined]
        if not count:
            raise Reject("volume.undecodable", f"{member.name} ends after {filled:,} of {len(view):,} bytes")
        filled += count
    if file.read(1):  # also makes zipfile compare the member's CRC
        raise Reject("archive.bomb", f"{member.name} goes on after its {len(view):,} bytes")
