"""The files of a version: every shard there, whole by size and end blocks, none beside them; the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.core.findings import Finding
from tasks.dataset.shards import read_index
from tasks.dataset.tar import END
from tasks.dataset.verification.faults import REBUILD, REMAKE, fault
from tasks.dataset.verification.tables import Shard


def where(shard: str) -> dict[str, Any]:
    return {"split": shard.partition("/")[0], "shard": shard}


def tars_of(version: Path) -> list[str]:
    """All tars in the version's split folders, and those that lie beside them."""
    found = [*version.glob("*.tar"), *version.glob("*/*.tar")]
    return sorted(path.relative_to(version).as_posix() for path in found)


def file_faults(version: Path, shards: list[Shard]) -> list[Finding]:
    """What a look at names, sizes and ends shows."""
    findings = []
    for shard in shards:
        found = _shard_fault(version / shard.name, shard)
        if found is not None:
            findings.append(found)
    for name in sorted(set(tars_of(version)) - {shard.name for shard in shards}):
        remedy = "move it away: it is in no table of this version"
        findings.append(fault("shard.extra", remedy, where(name)))
    return findings


def _shard_fault(path: Path, shard: Shard) -> Finding | None:
    at = where(shard.name)
    try:
        size = path.stat().st_size
        end = _end(path, size)
    except FileNotFoundError:
        return fault("shard.missing", REBUILD, at, samples=shard.samples)
    except OSError as error:
        return fault("shard.missing", REBUILD, at, problem=f"unreadable: {error.strerror}")
    if size < shard.bytes:
        return fault("shard.truncated", REMAKE, at, bytes=size, expected=shard.bytes)
    if size > shard.bytes:
        return fault("shard.checksum", REMAKE, at, bytes=size, expected=shard.bytes)
    if end != END:
        return fault("shard.truncated", REMAKE, at, problem="its two end blocks are not zero")
    return None


def _end(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(size - len(END), 0))
        return file.read()


def index_faults(
    version: Path, split: str, shards: list[Shard]
) -> tuple[NDArray[np.void] | None, list[Finding]]:
    """The split's index, None unless it fits the shards, and what is wrong with it."""

    def mismatch(problem: str) -> tuple[None, list[Finding]]:
        at = {"split": split, "file": f"index/{split}.npy"}
        return None, [fault("index.mismatch", REBUILD, at, problem=problem)]

    try:
        index = read_index(version, split)
    except DataError as error:
        return mismatch(str(error))
    counts = [shard.samples for shard in shards]
    if len(index) != sum(counts):
        return mismatch(f"{len(index)} rows for {sum(counts)} samples")
    if not np.array_equal(index["shard"], np.repeat(np.arange(len(shards)), counts)):
        return mismatch("its rows are not in the order of the shards")
    ends = np.cumsum(index["length"].astype(np.int64))
    tops = np.concatenate([[0], ends])[np.cumsum([0, *counts])]
    starts = np.concatenate([[0], ends[:-1]]) - np.repeat(tops[:-1], counts)
    if not np.array_equal(index["offset"].astype(np.int64), starts):
        return mismatch("its samples do not lie one after the other")
    for shard, size in zip(shards, np.diff(tops), strict=True):
        if size + len(END) != shard.bytes:
            return mismatch(
                f"its samples end at byte {size}, those of {shard.name} at {shard.bytes - len(END)}"
            )
    return index, []
