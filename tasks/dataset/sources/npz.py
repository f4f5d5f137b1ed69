"""CT volumes as NPZ files, one volume per file, with a table of reports and perhaps one of labels.

Reading an array never runs code from the file: an object array is rejected by its header, and a member is
read only as far as its header states, within a limit.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import Dataset, NpzSource
from tasks.core.stores import Store
from tasks.dataset.formats import npy, zips
from tasks.dataset.formats.volumes import geometry
from tasks.dataset.sources.raw_files import open_file, require_fetched, unreadable
from tasks.dataset.sources.volume_folder import VolumeFolder, fill, spacing_in
from tasks.dataset.tar.format import LFS, Buffer
from tasks.dataset.version.rejects import Reject

PICKLE_MAGIC = b"\x80"


class NpzVolumes(VolumeFolder):
    """An NPZ file states neither orientation nor axes: the config names the axes that the array runs along,
    and z is moved to the front."""

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
        origin = "none" if config.scale is None else "scale"
        rescale = {"from": origin, "slope": config.scale or 1, "intercept": 0}
        return voxels, {"spacing_mm": spacing, "orientation": None, "rescale": rescale}

    def _shape(self, file: str) -> tuple[tuple[int, ...], Any]:
        shape = list(peek(self._store, file, self._config.array).shape)
        shape.insert(0, shape.pop(self._depth))
        spacing = self._config.spacing_mm
        return tuple(shape), None if spacing is None else geometry.ordered(self.axes, *spacing)


def read_npy(store: Store, file: str, name: str | None, scale: float | None) -> NDArray[np.uint8]:
    """Return the array `name`, or the file's only 3D array, times `scale`, as the bytes of an NPY file.

    The bytes are read straight into the result, unless the order or the numbers must change. Reject when
    there is no array that is safe to read.
    """
    with _opened(store, file) as archive:
        member, header = _choose(archive, name)
        npy.require_numbers(header, member)
        with archive.open(member) as stream:
            stream.read(header.offset)
            if not header.fortran and scale in (None, 1):
                content, array = npy.blank(header.shape, header.dtype)
                fill(array.reshape(-1), stream, member)
                return content
            flat = np.empty(prod(header.shape), header.dtype)
            fill(flat, stream, member)
            order: Literal["F", "C"] = "F" if header.fortran else "C"
            return npy.dump(flat.reshape(header.shape, order=order), 1.0 if scale is None else scale)


def peek(store: Store, file: str, name: str | None) -> npy.NpyHeader:
    """Return the header of the array that `read_npy` would read."""
    with _opened(store, file) as archive:
        return _choose(archive, name)[1]


def headers(store: Store, file: str) -> dict[str, npy.NpyHeader]:
    """Return the headers of all the file's arrays, by name; Reject when there is none."""
    with _opened(store, file) as archive:
        found = _headers(archive)
    if not found:
        raise Reject("volume.shape", "holds no array")
    return {_name(member): header for member, header in found.items()}


@contextmanager
def _opened(store: Store, file: str) -> Iterator[zipfile.ZipFile]:
    with open_file(store, file, in_order=False) as opened:
        try:
            start = opened.read(len(LFS))
            require_fetched(start, "volume.undecodable")
            if start.startswith(PICKLE_MAGIC):
                raise Reject("volume.pickle", "the file is a pickle, which is never opened")
            if not start:
                raise Reject("volume.undecodable", "the file is empty")
            if not start.startswith(b"PK"):
                raise Reject("volume.undecodable", "no NPZ file: it does not start like a zip archive")
            opened.seek(0)
            with zips.opened(opened, "the file", "volume.undecodable") as archive:
                yield archive
        except OSError as error:
            raise unreadable(error) from None


def _choose(archive: zipfile.ZipFile, name: str | None) -> tuple[str, npy.NpyHeader]:
    """Return the member to read and its header; Reject when it is not there or not the only one."""
    if name is not None:
        member = f"{name}.npy"
        if member not in archive.namelist():
            there = ", ".join(sorted(map(_name, archive.namelist()))[:8])
            raise Reject("member.missing", f"no array {name!r} (it has: {there or 'none'})")
        return member, _header(archive, member)
    found = _headers(archive)
    volumes = [one for one in found.items() if len(one[1].shape) == 3 and not one[1].dtype.hasobject]
    candidates = volumes or list(found.items())
    if len(candidates) != 1:
        there = ", ".join(f"{_name(member)} {header.shape}" for member, header in list(found.items())[:8])
        raise Reject("volume.shape", f"{len(volumes)} 3D arrays ({there}); name one as source.array")
    return candidates[0]


def _headers(archive: zipfile.ZipFile) -> dict[str, npy.NpyHeader]:
    return {member: _header(archive, member) for member in archive.namelist() if member.endswith(".npy")}


def _header(archive: zipfile.ZipFile, member: str) -> npy.NpyHeader:
    with archive.open(member) as stream:
        return npy.parse_header(stream.read(npy.LONGEST_HEADER), member)


def _name(member: str) -> str:
    return member.removesuffix(".npy")
