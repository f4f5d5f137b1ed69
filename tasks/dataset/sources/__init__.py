"""Sources of raw samples. A new kind is a file beside these and a line in SOURCES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tasks.core.schema import Dataset
from tasks.dataset.sources.npz import NpzVolumes
from tasks.dataset.sources.source import Item, Source
from tasks.dataset.sources.table import TableImages

__all__ = ["SOURCES", "Item", "Source", "open_sources"]

SOURCES: Mapping[str, Callable[[Any, Dataset, str], Source]] = {
    "table": TableImages,
    "npz": NpzVolumes,
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
