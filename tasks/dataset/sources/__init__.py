"""Sources of raw samples. A new kind is a file in this package and a line in SOURCES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tasks.core.schema import Dataset
from tasks.dataset.sources.chat_rows import ChatRows
from tasks.dataset.sources.image_folder import ImageFolder
from tasks.dataset.sources.nifti import NiftiVolumes
from tasks.dataset.sources.npz import NpzVolumes
from tasks.dataset.sources.protocol import (
    Absent,
    Container,
    RawSample,
    Source,
    of_containers,
    of_files,
)
from tasks.dataset.sources.shards import Shards
from tasks.dataset.sources.table import TableImages

__all__ = [
    "SOURCES",
    "Absent",
    "Container",
    "RawSample",
    "Source",
    "of_containers",
    "of_files",
    "open_sources",
]

SOURCES: Mapping[str, Callable[[Any, Dataset, str], Source]] = {
    "chat": ChatRows,
    "image_folder": ImageFolder,
    "table": TableImages,
    "nifti": NiftiVolumes,
    "npz": NpzVolumes,
    "shards": Shards,
}


def open_sources(dataset: Dataset) -> list[Source]:
    """Return the config's sources, in order, without reading anything."""
    configs = enumerate(dataset.all_sources)
    is_single = dataset.source is not None
    keyed = [("dataset.source" if is_single else f"dataset.sources[{n}]", config) for n, config in configs]
    return [SOURCES[config.kind](config, dataset, key) for key, config in keyed]
