"""Whether there is anything to build, found out without opening a sample.

Kept apart from the build, because the answer must come fast and needs neither Pillow nor pyarrow. So tars are
judged by number and size, and the files beside them by what build.json says of each: its size and, up to
HASHED_BYTES, its BLAKE3. Damage that keeps the size of a tar or of a larger file is for `verify` to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.files import blake3_file, read_json
from tasks.core.schema import Config, Dataset
from tasks.dataset import versions
from tasks.dataset.layout import MIRRORED
from tasks.dataset.layout import BUILD
from tasks.dataset.build_info import FileSeal, read_build_info
from tasks.dataset.manifest import version_name

HASHED_BYTES = 64_000_000
"""Reading more than this would make a build that has nothing to do slow."""


def is_up_to_date(config: Config) -> Path | None:
    """The current version, when sources (path, size, time) and config are as they were when it was built,
    and the mirror has it.

    UsageError and DataError as the build would raise them.
    """
    from tasks.dataset.build.check import check
    from tasks.dataset.build.listing import fingerprint

    version = versions.current(config.dataset.output)
    if version is None:
        check(config.dataset)
        return None
    is_current = unchanged(version, fingerprint(config), config.dataset)
    return version if is_current and _is_mirrored(config.dataset, version) else None


def _is_mirrored(dataset: Dataset, version: Path) -> bool:
    """Whether the last version that reached the dataset's mirror, if it has one, is this."""
    if dataset.mirror is None:
        return True
    try:
        last = read_json(dataset.output / MIRRORED)
        return bool(last == {"address": dataset.mirror.rstrip("/"), "version": version.name})
    except (OSError, ValueError):
        return False


def unchanged(version: Path, inputs: str, dataset: Dataset) -> bool:
    """Whether the version was built from what has this fingerprint, has all its files, and is worth keeping.

    It is not when a file could not be read at the time, which may have passed. Files of more than
    HASHED_BYTES, and all tars, are compared by size only.
    """
    try:
        build = read_build_info(version)
        manifest = versions.read_manifest(version)
        is_itself = version_name((version / "manifest.json").read_bytes()) == version.name
        is_of_these = build.inputs_digest == inputs and build.private == dataset.private
        if build.unread or not (is_itself and is_of_these and _are_sound(version, build.files)):
            return False
    except (OSError, DataError):
        return False
    return versions.has_its_tars(version, manifest)


def _are_sound(version: Path, files: Mapping[str, FileSeal]) -> bool:
    for name, seal in files.items():
        size = (version / name).stat().st_size
        if size != seal.bytes:
            return False
        if size <= HASHED_BYTES and blake3_file(version / name) != seal.blake3:
            return False
    return True
