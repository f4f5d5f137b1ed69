"""Configs, versions and catalogues that several tests of the build start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.schema import Config
from tasks.dataset.building.builder import BuildResult, build
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.building.listing import SourceListing
from tasks.dataset.version import versions
from tests.dataset import raw

COUNT = 60


def pictures(folder: Path, count: int = COUNT, **dataset: Any) -> Config:
    """Images with captions in `raw`, and a config that builds them in `out`."""
    raw.pictures(folder / "raw", count)
    return raw.config(folder / "raw", folder / "out", **dataset)


def changed(config: Config, **dataset: Any) -> Config:
    """The config with other values in its dataset block."""
    return config.model_copy(update={"dataset": config.dataset.model_copy(update=dataset)})


def published(config: Config, **asked: Any) -> BuildResult:
    """Build a version and make it current; `asked` is passed to the build."""
    result = build(config, **asked)
    versions.publish(config.dataset.output, result.version, config.dataset.keep)
    return result


def parquet(folder: Path, image: bytes | None = None, files: int = 3) -> Config:
    """COUNT images with their bytes in Parquet files, or COUNT times the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(files):
        numbers = range(part, COUNT, files)
        rows = {
            "key": [f"{number:04d}" for number in numbers],
            "image": [image or raw.png(number) for number in numbers],
            "caption": [f"picture {number}" for number in numbers],
        }
        pq.write_table(pa.table(rows), folder / f"{part}.parquet")
    source = {"kind": "table", "path": str(folder), "image": "image", "caption": "caption", "key": "key"}
    return raw.config(folder, folder.parent / "out", source=source)


def planned(config: Config, staging: Path) -> Catalogue:
    """A catalogue of all samples with its shards planned, open."""
    listing = SourceListing(config, staging)
    listing.survey()
    listing.read()
    return listing.catalogue
