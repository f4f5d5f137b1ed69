"""One shard again: which planned shard a name of the current version stands for."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from tasks.core.errors import DataError, UsageError
from tasks.dataset.build.reuse import INPUTS
from tasks.dataset.build.sidecar import first
from tasks.dataset.layout import shard_name
from tasks.dataset.splits import REST
from tasks.dataset.tables import Batches

_NAME = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_-]*)/)?(\d+)(?:\.tar)?")


def leaf_of_shard(version: Path | None, shard: str) -> str:
    """The digest of the leaf that became `train/000007`, `val/3` or `7` (of train); UsageError when the
    version has no such shard."""
    match = _NAME.fullmatch(shard)
    if match is None:
        raise UsageError(f"--shard: {shard!r} is no shard; give a number, or a name such as val/000003")
    name = shard_name(match[1] or REST, int(match[2]))
    if version is None:
        raise UsageError(f"--shard {shard}: the dataset has no version yet; build it first")
    try:
        batches = Batches(version / INPUTS, ("leaf", "tar"))
    except (OSError, pa.ArrowException, ValueError):
        raise DataError(f"{version / INPUTS} cannot be read; tarmac build --rehash makes it again") from None
    for number in range(len(batches)):
        table = batches[number]
        if first(table, "tar") == name:
            return str(first(table, "leaf"))
    raise UsageError(f"--shard {shard}: version {version.name} has no {name}; see its shards.parquet")
