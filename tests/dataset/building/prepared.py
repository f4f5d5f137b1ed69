"""Configs, versions and catalogues that several tests of the build start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

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
    listing.plan()
    return listing.catalogue


def noise(seed: int, side: int = 64, contrast: float = 1.0) -> Image.Image:
    """A picture of coarse noise: unlike that of any other seed."""
    coarse = np.random.default_rng(seed).uniform(128 - 120 * contrast, 128 + 120 * contrast, (8, 8, 3))
    return Image.fromarray(coarse.astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)


def make(folder: Path, pictures: dict[str, Image.Image], **dataset: Any) -> Config:
    folder.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        if not (folder / name).exists():
            picture.save(folder / name)
    rows = [(name, f"the picture called {name}", "any") for name in sorted(pictures)]
    raw.write_table(folder, rows)
    return raw.config(folder, folder.parent / "out", **dataset)


def keys(version: Path) -> dict[str, list[str]]:
    """The keys of each split."""
    return {
        path.stem: sorted(pq.read_table(path).column("key").to_pylist())
        for path in (version / "samples").glob("*.parquet")
    }
