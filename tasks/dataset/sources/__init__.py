"""Sources of raw samples. A new kind is a file beside these and a line in SOURCES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tasks.core.schema import Dataset
from tasks.dataset.sources.chat_rows import ChatRows
from tasks.dataset.sources.image_folder import ImageFolder
from tasks.dataset.sources.nifti import NiftiVolumes
from tasks.dataset.sources.npz import NpzVolumes
from tasks.dataset.sources.protocol import Absent, Container, RawSample, Source, of_files
from tasks.dataset.sources.shards import Shards
from tasks.dataset.sources.table import TableImages

__all__ = ["SOURCES", "Absent", "Container", "RawSample", "Source", "of_files", "open_sources"]

SOURCES: Mapping[str, Callable[[Any, Dataset, str], Source]] = {
    "chat": ChatRows,
    "image_folder": ImageFolder,
    "table": TableImages,
    "nifti": NiftiVolumes,
    "npz": NpzVolumes,
    "shards": Shards,
}


def open_sources(dataset: Dataset) -> list[Source]:
    """The config's sources, in order; nothing is read yet."""
    configs = dataset.all_sources
    keys = (
        ["dataset.source"]
        if dataset.source is not None
        else [f"dataset.sources[{n}]" for n in range(len(configs))]
    )
    return [SOURCES[config.kind](config, dataset, key) for config, key in zip(configs, keys, strict=True)]
