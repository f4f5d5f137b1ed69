"""Where the page of a version is written, unless somebody says: beside the data, never in a version."""

from __future__ import annotations

from pathlib import Path

from tasks.dataset.versions import current


def page_path(version: Path) -> Path:
    """`DATASET/look.html` of the current version, `DATASET/look-<version>.html` of another.

    A version that lies elsewhere, outside of any dataset's `versions`, gets its page beside its folder.
    """
    version = version.resolve()
    if version.parent.name != "versions":
        return version.parent / f"look-{version.name}.html"
    dataset = version.parent.parent
    now = current(dataset)
    is_current = now is not None and now.resolve() == version
    return dataset / ("look.html" if is_current else f"look-{version.name}.html")
