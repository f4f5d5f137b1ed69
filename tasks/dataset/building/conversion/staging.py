"""The folder where a build works, and the converted shards that it finds there or in earlier versions.

A staged shard is a tar and a sidecar, named by the digest of all that shapes it. Both are flushed to disk
before they get these names, the sidecar last, so a shard that exists is complete even after a kill or a
crash.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.errors import DataError, UsageError
from tasks.core.files import digest, read_json, write_atomic
from tasks.core.schema import Dataset
from tasks.core.stores import absolute_location, is_remote, redact
from tasks.dataset.building.conversion.assemble import DraftShard
from tasks.dataset.building.conversion.sidecar import counted_reasons, first, holds_transient
from tasks.dataset.building.listed.catalogue import Catalogue, ListedSample, RejectedSample
from tasks.dataset.building.listed.shard_plan import PlannedShard
from tasks.dataset.building.score_rules import ScoreDecisions
from tasks.dataset.version import layout, versions
from tasks.dataset.version.build_info import may_be_used
from tasks.dataset.version.layout import INPUTS
from tasks.dataset.version.rejects import PASSING, printable
from tasks.dataset.version.tables import ArrowBatches

RULES = "dataset.json"
"""The file with the config's dataset block, for workers on any machine."""
SUFFIXES = (".tar", ".arrow")
"""The suffixes of a staged shard and its sidecar."""
JOBS = "jobs"
"""The subfolder for logs of jobs on other machines."""
OUR_KEYS = {"modality", "shard", "splits"}
"""Keys in the rules of every folder that a build has made."""
LOOKED_AT = ("planned", "tar", "bytes", "reason", "detail", "content")
"""The columns of a version's sidecars that show whether a shard can be reused."""


def tar_path(staging: Path, shard: str) -> Path:
    return staging / f"{shard}.tar"


def sidecar_path(staging: Path, shard: str) -> Path:
    return staging / f"{shard}.arrow"


def write_rules(staging: Path, dataset: Dataset) -> str:
    """Write the dataset block for the workers, and return its digest."""
    content = json.dumps(absolute_block(dataset), indent=2)
    write_atomic(staging / RULES, content)
    return digest(content)


def absolute_block(dataset: Dataset) -> Any:
    """Return the dataset block as JSON with absolute source paths, so it means the same in any working
    directory."""
    block = dataset.model_dump(mode="json")
    for source in [block["source"]] if block["source"] else block["sources"]:
        source["path"] = absolute_location(source["path"])
        for joined in source.get("join", ()):
            joined["path"] = absolute_location(joined["path"])
    return block


def redact_config(dataset: Dataset) -> tuple[Any, list[str]]:
    """Return the dataset block as build.json keeps it for a repair, and the keys of the addresses that were
    cut.

    Paths are absolute. Credentials (a password, a signature) are removed from addresses, because build.json
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
    """UsageError if no build made the folder, because a build removes what it does not need there."""
    try:
        names = [path.name for path in staging.iterdir() if not path.name.startswith(f".{RULES}.")]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names = [staging.name]
    try:
        rules = read_json(staging / RULES)
    except (OSError, ValueError):
        rules = None
    is_own = isinstance(rules, dict) and rules.keys() >= OUR_KEYS
    if names and not is_own:
        raise UsageError(
            f"dataset.output: {staging} holds files that no build wrote, such as {min(names)}, and a build "
            "would remove them; move them away"
        )


def remove_staging(staging: Path) -> None:
    """Remove the folder and its mark last, so that a removal that is cut off leaves a build's folder."""
    for path in staging.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != RULES:
            path.unlink(missing_ok=True)
    shutil.rmtree(staging)


def sweep(staging: Path, is_kept: Callable[[str], bool]) -> None:
    """Remove what a killed build left half written, and staged shards whose digests are not to be kept."""
    for path in staging.iterdir():
        is_half_written = path.name.startswith(".") and path.is_file()
        if is_half_written or (path.suffix in SUFFIXES and not is_kept(path.stem)):
            path.unlink(missing_ok=True)  # a worker of a build that has just failed may remove it first


def staged(staging: Path, shard: str) -> Any | None:
    """Return the sidecar of a staged shard, or None if the shard has to be converted."""
    try:
        table = ArrowBatches(sidecar_path(staging, shard))[0]
    except (OSError, pa.ArrowException, ValueError):
        return None
    is_whole = first(table, "blake3") is None or _file_size(tar_path(staging, shard)) == first(table, "bytes")
    return table if is_whole else None


