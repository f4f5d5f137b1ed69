"""The command `versions`: a dataset's history, what differs between two versions, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from flows.commands.arguments import AsJson
from flows.commands.output import print_result, say
from tasks.core import screen
from tasks.core.errors import DataError, UsageError
from tasks.core.units import count, shorten, size, when

if TYPE_CHECKING:
    from tasks.dataset.version.differences import VersionDifference

KEPT = 3
"""The number of versions that a prune keeps by default."""
LISTED = 10
"""The number of samples that `versions diff` shows of each kind."""


def versions(
    dataset: Annotated[Path, Parameter(help="The folder of a dataset.")],
    action: Annotated[
        Literal["list", "diff", "rollback", "prune"], Parameter(help="Default: list.")
    ] = "list",
    version: Annotated[
        str | None,
        Parameter(
            help="For rollback: the version to go back to. For diff: the earlier one. Its first digits do."
        ),
    ] = None,
    other: Annotated[
        str | None, Parameter(help="For diff: the later version (default: the current one).")
    ] = None,
    /,
    *,
    keep: Annotated[
        int | None, Parameter(help="For prune: how many versions to keep (default: 3).", metavar="N")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List a dataset's versions, compare two, roll back to one, or prune old ones.

    The current version, newer ones and those that a live run has pinned are
    never removed. diff lists the samples that were gained, lost, replaced with
    other bytes, or moved to another split; with --json it lists all of them.

    For example:
      tarmac versions data/digits
      tarmac versions data/digits diff 9c41
      tarmac versions data/digits rollback 9c41
      tarmac versions data/digits prune --keep 1
    """
    from tasks.dataset.version.versions import current, list_versions, pinned, rollback

    _require_fitting(action, version, other, keep)
    if action == "diff":
        return _diff(dataset, version, other, as_json)
    if action == "rollback":
        if version is None:
            raise UsageError("VERSION: rollback needs the version to go back to; see tarmac versions DATASET")
        now = rollback(dataset, version)
        if as_json:
            return print_result(current=now.name)
        return say(f"✓ current is {now.name}; a build of changed sources makes a new version")
    if action == "prune":
        return _prune(dataset, KEPT if keep is None else keep, as_json)
    present, pins = current(dataset), pinned(dataset)
    rows = [_version_row(one, one == present, pins.get(one.name, [])) for one in list_versions(dataset)]
    if not rows:
        raise UsageError(f"DATASET: {dataset} has no versions; build it first")
    if as_json:
        return print_result(versions=rows)
    return say("\n".join(map(_version_line, rows)))


def _require_fitting(action: str, version: str | None, other: str | None, keep: int | None) -> None:
    """Raise UsageError for an argument that the action does not take."""
    if version is not None and action not in ("rollback", "diff"):
        fix = "; it keeps the newest --keep N" if action == "prune" else ""
        raise UsageError(f"VERSION: {action} takes none, and {version!r} is given{fix}")
    if other is not None and action != "diff":
        raise UsageError(f"OTHER: {action} takes none, and {other!r} is given; it is for diff")
    if keep is not None and action != "prune":
        raise UsageError(f"--keep: {action} removes no version; it is for prune")


def _prune(dataset: Path, keep: int, as_json: bool) -> int:
    from tasks.dataset.version.versions import prune, spared

    if keep < 1:
        raise UsageError("--keep: at least 1, the current version")
    removed = prune(dataset, keep)
    if as_json:
        return print_result(removed=removed)
    stays = [f"  {name} stays: {why}" for name, why in spared(dataset, keep).items()]
    return say("\n".join([f"✓ removed {', '.join(removed) or 'nothing'}", *stays]))


def _diff(dataset: Path, version: str | None, other: str | None, as_json: bool) -> int:
    from tasks.dataset.version.differences import compare_versions
    from tasks.dataset.version.versions import resolve, version_named

    if version is None:
        raise UsageError("VERSION: diff needs the version to compare with; see tarmac versions DATASET")
    before = version_named(dataset, version)
    after = resolve(dataset) if other is None else version_named(dataset, other)
    screen.passing(f"comparing {before.name} and {after.name}")
    found = compare_versions(before, after)
    if as_json:
        return print_result(**found.to_json())
    return say("\n".join(_diff_lines(found)))


def _diff_lines(found: VersionDifference) -> Iterator[str]:
    from tasks.dataset.building.conversion.result import changes_text

    counts = {name: len(found.lists[name]) for name in ("gained", "lost", "replaced")}
    moved = f", {count(len(found.moved))} moved to another split" if found.moved else ""
    yield f"{found.before} → {found.after}: {changes_text(**counts)}{moved}"
    if found.is_private:
        return
    for what, samples in found.lists.items():
        for sample in samples[:LISTED]:
            yield f"  {what:<9} {shorten(sample)}"
        if len(samples) > LISTED:
            yield f"  {what:<9} … and {count(len(samples) - LISTED)} more; --json lists all"


def _version_row(version: Path, is_current: bool, pinned_by: list[str]) -> dict[str, Any]:
    from tasks.dataset.version.build_info import read_build_info
    from tasks.dataset.version.manifest import read_manifest

    row = {"version": version.name, "current": is_current, "pinned_by": pinned_by, "error": None}
    try:
        manifest, info = read_manifest(version), read_build_info(version)
    except DataError as error:
        return row | {"error": f"{error}; tarmac verify {version} says what to do"}
    return row | {
        "built": info.built,
        "samples": manifest.accepted,
        "shards": manifest.shards,
        "bytes": sum(split.bytes for split in manifest.splits.values()),
        "changes": info.changes and asdict(info.changes),
    }


def _version_line(row: Mapping[str, Any]) -> str:
    if row["error"] is not None:
        return f"✗ {row['version']}  {row['error']}"
    from tasks.dataset.building.conversion.result import changes_text

    mark = "→" if row["current"] else " "
    changes = {**row["changes"]} if row["changes"] else None
    since = f"  since {changes.pop('since')}: {changes_text(**changes)}" if changes else ""
    pinned = f"  pinned by {', '.join(row['pinned_by'])}" if row["pinned_by"] else ""
    return (
        f"{mark} {row['version']}  {when(row['built'])}  {count(row['samples']):>12} samples  "
        f"{count(row['shards']):>7} shards  {size(row['bytes']):>9}{since}{pinned}"
    )
