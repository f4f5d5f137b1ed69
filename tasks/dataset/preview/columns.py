"""The numbers of a version: its statistics a sample and its shards, streamed from the tables into histograms.

Whatever number a modality keeps of its samples shows up here without being named; the ones that are named
get a title and a unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.core.screen import Progress, no_progress
from tasks.dataset.preview.histogram import Histogram

BATCH = 1 << 16
PLACES = ("shard", "row")
"""Columns that say where a sample is, not what it is."""
MOST_SHARDS = 48
"""Shards that get a bar each; of more there is a histogram."""

TITLES: Mapping[str, tuple[str, str]] = {
    "width": ("Width", "pixels"),
    "height": ("Height", "pixels"),
    "caption_length": ("Caption length", "characters"),
    "images": ("Images a sample", "images"),
    "turns": ("Turns a sample", "turns"),
    "user_length": ("What the user says", "characters"),
    "assistant_length": ("What the assistant says", "characters"),
    "captions": ("Captions a sample", "captions"),
    "augmentations": ("Augmentations a sample", "augmentations"),
}
OF_VOLUMES: Mapping[str, tuple[str, str]] = {
    "depth": ("Depth", "slices"),
    "height": ("Height", "voxels"),
    "width": ("Width", "voxels"),
    "spacing_z": ("Distance of slices", "mm"),
    "spacing_y": ("Distance of rows", "mm"),
    "spacing_x": ("Distance of columns", "mm"),
    "hu_min": ("Lowest voxel", "HU"),
    "hu_p01": ("1 % of the voxels lie at or below", "HU"),
    "hu_p50": ("Half of the voxels lie at or below", "HU"),
    "hu_p99": ("99 % of the voxels lie at or below", "HU"),
    "hu_max": ("Highest voxel", "HU"),
    "pad_fraction": ("Share that is padding", "of the volume"),
    "caption_length": ("Report length", "characters"),
}


@dataclass(frozen=True)
class Column:
    """One number of every sample, counted by split."""

    name: str
    title: str
    unit: str
    splits: Mapping[str, Histogram]

    @property
    def all(self) -> Histogram:
        whole = Histogram()
        for histogram in self.splits.values():
            whole.merge(histogram)
        return whole


@dataclass
class Shards:
    """Samples and bytes a shard: the first few by name, all of them in histograms."""

    names: list[str] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    all_samples: Histogram = field(default_factory=Histogram)
    all_bytes: Histogram = field(default_factory=Histogram)

    @property
    def is_complete(self) -> bool:
        """Whether every shard has a name here."""
        return self.all_samples.total == len(self.names)


def read_columns(
    version: Path, splits: Mapping[str, int], modality: str, progress: Progress = no_progress
) -> list[Column]:
    """The numeric columns of all splits; DataError when a table cannot be read."""
    found: dict[str, dict[str, Histogram]] = {}
    done, total = 0, sum(splits.values())
    for split in splits:
        path = version / "samples" / f"{split}.parquet"
        for batch in _batches(path, None):
            for name, numbers in _named(batch).items():
                found.setdefault(name, {}).setdefault(split, Histogram()).add(numbers)
            done += batch.num_rows
            progress(done, total, "rows")
    known = OF_VOLUMES if modality == "volume_report" else TITLES
    return [
        Column(name, *known.get(name, (name.replace("_", " "), name)), counted)
        for name, counted in sorted(found.items(), key=lambda pair: _order(pair[0], list(known)))
    ]


def read_shards(version: Path) -> Shards:
    """Samples and bytes of every shard; DataError when the table cannot be read."""
    shards = Shards()
    for batch in _batches(version / "shards.parquet", ("name", "samples", "bytes")):
        samples, sizes = _numbers(batch.column("samples")), _numbers(batch.column("bytes"))
        shards.all_samples.add(samples)
        shards.all_bytes.add(sizes)
        room = MOST_SHARDS - len(shards.names)
        shards.names += batch.column("name").slice(0, room).to_pylist()
        shards.samples += [int(value) for value in samples[:room]]
        shards.bytes += [int(value) for value in sizes[:room]]
    return shards


def _batches(path: Path, columns: Sequence[str] | None) -> Iterator[Any]:
    """The table's batches, of its numeric columns unless some are named."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            wanted = list(columns) if columns else [f.name for f in file.schema_arrow if _is_statistic(f)]
            yield from file.iter_batches(BATCH, columns=wanted)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        where = f"samples/{path.name}" if path.parent.name == "samples" else path.name
        raise DataError(f"{where} cannot be read: {str(error).splitlines()[0][:160]}") from None


def _named(batch: Any) -> dict[str, Any]:
    """A batch's columns by their names; where a conversation has no image, there are no sides."""
    named = {name: _numbers(batch.column(name)) for name in batch.schema.names}
    if "images" in named:
        for side in ("width", "height"):
            named[side] = np.where(named["images"] == 0, np.nan, named[side])
    return named


def _is_statistic(field: Any) -> bool:
    is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    return is_number and field.name not in PLACES


def _numbers(column: Any) -> Any:
    """As float64; what is missing becomes NaN."""
    return column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)


def _order(name: str, known: Sequence[str]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)
