"""Which version is repaired, who else shares its files, and where the work is done.

The work folder is `DATASET/repair`, or `VERSION.repair` beside a version that lies alone: on the same file
system, so that what is finished is renamed into place.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core.errors import DataError, UsageError
from tasks.core.files import FULL, ignore_missing, unreadable_as_error
from tasks.core.lock import Held, Lease
from tasks.core.stores import is_remote, redact
from tasks.dataset import versions
from tasks.dataset.layout import VERSION_NAME

CLOSED = "cannot be read: Permission denied"


@dataclass(frozen=True)
class Place:
    """A version's folder, its dataset's unless it lies alone, and the folder of the work. `moved` tells what
    was moved to `extra`, by its name in the version."""

    version: Path
    dataset: Path | None
    work: Path
    moved: dict[str, Path] = field(default_factory=dict, compare=False)

    @property
    def good(self) -> Path:
        """Tars that are proven or to be proven, by their BLAKE3."""
        return self.work / "good"

    @property
    def staging(self) -> Path:
        return self.work / "staging"

    @property
    def again(self) -> Path:
        """A dataset of its own, for a twin of the version."""
        return self.work / "again"

    @property
    def extra(self) -> Path:
        """What belongs to no version; stays."""
        return self.work / "extra" / self.version.name

    @property
    def others(self) -> list[Path]:
        """The dataset's other versions."""
        listed = [] if self.dataset is None else versions.listed(self.dataset)
        return [version for version in listed if version.name != self.version.name]

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        """Hold the dataset while the block runs; afterwards nothing is left of the work but what is extra.

        DataError that names who holds it, UsageError where nothing can be written.
        """
        lease = Lease((self.dataset or self.work) / "lease.json")
        try:
            lease.acquire()
        except Held as held:
            raise DataError(f"{held}; repair when it is done") from None
        except OSError as error:
            if error.errno in FULL:
                raise
            where = self.dataset or self.work
            raise UsageError(
                f"DATASET: {where} cannot be written ({error.strerror}); mind its rights"
            ) from None
        try:
            yield
            for folder in (self.good, self.staging, self.again):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            lease.release()
            with contextlib.suppress(OSError):  # where something extra is left, or work that was broken off
                self.work.rmdir()


def opening(version: Path) -> str:
    """What helps where this user may not read a file of the version."""
    return f"let its owner give you the right, then repair again: chmod -R u+rX {shlex.quote(str(version))}"


def require_readable(place: Place) -> None:
    """DataError for a folder or table that this user may not read: it may be sound, so it is not replaced."""
    for folder, _, names in os.walk(place.version, onerror=_refuse(place)):
        for path in (Path(folder, name) for name in names if not name.endswith(".tar")):
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                _refuse(place)(error)


def _refuse(place: Place) -> Callable[[OSError], None]:
    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError):
            raise DataError(f"{error.filename} {CLOSED}; {opening(place.version)}") from None

    return refuse


def find(path: str | Path) -> Place:
    """The place of a dataset's current version, or of a version; UsageError for what is neither."""
    if is_remote(str(path)):
        raise UsageError(f"DATASET: {redact(str(path))} is remote; repair it on the machine that built it")
    target = Path(path).resolve()
    with unreadable_as_error():
        if not _is_version(target):
            target = _current(target, path)
    is_inside = target.parent.name == "versions"
    dataset = target.parent.parent if is_inside else None
    work = target.with_name(f"{target.name}.repair") if dataset is None else dataset / "repair"
    return Place(target, dataset, work)


def _is_version(folder: Path) -> bool:
    is_named = folder.parent.name == "versions" and VERSION_NAME.fullmatch(folder.name) is not None
    return folder.is_dir() and (is_named or any((folder / mark).exists() for mark in versions.MARKS))


def _current(dataset: Path, given: str | Path) -> Path:
    """The version that is current, damaged as it may be; PermissionError."""
    with ignore_missing():
        version = (dataset / os.readlink(dataset / "current")).resolve()
        if version.is_dir():
            return version
    if not dataset.is_dir():
        there = "is no folder" if dataset.exists() else "is not there"
        raise UsageError(f"DATASET: {given} {there}; give a dataset's folder or a version's")
    names = [version.name for version in versions.listed(dataset)]
    if names:
        raise UsageError(
            f"DATASET: {given} has no current version; give one of DATASET/versions/: {', '.join(names)}"
        )
    raise UsageError(
        f"DATASET: {given} holds no version that Tarmac built, so nothing says what its tars should be; make "
        "a dataset of what is sound in them: tarmac build with dataset.source: {kind: shards, path: …}"
    )
