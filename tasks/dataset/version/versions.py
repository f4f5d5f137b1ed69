"""The versions of a dataset: which one is current, the switch to another, and which may be removed.

A version is complete and never changes, so a build or a switch does not disturb its readers. A run that uses
a version pins it (`tasks.core.lock`), and a pinned version is never pruned.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.core.errors import DataError, UsageError
from tasks.core.files import (
    disk_full_as_error,
    ignore_missing,
    link_atomic,
    read_json,
    unreadable_as_error,
    write_json,
)
from tasks.core.lock import Held, Lease, drop_stale_pins, pinned
from tasks.dataset.version.layout import (
    BUILD,
    CURRENT,
    FRESH,
    LEASE,
    LENGTHS,
    QUALITY,
    VERSION_NAME,
    VERSIONS,
    current,
    is_version,
    resolve,
    shard_name,
)
from tasks.dataset.version.manifest import Manifest, read_manifest

__all__ = ["Manifest", "current", "pinned", "read_manifest", "resolve"]  # besides what is defined here

logger = logging.getLogger(__name__)
DOOMED = ".pruned-"
"""The prefix that a version's name gets just before the version is removed."""


def list_versions(dataset: Path) -> list[Path]:
    """All versions, the most recently built first; UsageError where they cannot be listed. This reads one
    small file per version."""
    found: list[Path] = []
    with unreadable_as_error(), ignore_missing():
        found = [entry for entry in (dataset / VERSIONS).iterdir() if VERSION_NAME.fullmatch(entry.name)]
    return sorted(found, key=lambda version: (_built(version), version.name), reverse=True)


