"""CT volumes as NIfTI files, converted to HU and to one orientation.

The axes of stored volumes point to superior, left and posterior: this is the order in which CT-CLIP feeds
CT-RATE's files (LPS), `transpose(2, 0, 1)`, so its volumes come out the same as CT-CLIP's own. Files of other
orientations are flipped and permuted to it; a file that states no orientation is treated as one of CT-RATE's.

nibabel reads the header's fields, types and affines. The voxels are read here, only as far as the header
states and within a limit, because nibabel decompresses whatever a file holds. Format:
https://nifti.nimh.nih.gov/pub/dist/src/niftilib/nifti1.h
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import Dataset, NiftiSource
from tasks.core.stores import Store
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes import geometry
from tasks.dataset.formats.volumes.hounsfield import is_plausible
from tasks.dataset.formats.volumes.stored import require_package
from tasks.dataset.sources.raw_files import open_file, require_fetched, unreadable
from tasks.dataset.sources.volume_folder import (
    AT_ONCE_BYTES,
    VolumeFolder,
    fill,
    rescale_in,
    spacing_in,
    table_name,
)
from tasks.dataset.tar.format import LFS, Buffer
from tasks.dataset.version.rejects import Reject

ORIENTATION = "SLP"
"""The direction in which the index grows along depth, height and width."""
IDENTITY = (1.0, 0.0)
ONCE = "set source.rescale: header, or none where the voxels are HU already"
GZIP_MAGIC = b"\x1f\x8b"
SIZES = {348: "Nifti1Header", 540: "Nifti2Header"}
SINGLE_FILE = (b"n+1\0", b"n+2\0")
LARGEST_OFFSET = 1 << 24
"""Extensions, such as a DICOM header, may stand before the voxels."""
MM = {1: 1000.0, 3: 0.001}
"""Factor to mm by the unit's code, for metres and micrometres; any other unit counts as mm."""
AS_STORED = ((0, 1), (1, 1), (2, 1))
DIFFERENT = 0.02


@dataclass(frozen=True)
class NiftiHeader:
    """The facts in a file's header.

    `shape`, `sides` (mm, as in pixdim) and `axes` belong to the stored array (i, j, k): `axes` holds, for
    each, the anatomical axis it runs along (0 left, 1 posterior, 2 superior) and whether with it (1) or
    against it (-1). `orientation` is nibabel's code such as RAS, None where the file states none.
    """

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float
    sides: tuple[float, float, float]
    of_affine: tuple[float, float, float] | None
    axes: tuple[tuple[int, int], ...]
    orientation: str | None

    def spacing(self) -> tuple[float, float, float]:
        """Return mm along depth, height and width; Reject when pixdim and affine contradict each other."""
        for side, other in zip(self.sides, self.of_affine or self.sides, strict=True):
            if side > 0 and not abs(side - other) <= DIFFERENT * side:
                sizes = f"pixdim has {self.sides} mm and the affine {self.of_affine} mm"
                raise Reject("volume.spacing", f"{sizes}; name a table that knows as source.metadata")
        x, y, z = (self.sides[index] for index in np.argsort([axis for axis, _ in self.axes]))
        return z, x, y


class NiftiVolumes(VolumeFolder):
    """`rescale` names where slope and intercept come from; those of the other place are never applied."""

    suffixes = (".nii.gz", ".nii")

    def __init__(self, config: NiftiSource, dataset: Dataset, config_key: str) -> None:
        super().__init__(config, dataset, config_key)
        self._config = config

    @property
    def axes(self) -> str:
        return geometry.ZXY

    def columns(self) -> Sequence[str]:
        require_package("nibabel", f"{self._config_key}.kind: nifti")
        return super().columns()

    def _voxels(self, file: str, rows: Mapping[str, list[str]]) -> tuple[Buffer, dict[str, Any]]:
        table = self._config.metadata
        head, raw = read_nifti(self._store, file)
        volume = oriented(raw, head)
        slope, intercept = self._rescale(head, volume, rows)
        facts = {
            "spacing_mm": head.spacing() if table is None else spacing_in(rows["metadata"], table, self.axes),
            "orientation": ORIENTATION,
            "orientation_before": head.orientation,
            "rescale": {"from": self._config.rescale, "slope": slope, "intercept": intercept},
        }
        return npy.dump(volume, slope, intercept), facts

    def _rescale(
        self, head: NiftiHeader, volume: NDArray[Any], rows: Mapping[str, list[str]]
    ) -> tuple[float, float]:
        if self._config.rescale == "none":
            return IDENTITY
        if self._config.rescale == "header" or self._config.metadata is None:
            return head.slope, head.intercept
        stated = slope, intercept = rescale_in(rows["metadata"], self._config.metadata)
        if stated == IDENTITY:
            return stated
        table = table_name(self._config.metadata.path)
        which = f"slope {slope:g} and intercept {intercept:g} of {table}"
        if (head.slope, head.intercept) != IDENTITY:
            own = f"the header has slope {head.slope:g} and intercept {head.intercept:g} beside {which}"
            raise Reject("volume.hu_range", f"a double rescale: {own}; {ONCE}")
        if is_plausible(volume):
            raise Reject("volume.hu_range", f"a double rescale: the voxels are HU before {which}; {ONCE}")
        return stated

    def _shape(self, file: str) -> tuple[tuple[int, ...], Any]:
        head = peek(self._store, file)
        order = np.argsort([axis for axis, _ in head.axes])
        x, y, z = (head.shape[axis] for axis in order)
        return (z, x, y), None if self._config.metadata is not None else head.spacing()


