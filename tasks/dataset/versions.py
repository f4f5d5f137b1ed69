"""The versions of a dataset: which is current, the switch to another, and which may go.

A version is complete and never changes, so a reader of one is not disturbed by a build or a switch. A run
that uses one pins it (`pins/<run id>` holds its name), and a pinned version is never pruned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tasks.core.errors import DataError, UsageError
from tasks.core.files import link_atomic, none_where_nothing_is, told_of_a_full_disk, told_of_what_is_closed
from tasks.core.lease import STALE_S, Held, Lease
from tasks.dataset.manifest import VERSION_NAME, Manifest, read_manifest

__all__ = [
    "Manifest",
    "current",
    "has_its_tars",
    "listed",
    "pinned",
    "prune",
    "publish",
    "read_manifest",
    "resolve",
    "rollback",
    "spared",
]

MARKS = ("manifest.json", "shards.parquet", "inputs.arrow")
"""What lies in a version beside its splits; tars that others made have none of it."""
MIRRORED = "mirror.json"
"""In the dataset's folder: where the last version was copied to."""
DOOMED = ".pruned-"
DAMAGED = ".damaged-"
"""Before a version's name: what is about to be removed."""


def current(dataset: Path) -> Path | None:
    """The folder of the current version; None before the first one is published. UsageError where that
    cannot be told."""
    with told_of_what_is_closed(), none_where_nothing_is():
        version = dataset / os.readlink(dataset / "current")
        return version if (version / "manifest.json").is_file() else None
    return None


def resolve(path: Path) -> Path:
    """The version's folder of a dataset, its `current`, or a version wherever it lies; else UsageError."""
    with told_of_what_is_closed():
        if path.is_symlink():
            path = path.parent / os.readlink(path)
        if (path / "manifest.json").is_file():
            return path
        version = current(path)
        is_folder = path.is_dir()
    if version is None:
        there = "holds no version of a dataset" if is_folder else "is no folder"
        raise UsageError(f"{path} {there}; give DATASET or DATASET/versions/VERSION, or build it first")
    return version


def listed(dataset: Path) -> list[Path]:
    """All versions, the most recently built first; UsageError where they cannot be listed."""
    found: list[Path] = []
    with told_of_what_is_closed(), none_where_nothing_is():
        found = [entry for entry in (dataset / "versions").iterdir() if VERSION_NAME.fullmatch(entry.name)]
    return sorted(found, key=lambda version: (_built(version), version.name), reverse=True)


def _built(version: Path) -> int:
    try:
        return (version / "build.json").stat().st_mtime_ns
    except OSError:
        return 0


def has_its_tars(version: Path, manifest: Manifest) -> bool:
    """Whether every split has its tars in number and total size; a quick look."""
    for split, summary in manifest.splits.items():
        try:
            sizes = [e.stat().st_size for e in os.scandir(version / split) if e.name.endswith(".tar")]
        except OSError:
            return False
        if len(sizes) != summary.shards or sum(sizes) != summary.bytes:
            return False
    return True


def publish(dataset: Path, version: Path, keep: int) -> None:
    """Make the version current by one rename, then prune all but the newest `keep`, and never a newer one.

    DataError when the version is not there any more. While somebody else builds, nothing is pruned, because
    that build may link shards of any version; the next publication prunes.
    """
    lease = Lease(dataset / "lease.json")
    try:
        lease.acquire()
    except Held:
        _switch(dataset, version)
        return
    try:
        _sweep(dataset)
        _switch(dataset, version)
        _prune(dataset, keep)
    finally:
        lease.release()


def rollback(dataset: Path, name: str) -> Path:
    """Make an earlier version current again, named by any unique start; readers are not disturbed.

    UsageError when no version or several are so named, or nothing can be written; Held while somebody builds.
    """
    found = [version for version in listed(dataset) if version.name.startswith(name)]
    if len(found) != 1:
        there = ", ".join(version.name for version in listed(dataset)) or "none"
        which = "no version" if not found else f"{len(found)} versions"
        raise UsageError(f"VERSION: {which} of {dataset} start with {name!r} (it has: {there})")
    with _leased(dataset):
        _switch(dataset, found[0])
    return found[0]


def prune(dataset: Path, keep: int) -> list[str]:
    """Remove all but the current version and the newest others, `keep` in all, and those that runs have
    pinned; the names of the removed. Held while somebody builds."""
    with _leased(dataset):
        before = {version.name for version in listed(dataset)}
        _sweep(dataset)
        _prune(dataset, keep)
        return sorted(before - {version.name for version in listed(dataset)})


def spared(dataset: Path, keep: int) -> dict[str, str]:
    """The versions that a prune leaves although they are more than `keep`, with the reason."""
    held = pinned(dataset)
    return {
        version.name: f"pinned by {', '.join(held[version.name])}"
        if version.name in held
        else "built after the current version"
        for version in _beyond(dataset, keep)
    }


@contextlib.contextmanager
def _leased(dataset: Path) -> Iterator[None]:
    """Hold the dataset while its versions change; DataError where its disk is full, UsageError where it may
    not be written."""
    try:
        with told_of_a_full_disk(dataset), Lease(dataset / "lease.json"):
            yield
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"DATASET: {dataset} cannot be written ({reason}); mind its rights") from None


def pinned(dataset: Path) -> dict[str, list[str]]:
    """The runs that have pinned each version, by its name."""
    runs: dict[str, list[str]] = {}
    for path in sorted((dataset / "pins").glob("*")):
        runs.setdefault(_pin(path), []).append(path.name)
    return runs


def _switch(dataset: Path, version: Path) -> None:
    if not (dataset / "versions" / version.name / "manifest.json").is_file():
        raise DataError(
            f"version {version.name} of {dataset} is not there any more (pruned or moved); "
            "build the dataset again, the current version stays as it was"
        )
    link_atomic(dataset / "current", f"versions/{version.name}")


def _sweep(dataset: Path) -> None:
    """Remove what a prune, a build or a switch that was killed has left."""
    for prefix in (DOOMED, DAMAGED):
        for left in (dataset / "versions").glob(f"{prefix}*"):
            shutil.rmtree(left)
    for left in dataset.glob(".*"):
        if not left.is_dir() and _is_abandoned(left):
            left.unlink(missing_ok=True)


def _is_abandoned(temporary: Path) -> bool:
    """Whether a file that was to be renamed belongs to nobody: the process in its name is gone, or, where its
    name tells none, it is older than any write takes."""
    owners = [int(part) for part in temporary.name.split(".") if part.isdigit()]
    if owners:
        return not psutil.pid_exists(owners[0])
    try:
        return time.time() - temporary.lstat().st_mtime > STALE_S
    except FileNotFoundError:
        return False


def _prune(dataset: Path, keep: int) -> None:
    now = current(dataset)
    since = 0 if now is None else _built(now)
    held = pinned(dataset)
    for version in _beyond(dataset, keep):
        if version.name not in held and _built(version) <= since:
            doomed = version.with_name(DOOMED + version.name)
            os.rename(version, doomed)  # a version is there whole or not at all
            shutil.rmtree(doomed)


def _beyond(dataset: Path, keep: int) -> list[Path]:
    """The versions besides the current one and the `keep` - 1 newest others."""
    now = current(dataset)
    others = [version for version in listed(dataset) if version != now]
    return others[max(keep - 1, 0) :]


def _pin(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
