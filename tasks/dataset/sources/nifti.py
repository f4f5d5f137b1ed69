"""CT volumes as NIfTI files, one volume a file, rescaled exactly once and brought to one orientation.

The axes of what is stored point to superior, left and posterior: those are CT-RATE's files (LPS) in the
order in which CT-CLIP feeds them, `transpose(2, 0, 1)`, so that its volumes come out as CT-CLIP's own. Files
of other orientations are flipped and permuted to it; one that does not tell is taken as one of CT-RATE's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import Dataset, NiftiSource
from tasks.dataset.formats.volumes import npy
from tasks.dataset.formats.volumes.hounsfield import is_plausible
from tasks.dataset.formats.volumes.stored import require_package
from tasks.dataset.rejects import Reject
from tasks.dataset.sources import nifti_file
from tasks.dataset.sources.nifti_file import Head
from tasks.dataset.sources.volume_folder import VolumeFolder
from tasks.dataset.sources.volume_tables import rescale_in, spacing_in, table_name
from tasks.dataset.tar.writer import Buffer

ORIENTATION = "SLP"
"""Where the index grows to, along depth, height and width."""
IDENTITY = (1.0, 0.0)
ONCE = "set source.rescale: header, or none where the voxels are HU already"


class NiftiVolumes(VolumeFolder):
    """`rescale` says where slope and intercept come from; the other place's are never applied."""

    suffixes = (".nii.gz", ".nii")

    def __init__(self, config: NiftiSource, dataset: Dataset, config_key: str) -> None:
        super().__init__(config, dataset, config_key)
        self._config = config

    def columns(self) -> Sequence[str]:
        require_package("nibabel", f"{self._config_key}.kind: nifti")
        return super().columns()

    def _voxels(self, file: str, rows: Mapping[str, list[str]]) -> tuple[Buffer, dict[str, Any]]:
        head, raw = nifti_file.read(self._store, file)
        volume = oriented(raw, head)
        slope, intercept = self._rescale(head, volume, rows)
        facts = {
            "spacing_mm": self._spacing(head, rows),
            "orientation": ORIENTATION,
            "orientation_before": head.orientation,
            "rescale": {"from": self._config.rescale, "slope": slope, "intercept": intercept},
        }
        return npy.dump(volume, slope, intercept), facts

    def _rescale(
        self, head: Head, volume: NDArray[Any], rows: Mapping[str, list[str]]
    ) -> tuple[float, float]:
        if self._config.rescale == "none":
            return IDENTITY
        if self._config.rescale == "header" or self._config.metadata is None:
            return head.slope, head.intercept
        told = slope, intercept = rescale_in(rows["metadata"], self._config.metadata)
        if told == IDENTITY:
            return told
        table = table_name(self._config.metadata.path)
        which = f"slope {slope:g} and intercept {intercept:g} of {table}"
        if (head.slope, head.intercept) != IDENTITY:
            its_own = f"slope {head.slope:g} and intercept {head.intercept:g}"
            raise Reject(
                "volume.hu_range", f"a double rescale: the header has {its_own} beside {which}; {ONCE}"
            )
        if is_plausible(volume):
            raise Reject("volume.hu_range", f"a double rescale: the voxels are HU before {which}; {ONCE}")
        return told

    def _spacing(self, head: Head, rows: Mapping[str, list[str]]) -> tuple[float, float, float]:
        if self._config.metadata is not None:
            z, row, column = spacing_in(rows["metadata"], self._config.metadata)
            return z, column, row  # height runs to the left, where the scanner's columns go
        return head.spacing()

    def _shape(self, file: str) -> tuple[tuple[int, ...], Any]:
        head = nifti_file.peek(self._store, file)
        order = np.argsort([axis for axis, _ in head.axes])
        x, y, z = (head.shape[axis] for axis in order)
        return (z, x, y), None if self._config.metadata is not None else head.spacing()


def oriented(raw: NDArray[Any], head: Head) -> NDArray[Any]:
    """The file's array (i, j, k) as (depth, height, width), a view."""
    flips = tuple(slice(None, None, direction) for _, direction in head.axes)
    left_posterior_superior = raw[flips].transpose(np.argsort([axis for axis, _ in head.axes]))
    return left_posterior_superior.transpose(2, 0, 1)