def oriented(raw: NDArray[Any], head: NiftiHeader) -> NDArray[Any]:
    """Return a view of the file's array (i, j, k) as (depth, height, width)."""
    flips = tuple(slice(None, None, direction) for _, direction in head.axes)
    left_posterior_superior = raw[flips].transpose(np.argsort([axis for axis, _ in head.axes]))
    return left_posterior_superior.transpose(2, 0, 1)


def read_nifti(store: Store, file: str) -> tuple[NiftiHeader, NDArray[Any]]:
    """Return the header and the stored numbers (i, j, k); Reject when they cannot be read safely."""
    with _opened(store, file) as stream:
        head = _head(stream)
        stream.seek(head.offset)
        flat = np.empty(math.prod(head.shape), head.dtype)
        fill(flat, stream, "the file", AT_ONCE_BYTES)
        return head, flat.reshape(head.shape, order="F")


def peek(store: Store, file: str) -> NiftiHeader:
    """Return the header alone."""
    with _opened(store, file) as stream:
        return _head(stream)


@contextmanager
def _opened(store: Store, file: str) -> Iterator[IO[bytes]]:
    with open_file(store, file) as opened:
        try:
            start = opened.read(len(LFS))
            require_fetched(start, "volume.undecodable")
            opened.seek(0)
            if start.startswith(GZIP_MAGIC):
                with gzip.GzipFile(fileobj=opened) as stream:
                    yield stream  # type: ignore[misc]
            else:
                yield opened
        except gzip.BadGzipFile as error:
            raise Reject("volume.undecodable", str(error)) from None
        except OSError as error:
            raise unreadable(error) from None
        except (zlib.error, EOFError) as error:
            raise Reject("volume.undecodable", f"torn gzip: {error}") from None


def _head(stream: IO[bytes]) -> NiftiHeader:
    import nibabel  # here, because it takes a fifth of a second

    start = stream.read(4)
    size = next((n for n in SIZES if start in (n.to_bytes(4, "little"), n.to_bytes(4, "big"))), None)
    if not start:
        raise Reject("volume.undecodable", "the file is empty")
    if size is None:
        raise Reject("volume.undecodable", "no NIfTI file: it does not start with a header's size")
    block = start + stream.read(size - 4)
    if len(block) < size:
        raise Reject("volume.undecodable", f"ends within its header of {size} bytes")
    magic = block[344:348] if size == 348 else block[4:8]
    if magic not in SINGLE_FILE:
        raise Reject("volume.undecodable", "no NIfTI file of one piece (.nii or .nii.gz)")
    header = getattr(nibabel, SIZES[size])(block, check=False)
    shape = _shape(header)
    try:
        dtype: np.dtype[Any] = header.get_data_dtype()
    except KeyError:
        raise Reject("volume.dtype", f"datatype {int(header['datatype'])} is unknown") from None
    npy.require_numbers(npy.NpyHeader(shape, True, dtype, 0), "the file")
    offset = float(header["vox_offset"])
    if not 0 <= offset <= LARGEST_OFFSET:
        raise Reject("volume.undecodable", f"voxels at byte {offset:g}")
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or not math.isfinite(slope):
        slope, intercept = 1.0, 0.0
    if not math.isfinite(intercept):
        raise Reject("volume.hu_range", f"the header's intercept is {intercept}")
    factor = MM.get(int(header["xyzt_units"]) & 7, 1.0)
    x, y, z = (float(str(side)) * factor for side in header["pixdim"][1:4])  # float32 as a person wrote it
    of_affine, axes, orientation = _orientation(_affine(header), factor)
    return NiftiHeader(
        shape, dtype, max(int(offset), 352), slope, intercept, (x, y, z), of_affine, axes, orientation
    )


def _shape(header: Any) -> tuple[int, int, int]:
    count = int(header["dim"][0])
    if not 1 <= count <= 7:
        raise Reject("volume.undecodable", f"{count} dimensions")
    sides = [int(side) for side in header["dim"][1 : count + 1]]
    while len(sides) > 3 and sides[-1] == 1:
        sides.pop()
    if len(sides) != 3 or min(sides) < 1:
        raise Reject("volume.shape", f"{tuple(sides)}, not 3D")
    return sides[0], sides[1], sides[2]


def _affine(header: Any) -> Any:
    """Return the file's affine, sform before qform as in nibabel; None where it has none. Reject where it
    has one without meaning, because assuming an orientation might mirror a body."""
    is_given = False
    for get in (header.get_sform, header.get_qform):
        try:
            affine, code = get(coded=True)
        except Exception:  # noqa: BLE001 - nibabel raises whatever torn quaternions lead it to
            continue
        if code > 0 and np.isfinite(affine).all() and np.linalg.matrix_rank(affine[:3, :3]) == 3:
            return affine
        is_given = is_given or code > 0
    if is_given:
        problem = "its affine is not finite or singular, so its orientation is unknown"
        raise Reject("volume.undecodable", problem)
    return None


def _orientation(
    affine: Any, factor: float
) -> tuple[tuple[float, float, float] | None, tuple[tuple[int, int], ...], str | None]:
    """Return sides in mm, axes and code by the affine; the array's own order where it states none."""
    import nibabel

    orientations: Any = nibabel.orientations
    found = None if affine is None else orientations.io_orientation(affine)
    if found is None or not np.isfinite(found).all():
        return None, AS_STORED, None
    # nibabel's axes point to right, anterior, superior; CT-RATE's to left, posterior, superior
    towards = (-1, -1, 1)
    axes = tuple((int(axis), int(direction) * towards[int(axis)]) for axis, direction in found)
    x, y, z = (float(side) * factor for side in np.linalg.norm(affine[:3, :3], axis=0))
    return (x, y, z), axes, "".join(str(code) for code in orientations.aff2axcodes(affine))
