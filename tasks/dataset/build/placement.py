"""A finished draft takes its place among the versions, or mends the one that has its name already.

A version that has its tars keeps those that the draft has too, because a run may be reading them, and gets
every file that differs from the draft's. One that has lost a tar is replaced whole.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.files import fsync_path
from tasks.dataset import versions
from tasks.dataset.layout import BUILD
from tasks.dataset.build_info import names_beside_tars
from tasks.dataset.versions import DAMAGED
from tasks.dataset.manifest import Manifest, version_name


def move_into_place(draft: Path, versions_folder: Path, manifest: Manifest) -> Path:
    """Give the draft its name among the versions, or mend the version of that name by it; returns the
    version's folder. UsageError where they lie on another file system."""
    versions_folder.mkdir(exist_ok=True)
    version = versions_folder / version_name(manifest.to_bytes())
    with _told_of_two_disks(draft, versions_folder):
        if version.exists() and versions.has_its_tars(version, manifest):
            _refresh(draft, version)
            shutil.rmtree(draft)
            return version
        if version.exists():
            _replace(draft, version)
        else:
            os.rename(draft, version)
    fsync_path(version.parent)
    return version


@contextlib.contextmanager
def _told_of_two_disks(draft: Path, versions_folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise UsageError(
            f"dataset.output: {versions_folder} lies on another file system than {draft.parent}, which no "
            "rename can cross; make the dataset's folder a link, not versions in it"
        ) from None


def _replace(draft: Path, version: Path) -> None:
    """Put the draft in the place of a version that has lost a tar."""
    damaged = version.with_name(DAMAGED + version.name)
    shutil.rmtree(damaged, ignore_errors=True)
    os.rename(version, damaged)
    try:
        os.rename(draft, version)
    except OSError:
        os.rename(damaged, version)  # most of it is better than none
        raise
    shutil.rmtree(damaged)


def _refresh(draft: Path, version: Path) -> None:
    """Replace every file that differs from the draft's: damage, places in a table, times; a tar where the
    draft has other bytes, because it was converted anew.

    The record of the files goes last, so a refresh that is killed does not count as done.
    """
    for tar in draft.glob("*/*.tar"):
        target = version / tar.relative_to(draft)
        if not _is_same_file(tar, target):
            os.replace(tar, target)
    names = [*names_beside_tars(draft), BUILD]
    for name in names:
        target = version / name
        if not _is_same_file(draft / name, target):
            target.parent.mkdir(exist_ok=True)
            os.replace(draft / name, target)
    for folder in {(version / name).parent for name in names} | {version}:
        fsync_path(folder)


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other) or filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
