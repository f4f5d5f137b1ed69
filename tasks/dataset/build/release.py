"""The samples of a shard that a build has written again: as they were built, so they leave the quarantine."""

from __future__ import annotations

from pathlib import Path

from tasks.dataset import quarantine


def release(version: Path, staging: Path) -> int:
    """Take the samples of those shards of the version that were converted in `staging` out of the quarantine;
    how many that were.

    Its other shards were not looked into, so their samples stay. So do those whose reason says nothing of the
    shard's bytes: they were bad when it was built.
    """
    home = quarantine.home(version)
    listed = quarantine.of_version(version, quarantine.read(home / quarantine.NAME))
    if not listed:
        return 0
    converted = {_file(tar) for tar in staging.glob("*.tar")}
    written = {shard for shard in {one.shard for one in listed} if _file(version / shard) in converted}
    sound = [one for one in listed if one.shard in written and one.reason in quarantine.BY_BYTES]
    return quarantine.remove(home, sound) if sound else 0


def _file(path: Path) -> tuple[int, int] | None:
    """What tells the file from others, whatever it is named; None where there is none."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino
