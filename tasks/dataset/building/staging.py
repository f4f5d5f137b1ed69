"""The folder where a build works: the config for its workers, and the shards that are converted and wait to
be assembled.

A staged shard is a tar and a sidecar, named by the digest of all that shapes it. Both are flushed to disk
before they get these names, the sidecar last: what is there is done, whatever has been killed or has crashed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.errors import DataError, UsageError
from tasks.core.files import digest, read_json, write_atomic
from tasks.core.schema import Dataset
from tasks.core.stores import absolute_location, is_remote, redact
from tasks.dataset.building.assemble import DraftShard
from tasks.dataset.building.catalogue import Catalogue, ListedSample, Rejected, rejected
from tasks.dataset.building.reuse import KnownShard, KnownSidecars
from tasks.dataset.building.shard_plan import PlannedShard
from tasks.dataset.building.sidecar import counted_reasons, first
from tasks.dataset.rejects import TRANSIENT
from tasks.dataset.tables import ArrowBatches

RULES = "dataset.json"
"""The config's dataset block, where workers on any machine find it."""
SUFFIXES = (".tar", ".arrow")
"""Of a staged shard and its sidecar."""
JOBS = "jobs"
"""Below the staging folder: the logs of jobs on other machines."""
OUR_KEYS = {"modality", "shard", "splits"}
"""Of the rules in a folder that a build has made."""


def tar_path(staging: Path, shard: str) -> Path:
    return staging / f"{shard}.tar"


def sidecar_path(staging: Path, shard: str) -> Path:
    return staging / f"{shard}.arrow"


def write_rules(staging: Path, dataset: Dataset) -> str:
    """Write the dataset block for the workers; its digest."""
    content = json.dumps(absolute_block(dataset), indent=2)
    write_atomic(staging / RULES, content)
    return digest(content)


def absolute_block(dataset: Dataset) -> Any:
    """The dataset block as JSON that validates as the same from any working directory: every path of its
    sources is absolute."""
    block = dataset.model_dump(mode="json")
    for source in [block["source"]] if block["source"] else block["sources"]:
        source["path"] = absolute_location(source["path"])
        for joined in source.get("join", ()):
            joined["path"] = absolute_location(joined["path"])
    return block


def redact_config(dataset: Dataset) -> tuple[Any, list[str]]:
    """The dataset block as build.json keeps it for a repair, and the keys of the addresses that were cut.

    Paths are absolute. An address loses what lets one read it (a password, a signature), because build.json
    is copied to mirrors and shown to people.
    """
    cut: list[str] = []
    block = _without_secrets(absolute_block(dataset), "dataset", cut)
    block["output"] = os.path.abspath(dataset.output)
    block["mirror"] = None
    return block, [key for key in cut if key != "dataset.mirror"]


def _without_secrets(value: Any, key: str, cut: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(entry, f"{key}.{name}", cut) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_secrets(entry, f"{key}[{number}]", cut) for number, entry in enumerate(value)]
    if isinstance(value, str) and is_remote(value) and redact(value) != value:
        cut.append(key)
        return redact(value)
    return value


def require_own(staging: Path) -> None:
    """UsageError where the folder is somebody else's: a build removes what it does not need there."""
    try:
        names = [path.name for path in staging.iterdir() if not path.name.startswith(f".{RULES}.")]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names = [staging.name]
    if names and not _has_rules(staging):
        raise UsageError(
            f"dataset.output: {staging} holds what no build has put there, such as {min(names)}, and a build "
            "would remove it; move it away"
        )


def _has_rules(staging: Path) -> bool:
    try:
        rules = read_json(staging / RULES)
    except (OSError, ValueError):
        return False
    return isinstance(rules, dict) and rules.keys() >= OUR_KEYS


def sweep(staging: Path, is_kept: Callable[[str], bool]) -> None:
    """Remove whatever a killed build has half written, and the staged shards and sidecars whose digests are
    not to be kept."""
    for path in staging.iterdir():
        is_half_written = path.name.startswith(".") and path.is_file()
        if is_half_written or (path.suffix in SUFFIXES and not is_kept(path.stem)):
            path.unlink(missing_ok=True)  # a worker of a build that has just failed cleans up too


def staged(staging: Path, shard: str) -> Any | None:
    """The sidecar of a shard that is done; None when it has to be done."""
    try:
        table = ArrowBatches(sidecar_path(staging, shard))[0]
    except (OSError, pa.ArrowException, ValueError):
        return None
    if first(table, "blake3") is None:
        return table
    tar = tar_path(staging, shard)
    return table if tar.exists() and tar.stat().st_size == first(table, "bytes") else None


def converted_shards(
    catalogue: Catalogue, known: Mapping[int, KnownShard], staging: Path, converted: Iterator[int]
) -> Generator[DraftShard, None, None]:
    """Every planned shard as it was converted, here or in an earlier version, in order, each as soon as
    `converted` has given its ordinal. DataError when the files of one have gone since."""
    sidecars = KnownSidecars()
    waiting: set[int] = set()
    for planned in catalogue.shards():
        while planned.ordinal not in waiting:
            waiting.add(next(converted))
        waiting.remove(planned.ordinal)
        yield _converted(planned, known, staging, sidecars)
    next(converted, None)  # runs it to its end, where the engine cleans up


def _converted(
    planned: PlannedShard, known: Mapping[int, KnownShard], staging: Path, sidecars: KnownSidecars
) -> DraftShard:
    one = known.get(planned.ordinal)
    if one is not None:
        return DraftShard(planned.split, sidecars[one], None if one.tar is None else one.version / one.tar)
    table = staged(staging, planned.digest)
    if table is None:
        raise DataError(f"a converted shard has gone from {staging}; build again")
    is_empty = first(table, "blake3") is None
    return DraftShard(planned.split, table, None if is_empty else tar_path(staging, planned.digest))


def note_rejects(
    catalogue: Catalogue, known: Mapping[int, KnownShard], staging: Path, ordinals: Iterable[int]
) -> None:
    """Note the rejects of these converted shards in the catalogue. The fact `unread` then counts the samples
    that could not be read for a cause that may pass."""
    sidecars = KnownSidecars()
    unread = catalogue.fact("unread_containers") or 0
    with catalogue.transaction():
        for planned in map(catalogue.shard, ordinals):
            table = _converted(planned, known, staging, sidecars).sidecar
            unread += counted_reasons(table).get(TRANSIENT, 0)
            catalogue.reject(_rejects(catalogue.entries(planned), table), in_conversion=True)
        catalogue.note("unread", unread)


def _rejects(entries: Iterable[ListedSample], table: Any) -> Iterator[Rejected]:
    """The rejects among a shard's entries, as its sidecar holds them."""
    reasons = table.column("reason").to_pylist()
    details = table.column("detail").to_pylist()
    for entry, reason, detail in zip(entries, reasons, details, strict=True):
        if reason is not None:
            yield rejected(entry, reason, detail)
