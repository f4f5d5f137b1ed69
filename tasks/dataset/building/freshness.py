"""Whether there is anything to build, found out without opening a sample.

Kept apart from the build, because the answer must come fast and needs neither Pillow nor pyarrow. So tars are
judged by number and size, and the files beside them by what build.json says of each: its size and, up to
HASHED_BYTES, its BLAKE3. Damage that keeps the size of a tar or of a larger file is for `verify` to find.

The sources are listed for it, which is what costs time. Where there is something to build, this listing can
be kept for the build that follows in the same command, so that no file and no server is asked twice.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from math import floor
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.files import blake3_file, disk_full_as_error, read_json
from tasks.core.schema import Config, Dataset
from tasks.dataset import versions
from tasks.dataset.build_info import BuildInfo, FileSeal, read_build_info
from tasks.dataset.layout import MANIFEST, MIRRORED, current
from tasks.dataset.manifest import version_name

HASHED_BYTES = 64_000_000
"""Reading more than this would make a build that has nothing to do slow."""
SURVEY = ".survey-"
"""Begins the name of a folder, in the dataset's, that holds a listing until the build takes it over."""
ABANDONED_S = 3600.0
"""A survey this old is of a command that was killed."""
_surveys: dict[Path, Path] = {}
"""Folders of listings by dataset, for the build that follows in this process's command."""


def is_up_to_date(config: Config, *, for_build: bool = False) -> Path | None:
    """The current version, when sources (path, size, time) and config are as they were when it was built,
    and the mirror has it.

    `for_build` keeps the listing, where there is something to build, for a build that follows in this
    process: see `take_survey`. UsageError and DataError as the build would raise them.
    """
    from tasks.dataset.building.check import check_sources
    from tasks.dataset.building.listing import SourceListing

    dataset = config.dataset
    version = current(dataset.output)
    if version is None:
        check_sources(dataset)
        return None
    folder = _survey_folder(dataset.output)
    is_kept = False
    try:
        with disk_full_as_error(folder.parent), contextlib.closing(SourceListing(config, folder)) as listing:
            listing.survey()
            if unchanged(version, listing.inputs_digest, dataset) and _is_mirrored(dataset, version):
                return version
        is_kept = for_build and folder.parent == dataset.output and not listing.has_containers
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
    if is_kept:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _surveys[dataset.output.absolute()] = folder
    return None


def take_survey(dataset: Path) -> Path | None:
    """The folder of the listing that `is_up_to_date` has just made in this process, once; the build takes it
    over."""
    return _surveys.pop(dataset.absolute(), None)


def sweep_surveys(dataset: Path) -> None:
    """Remove the listings that killed commands have left."""
    for folder in dataset.glob(f"{SURVEY}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(folder)


def _survey_folder(output: Path) -> Path:
    """A new folder in the dataset's, where there must be room anyway, or in the system's temporary one where
    the dataset's may not be written."""
    with contextlib.suppress(OSError):
        return Path(tempfile.mkdtemp(prefix=SURVEY, dir=output))
    return Path(tempfile.mkdtemp(prefix="tarmac-survey-"))


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
    """Whether the version was built from what has this digest, has all its files, and is worth keeping.

    It is not when a file could not be read at the time, which may have passed, nor when it holds more rejects
    than are allowed now. Files of more than HASHED_BYTES, and all tars, are compared by size only.
    """
    try:
        build = read_build_info(version)
        manifest = versions.read_manifest(version)
        is_itself = version_name((version / MANIFEST).read_bytes()) == version.name
        is_of_these = build.inputs_digest == inputs and is_for_the_same(build, dataset)
        is_within = manifest.rejected <= rejects_allowed(dataset.reject_budget, manifest.read)
        if build.unread or not (is_itself and is_of_these and is_within and _are_sound(version, build.files)):
            return False
    except (OSError, DataError):
        return False
    return versions.has_its_tars(version, manifest)


def is_for_the_same(build: BuildInfo, dataset: Dataset) -> bool:
    """Whether the same people may see and use it, which its pages and its card say."""
    return build.private == dataset.private and build.dataset.get("license") == dataset.license


def rejects_allowed(budget: float, read: int) -> int:
    """The rejects among so many raw samples that the budget has room for."""
    return floor(budget * read + 1e-9)


def _are_sound(version: Path, files: Mapping[str, FileSeal]) -> bool:
    for name, seal in files.items():
        size = (version / name).stat().st_size
        if size != seal.bytes:
            return False
        if size <= HASHED_BYTES and blake3_file(version / name) != seal.blake3:
            return False
    return True
