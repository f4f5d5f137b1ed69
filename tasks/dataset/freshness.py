"""Whether there is anything to build, found out without opening a sample.

Kept apart from the build, because the answer must come fast and needs neither Pillow nor pyarrow.
"""

from __future__ import annotations

from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.schema import Config
from tasks.dataset import versions
from tasks.dataset.listing import Listing, list_samples


def is_up_to_date(config: Config) -> Path | None:
    """The current version, when sources (path, size, time) and config are as they were when it was built.

    UsageError and DataError as the build would raise them.
    """
    listing = list_samples(config)
    version = versions.current(config.dataset.output)
    return version if version is not None and unchanged(version, listing) else None


def unchanged(version: Path, listing: Listing) -> bool:
    """Whether the version was built from this very listing and still has all its files."""
    try:
        recorded = read_json(version / "build.json").get("inputs_digest")
        manifest = versions.read_manifest(version)
    except (OSError, ValueError, AttributeError, DataError):
        return False
    return bool(recorded == listing.digest) and versions.is_intact(version, manifest)
