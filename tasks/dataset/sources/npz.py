"""CT volumes as NPZ files, one volume a file, with a table of reports and perhaps one of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.core.schema import Dataset, NpzSource
from tasks.dataset.sources import archive
from tasks.dataset.sources.volume_folder import VolumeFolder
from tasks.dataset.sources.volume_tables import spacing_in
from tasks.dataset.tar.writer import Buffer


class NpzVolumes(VolumeFolder):
    """The array is taken as (depth, height, width); what its orientation is, no NPZ file tells."""

    suffixes = (".npz",)

    def __init__(self, config: NpzSource, dataset: Dataset, config_key: str) -> None:
        super().__init__(config, dataset, config_key)
        self._config = config

    def _voxels(self, file: str, rows: Mapping[str, list[str]]) -> tuple[Buffer, dict[str, Any]]:
        config = self._config
        voxels = archive.read_npy(self._store, file, config.array, config.scale)
        spacing = config.spacing_mm
        if config.metadata is not None:
            spacing = spacing_in(rows["metadata"], config.metadata)
        rescale = {
            "from": "none" if config.scale is None else "scale",
            "slope": config.scale or 1,
            "intercept": 0,
        }
        return voxels, {"spacing_mm": spacing, "orientation": None, "rescale": rescale}

    def _shape(self, file: str) -> tuple[tuple[int, ...], Any]:
        return archive.peek(self._store, file, self._config.array).shape, self._config.spacing_mm
