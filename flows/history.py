"""What `tarmac versions` says: the versions of a dataset, which is current, and who has pinned which."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flows.output import print_json
from tasks.core.errors import DataError, UsageError
from tasks.core.units import count, size, when


def show_history(dataset: Path, as_json: bool) -> int:
    from tasks.dataset import versions as history

    current = history.current(dataset)
    pins = history.pinned(dataset)
    rows = [
        _row(version, version == current, pins.get(version.name, [])) for version in history.listed(dataset)
    ]
    if not rows:
        raise UsageError(f"DATASET: {dataset} has no versions; build it first")
    if as_json:
        return print_json({"ok": True, "findings": [], "versions": rows})
    for row in rows:
        mark = "→" if row["current"] else " "
        if row["error"] is not None:
            sys.stdout.write(f"✗ {row['version']}  {row['error']}\n")
            continue
        pinned = f"  pinned by {', '.join(row['pinned_by'])}" if row["pinned_by"] else ""
        sys.stdout.write(
            f"{mark} {row['version']}  {when(row['built'])}  {count(row['samples']):>12} samples  "
            f"{count(row['shards']):>7} shards  {size(row['bytes']):>9}{pinned}\n"
        )
    return 0


def _row(version: Path, is_current: bool, pinned_by: list[str]) -> dict[str, Any]:
    from tasks.core.files import read_json
    from tasks.dataset.manifest import read_manifest

    row: dict[str, Any] = {
        "version": version.name,
        "current": is_current,
        "pinned_by": pinned_by,
        "error": None,
    }
    try:
        manifest = read_manifest(version)
        built = float(read_json(version / "build.json")["built"])
    except DataError as error:
        return row | {"error": str(error)}
    except OSError as error:
        return row | {"error": f"{version / 'build.json'} cannot be read: {error.strerror}"}
    except (ValueError, KeyError, TypeError):
        return row | {"error": f"{version / 'build.json'} is damaged: tarmac repair {version} mends it"}
    sizes = sum(split.bytes for split in manifest.splits.values())
    return row | {"built": built, "samples": manifest.accepted, "shards": manifest.shards, "bytes": sizes}
