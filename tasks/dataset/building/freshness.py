"""Decides whether there is anything to build without opening a sample.

This is separate from the build, because the answer must come fast and needs neither Pillow nor pyarrow. So
tars are judged by number and size, and the files next to them by what build.json records: the size and, up to
HASHED_BYTES, the BLAKE3. Damage that keeps the size of a tar or of a larger file is for `verify` to find.

Listing the sources is what takes time. If there is something to build, the listing can stay in a folder of
the dataset that is named after this process (`kept_survey`). The build that follows in the same command moves
it into its staging folder, so that no file and no server is looked up twice.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import time
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.files import blake3_file, digest, disk_full_as_error, read_json
from tasks.core.process import Identity
from tasks.core.schema import Config, Dataset
from tasks.dataset.version import versions
from tasks.dataset.version.build_info import BuildInfo, FileSeal, read_build_info
from tasks.dataset.version.layout import MANIFEST, MIRRORED, current
from tasks.dataset.version.manifest import rejects_allowed, version_name

HASHED_BYTES = 64_000_000
"""Reading more than this would make a build that has nothing to do slow."""
SURVEY = ".survey-"
"""The names of folders in the dataset that hold a listing begin with this."""
ABANDONED_S = 3600.0
"""A survey this old belongs to a command that was killed."""


def is_up_to_date(config: Config, *, for_build: bool = False) -> Path | None:
    """Return the current version if the mirror has it, and if sources (path, size, time) and config are as
    they were when it was built; else None.

    With `for_build`, that the version is fresh is recorded; otherwise the listing is kept until this process
    ends for a build that follows: see `kept_survey`.
    UsageError and DataError as the build would raise them.
    """
    from tasks.dataset.building.check import check_sources
    from tasks.dataset.building.listing import SourceListing

    dataset = config.dataset
    version = current(dataset.output)
    if version is None:
        check_sources(dataset)
        return None
    with contextlib.ExitStack() as removal:
        folder = own = _survey_folder(dataset.output)
        shutil.rmtree(own, ignore_errors=True)
        try:
            own.mkdir()
        except OSError:  # the system's temporary folder is used if the dataset's is not writable
            folder = Path(tempfile.mkdtemp(prefix="tarmac-survey-"))
        removal.callback(shutil.rmtree, folder, ignore_errors=True)
        with disk_full_as_error(folder.parent), contextlib.closing(SourceListing(config, folder)) as listing:
            listing.survey()
            if unchanged(version, listing.inputs_digest, dataset) and _is_mirrored(dataset, version):
                if for_build:
                    versions.note_fresh(dataset.output, version)
                return version
        if for_build and folder == own and not listing.has_containers:
            atexit.register(removal.pop_all().close)  # in case no build follows
    return None


def kept_survey(dataset: Path) -> Path | None:
    """Return the folder of the listing that `is_up_to_date` has kept in this process, until a build takes
    it."""
    folder = _survey_folder(dataset)
    return folder if folder.is_dir() else None


def _survey_folder(dataset: Path) -> Path:
    """Return this process's folder for a listing: in the dataset's, which needs room anyway."""
    return dataset / f"{SURVEY}{digest(Identity.mine().to_json())[:12]}"


def sweep_surveys(dataset: Path) -> None:
    """Remove the listings that killed commands have left."""
    for folder in dataset.glob(f"{SURVEY}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(folder)


def _is_mirrored(dataset: Dataset, version: Path) -> bool:
    """Whether this is the last version that reached the dataset's mirror, or the dataset has no mirror."""
    if dataset.mirror is None:
        return True
    try:
        last = read_json(dataset.output / MIRRORED)
        return bool(last == {"address": dataset.mirror.rstrip("/"), "version": version.name})
    except (OSError, ValueError):
        return False


def unchanged(version: Path, inputs: str, dataset: Dataset) -> bool:
    """Whether the version was built from the inputs with this digest, has all its files, and is worth
    keeping.

    It is not if a file could not be read at the time, because the cause may have passed, nor if it holds more
    rejects than are allowed now. Tars and files of more than HASHED_BYTES are compared by size only.
    """
    try:
        build = read_build_info(version)
        manifest = versions.read_manifest(version)
        is_itself = version_name((version / MANIFEST).read_bytes()) == version.name
        is_of_these = build.inputs_digest == inputs and is_for_the_same(build, dataset)
        is_within = manifest.rejected <= rejects_allowed(dataset.reject_budget, manifest.read)
        if build.unread or not (is_itself and is_of_these and is_within):
            return False
        if not all(_is_sound(version / name, seal) for name, seal in build.files.items()):  # reads them
            return False
    except (OSError, DataError):
        return False
    return versions.has_its_tars(version, manifest)


def is_for_the_same(build: BuildInfo, dataset: Dataset) -> bool:
    """Whether privacy and license, which pages and card show, are the same as in the build."""
    return build.private == dataset.private and build.dataset.get("license") == dataset.license


def _is_sound(file: Path, seal: FileSeal) -> bool:
    if file.stat().st_size != seal.bytes:
        return False
    return seal.bytes > HASHED_BYTES or blake3_file(file) == seal.blake3
