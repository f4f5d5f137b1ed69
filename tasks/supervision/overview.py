"""What is there beside the runs: the datasets that they use or that lie beside them, and their builds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.core.errors import TarmacError
from tasks.core.lock import Holder
from tasks.dataset.building.under_way import BuildProgress, build_under_way, left_off
from tasks.dataset.version.layout import CURRENT, STAGING, VERSIONS, current
from tasks.dataset.version.manifest import read_manifest
from tasks.runs.record import RunRecord

BESIDE = "data"
"""The folder of datasets beside that of the runs, as `tarmac init` and the examples have it."""


@dataclass(frozen=True)
class DatasetOverview:
    """A dataset: its current version with samples and bytes, how many versions there are, and its build.

    `version` is None before the first one is published. `problem` is why it cannot be read, else empty.
    """

    path: Path
    version: str | None
    samples: int = 0
    bytes: int = 0
    versions: int = 0
    builder: Holder | None = None
    progress: BuildProgress | None = None
    problem: str = ""
    left_off: str = ""
    """What became of a build that ended before its end; empty where there is none."""

    def to_json(self) -> dict[str, Any]:
        progress = self.progress
        build = None
        if self.builder is not None:
            build = {
                "by": str(self.builder),
                "done": None if progress is None else progress.done,
                "total": None if progress is None else progress.total,
                "note": "" if progress is None else progress.note,
                "left_s": None if progress is None else progress.left_s,
            }
        return {
            "dataset": str(self.path),
            "version": self.version,
            "samples": self.samples,
            "bytes": self.bytes,
            "versions": self.versions,
            "build": build,
            "left_off": self.left_off,
            "problem": self.problem,
        }


def list_datasets(runs: Path, records: Iterable[RunRecord]) -> list[DatasetOverview]:
    """Return the datasets of the runs, and those in the folder `data` beside `runs`, by path."""
    used = {Path(ref.dataset) for record in records for ref in record.data}
    beside = {path for path in (runs.absolute().parent / BESIDE).glob("*") if _is_dataset(path)}
    return [_look_at(path) for path in sorted(used | beside) if _is_dataset(path)]


def _is_dataset(path: Path) -> bool:
    return (path / CURRENT).is_symlink() or (path / VERSIONS).is_dir() or (path / STAGING).is_dir()


def _look_at(path: Path) -> DatasetOverview:
    return replace(_version_at(path), left_off=left_off(path))


def _version_at(path: Path) -> DatasetOverview:
    under_way = build_under_way(path)
    builder, progress = (None, None) if under_way is None else under_way
    versions = sum(1 for version in (path / VERSIONS).glob("*") if version.is_dir())
    try:
        version = current(path)
        if version is None:
            return DatasetOverview(path, None, versions=versions, builder=builder, progress=progress)
        splits = read_manifest(version).splits.values()
    except (TarmacError, OSError) as error:
        return DatasetOverview(path, None, 0, 0, versions, builder, progress, str(error))
    samples, size = sum(one.samples for one in splits), sum(one.bytes for one in splits)
    return DatasetOverview(path, version.name, samples, size, versions, builder, progress)