def _file_size(path: Path) -> int | None:
    """Return the size of a file in bytes, or None if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def converted_shards(
    catalogue: Catalogue, known: Mapping[int, KnownShard], staging: Path, converted: Iterator[int]
) -> Generator[DraftShard, None, None]:
    """Yield every planned shard as it was converted, here or in an earlier version, in order.

    Each follows as soon as `converted` has yielded its ordinal. DataError if a shard's files have
    disappeared.
    """
    sidecars = KnownSidecars()
    waiting: set[int] = set()
    for planned in catalogue.shards():
        while planned.ordinal not in waiting:
            waiting.add(next(converted))
        waiting.remove(planned.ordinal)
        yield _converted(planned, catalogue, known, staging, sidecars)
    next(converted, None)  # runs the generator to its end, where the engine cleans up


def _converted(
    planned: PlannedShard,
    catalogue: Catalogue,
    known: Mapping[int, KnownShard],
    staging: Path,
    sidecars: KnownSidecars,
) -> DraftShard:
    one = known.get(planned.ordinal)
    entries = catalogue.entries(planned.start, planned.stop)
    if one is not None:
        table = _with_places(sidecars[one], entries)
        return DraftShard(planned.split, table, None if one.tar is None else one.version / one.tar)
    table = staged(staging, planned.digest)
    if table is None:
        raise DataError(f"a converted shard has disappeared from {staging}; build again")
    is_empty = first(table, "blake3") is None
    table = _with_places(table, entries)
    return DraftShard(planned.split, table, None if is_empty else tar_path(staging, planned.digest))


def _with_places(sidecar: Any, entries: Sequence[ListedSample]) -> Any:
    """Return the sidecar with the places that its samples have in the source now: a line that is added to a
    table moves those below it."""
    places = pa.array([printable(entry.place) for entry in entries], pa.string())
    return sidecar.set_column(sidecar.schema.get_field_index("source"), "source", places)


def note_rejects(
    catalogue: Catalogue, known: Mapping[int, KnownShard], staging: Path, ordinals: Iterable[int]
) -> None:
    """Note the rejects of these converted shards in the catalogue. Afterwards the fact `unread` counts the
    samples that could not be read, or not measured, for a cause that may pass."""
    sidecars = KnownSidecars()
    unread, unmeasured = catalogue.fact("unread_containers") or 0, catalogue.fact("unmeasured") or 0
    with catalogue.transaction():
        for planned in map(catalogue.shard, ordinals):
            table = _converted(planned, catalogue, known, staging, sidecars).sidecar
            unread += sum(n for reason, n in counted_reasons(table).items() if reason in PASSING)
            columns = (table.column(name).to_pylist() for name in ("reason", "detail"))
            rows = zip(catalogue.entries(planned.start, planned.stop), *columns, strict=True)
            rejects = (
                RejectedSample.of(entry, reason, detail or "") for entry, reason, detail in rows if reason
            )
            catalogue.reject(rejects, in_conversion=True)
        catalogue.note("unread", max(unread, unmeasured))


@dataclass(frozen=True, slots=True)
class KnownShard:
    """A converted shard in a version: the batch of its sidecar, its tar unless it has no sample, and its
    rejects and filtered samples by reason."""

    version: Path
    batch: int
    tar: str | None
    samples: int
    rejects: Mapping[str, int]


def known_shards(dataset: Path, catalogue: Catalogue, decisions: ScoreDecisions) -> dict[int, KnownShard]:
    """Return the planned shards, by ordinal, that versions on disk hold already, made by these decisions.

    A tar that is missing or has the wrong size in any version is converted again even if another version has
    it: versions share their files, so that one may be damaged too. A shard with a sample that could not be
    read is converted again as well.

    The current version takes precedence. Planned shards are compared by the sizes and times of their files,
    and --rehash looks at content, so another version may hold older content of the same shard.
    """
    found: dict[int, KnownShard] = {}
    doubted: set[int] = set()
    linked = layout.linked(dataset)
    now = None if linked is None else linked.resolve()
    for version in sorted(versions.list_versions(dataset), key=lambda version: version.resolve() != now):
        if not may_be_used(version, INPUTS):
            continue
        with suppress(OSError, pa.ArrowException, ValueError):  # verify reports damage
            for number, table in enumerate(ArrowBatches(version / INPUTS, LOOKED_AT)):
                ordinal = catalogue.ordinal(first(table, "planned"))
                if ordinal is None or holds_transient(table) or not decisions.agree_with(table):
                    continue
                tar = first(table, "tar")
                if tar is None or _file_size(version / tar) == first(table, "bytes"):
                    known = KnownShard(version, number, tar, table.num_rows, counted_reasons(table))
                    found.setdefault(ordinal, known)
                else:
                    doubted.add(ordinal)
    return {ordinal: known for ordinal, known in found.items() if ordinal not in doubted}


class KnownSidecars:
    """Reads whole sidecars of known shards, and opens each version's file once."""

    def __init__(self) -> None:
        self._open: dict[Path, ArrowBatches] = {}

    def __getitem__(self, known: KnownShard) -> Any:
        if known.version not in self._open:
            self._open[known.version] = ArrowBatches(known.version / INPUTS)
        return self._open[known.version][known.batch]
