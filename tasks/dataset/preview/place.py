"""Which version is looked at, and where its page is written unless somebody says: beside the data, never in a
version."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.core.files import unreadable_as_error
from tasks.dataset import versions


def version_at(path: Path) -> Path:
    """The version's folder of a dataset or a version, also one whose manifest is gone, since that is what its
    page then shows; UsageError when there is nothing that could be one."""
    with unreadable_as_error():
        for folder in _candidates(path):
            if (folder / "manifest.json").is_file():
                return folder
        for folder in _candidates(path):
            if (folder / "shards.parquet").is_file() or _has_tars(folder):
                return folder
    return versions.resolve(path)


def _has_tars(folder: Path) -> bool:
    return any(folder.glob("*.tar")) or any(folder.glob("*/*.tar"))


def page_path(version: Path) -> Path:
    """`DATASET/look.html` of the current version, `DATASET/look-<version>.html` of another.

    A version that lies elsewhere, outside of any dataset's `versions`, gets its page beside its folder.
    """
    version = version.resolve()
    if version.parent.name != "versions":
        return version.parent / f"look-{version.name}.html"
    dataset = version.parent.parent
    is_current = (dataset / "current").resolve() == version
    return dataset / ("look.html" if is_current else f"look-{version.name}.html")


def _candidates(path: Path) -> list[Path]:
    """The folder itself and the version that its `current` names; links are followed one step, so that the
    version is called by its own name."""
    target = path.parent / os.readlink(path) if path.is_symlink() else path
    link = target / "current"
    return [target, target / os.readlink(link)] if link.is_symlink() else [target]