def _built(version: Path) -> tuple[float, int]:
    """When a version was built, by build.json, because a copy may give its files other times. The file's own
    time stands in where build.json cannot be read, and decides between two versions of the same time."""
    path = version / BUILD
    try:
        time_ns = path.stat().st_mtime_ns
    except OSError:
        return 0, 0
    try:
        built = float(read_json(path)["built"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        built = math.nan
    return built if math.isfinite(built) else time_ns / 1e9, time_ns


def has_its_tars(version: Path, manifest: Manifest) -> bool:
    """Whether every split has its tars, by name and total size, whatever else lies there. This reads no
    tar."""
    try:
        return all(
            sum(os.stat(version / shard_name(split, number)).st_size for number in range(summary.shards))
            == summary.bytes
            for split, summary in manifest.splits.items()
        )
    except OSError:
        return False


def require_link(dataset: Path) -> None:
    """UsageError where `current` is a file or folder: a link in its place would destroy somebody's work."""
    link = dataset / CURRENT
    if os.path.lexists(link) and not os.path.islink(link):
        found, origin = "file", "and no build has put it there"
        if os.path.isdir(link):
            found, origin = "folder", "as a copy that follows links makes one"
        raise UsageError(f"{link} is a {found} where a link belongs, {origin}; move it away")


def publish(dataset: Path, version: Path, keep: int) -> list[str]:
    """Make the version current by one rename, then prune all but the newest `keep`, but never a newer one.
    Return the names of the removed versions.

    DataError when the version is not there any more, UsageError where `current` is no link. While somebody
    else builds, nothing is pruned, because that build may link shards of any version; the next publication
    prunes.
    """
    require_link(dataset)
    removed = []
    try:
        with Lease(dataset / LEASE):
            sweep(dataset)
            _switch(dataset, version)
            removed = _prune(dataset, keep)
    except Held:
        _switch(dataset, version)
    note_fresh(dataset, version)
    return removed


def note_fresh(dataset: Path, version: Path) -> None:
    """Record that the version is as the raw data are now, unless the dataset cannot be written."""
    with contextlib.suppress(OSError):
        write_json(dataset / FRESH, {"version": version.name, "at": time.time()})


def fresh_at(dataset: Path) -> float | None:
    """Return when the current version was last found, or made, as the raw data are, in Unix seconds; None
    where there is no version."""
    version = current(dataset)
    if version is None:
        return None
    try:
        noted = read_json(dataset / FRESH)
        if noted["version"] == version.name:
            return float(noted["at"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return _built(version)[0]  # an earlier Tarmac has built it, or somebody has rolled back to it


def rollback(dataset: Path, name: str) -> Path:
    """Make an earlier version current again, named by any unique start; readers are not disturbed.

    UsageError when no version or several have such a name, or when nothing can be written; DataError for a
    version that lacks tars; Held while somebody builds.
    """
    found = version_named(dataset, name)
    if not has_its_tars(found, read_manifest(found)):
        raise DataError(
            f"version {found.name} of {dataset} lacks tars, or they are cut short; mend it first: "
            f"tarmac repair {shlex.quote(str(found))}"
        )
    with _leased(dataset):
        _switch(dataset, found)
    return found


def version_named(dataset: Path, name: str) -> Path:
    """Return the version whose name has this start; UsageError when none or several do."""
    versions = list_versions(dataset)
    found = [version for version in versions if version.name.startswith(name)]
    if len(found) != 1:
        there = ", ".join(version.name for version in versions) or "none"
        which, start = (f"{len(found)} versions", "start") if found else ("no version", "starts")
        raise UsageError(f"VERSION: {which} of {dataset} {start} with {name!r} (it has: {there})")
    return found[0]


def prune(dataset: Path, keep: int) -> list[str]:
    """Remove all versions but the current one, the newest others, `keep` in all, and those that runs have
    pinned; return the removed names. UsageError for a folder without versions; Held while somebody builds."""
    if not list_versions(dataset):
        raise UsageError(f"DATASET: {dataset} has no versions; build it first")
    with _leased(dataset):
        sweep(dataset)
        return _prune(dataset, keep)


def spared(dataset: Path, keep: int) -> dict[str, str]:
    """The versions beyond `keep` that a prune leaves, with the reason."""
    held = pinned(dataset)
    return {
        version.name: f"pinned by {', '.join(held[version.name])}"
        if version.name in held
        else "built after the current version"
        for version in _beyond(dataset, keep)
    }


@contextlib.contextmanager
def _leased(dataset: Path) -> Iterator[None]:
    """Hold the dataset while its versions change; DataError where its disk is full, UsageError where the
    dataset cannot be written or its `current` is no link."""
    require_link(dataset)
    try:
        with disk_full_as_error(dataset), Lease(dataset / LEASE):
            yield
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"DATASET: {dataset} cannot be written ({reason}); check its permissions") from None


def _switch(dataset: Path, version: Path) -> None:
    if not is_version(dataset / VERSIONS / version.name):
        raise DataError(
            f"version {version.name} of {dataset} is not there any more (pruned or moved); "
            "build the dataset again, the current version stays as it was"
        )
    link_atomic(dataset / CURRENT, f"{VERSIONS}/{version.name}")


def _prune(dataset: Path, keep: int) -> list[str]:
    """Remove versions; return their names, sorted."""
    now = current(dataset)
    if now is None:
        return []
    removed = []
    since = _built(now)
    drop_stale_pins(dataset)
    for version in _beyond(dataset, keep):
        if _built(version) > since or version.name in pinned(dataset):  # a run may have pinned it just now
            continue
        doomed = version.with_name(DOOMED + version.name)
        os.rename(version, doomed)  # so that a version is always there whole or not at all
        remove(doomed)
        for lengths in (dataset / LENGTHS).glob(f"{version.name}-*"):
            lengths.unlink(missing_ok=True)
        for assessed in (dataset / QUALITY).glob(f"{version.name}.*"):
            assessed.unlink(missing_ok=True)
        removed.append(version.name)
    return sorted(removed)


def _beyond(dataset: Path, keep: int) -> list[Path]:
    """The versions besides the current one and the `keep` - 1 newest others."""
    now = current(dataset)
    others = [version for version in list_versions(dataset) if now is None or version.name != now.name]
    return others[max(keep - 1, 0) :]


def sweep(dataset: Path) -> None:
    """Remove what a killed prune has left of versions; a folder that cannot be removed stays."""
    for left in (dataset / VERSIONS).glob(f"{DOOMED}*"):
        if VERSION_NAME.fullmatch(left.name.removeprefix(DOOMED)):
            remove(left)


def remove(folder: Path) -> None:
    """Remove a folder; the next sweep tries again where permissions or the disk prevent that."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        logger.warning("%s cannot be removed whole; check its permissions", folder)
