"""All damaged shards of a version: found elsewhere, put together from what is left, or converted again.

What another file holds already is linked. The rest is done in rounds of so many samples that they can be
held, each shard taking its place as soon as it is proven.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from tasks.core.engines.local import map_here
from tasks.core.screen import Progress
from tasks.dataset.repair import install
from tasks.dataset.repair.copies import Copies
from tasks.dataset.repair.examine import Examined, Remains, examine
from tasks.dataset.repair.origin import Origin
from tasks.dataset.repair.outcome import CONFIGURE, REBUILD, Done, Failed
from tasks.dataset.repair.place import CLOSED, Place, opening
from tasks.dataset.repair.recipes import Built, Recipes, spans_of
from tasks.dataset.repair.round import Plan, Round
from tasks.dataset.repair.work import Work

ROUND = 100_000
ROUND_BYTES = 64_000_000_000
"""Samples and bytes of the shards that are made together: what is looked for in one pass over the source, and
what may lie in the work folder."""
WORTH_WORKERS_BYTES = 64_000_000
"""Below this, starting worker processes costs more than it saves."""
NOTE = "shards looked into"

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ShardRepair:
    """`moved` are extra tars and where they lie now, None where only a second name went; `as_built` are
    shards whose bytes are what they were."""

    done: list[Done] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    moved: dict[str, Path | None] = field(default_factory=dict)
    as_built: set[str] = field(default_factory=set)


def repair_shards(
    place: Place,
    origin: Origin,
    recipes: Recipes,
    named: Iterable[str],
    extras: Sequence[str],
    progress: Progress,
) -> ShardRepair:
    """Repair the shards that were `named`, and move the `extras` away."""
    shards = [recipes.shards[name] for name in sorted(set(named)) if name in recipes.shards]
    seen = _examine(place, origin, recipes, shards, extras, progress)
    as_built = {
        shard.name
        for shard in shards
        if (found := seen.get(place.version / shard.name)) is not None and found.blake3 == shard.blake3
    }
    closed = [shard for shard in shards if _is_closed(seen.get(place.version / shard.name))]
    damaged = [shard for shard in shards if shard.name not in as_built and shard not in closed]
    copies = Copies(place, {shard.blake3 for shard in damaged})
    work = Work(place, origin, progress, copies, seen, len(damaged) + len(closed))
    for shard in closed:
        work.fail_for_host(shard, f"{CLOSED}; it stays as it is", opening(place.version))
    for plans in _rounds(work, recipes, _link(work, damaged)):
        Round(work, plans).run()
    return ShardRepair(work.done, work.failed, dict(_clear(place, extras, work.done)), as_built)


def _is_closed(found: Examined | None) -> bool:
    return found is not None and found.is_closed


def _examine(
    place: Place,
    origin: Origin,
    recipes: Recipes,
    shards: Iterable[Built],
    extras: Iterable[str],
    progress: Progress,
) -> dict[Path, Examined]:
    """Read what is there of the shards and extras."""
    there = [shard for shard in shards if install.is_file(place.version / shard.name)]
    beside = [path for path in map(place.version.joinpath, extras) if install.is_file(path)]
    paths = [*(place.version / shard.name for shard in there), *beside]
    damaged = (Remains(place.version / shard.name, spans_of(recipes.rows(shard))) for shard in there)
    size = sum(path.stat().st_size for path in paths)
    seen = {}
    for one in _map(examine, chain(damaged, map(Remains, beside)), size, origin.workers):
        seen[one.path] = one
        progress(len(seen), len(paths), NOTE)
    return seen


def _map(
    function: Callable[[Task], Result], tasks: Iterable[Task], size_bytes: int, workers: int
) -> Iterable[Result]:
    if size_bytes < WORTH_WORKERS_BYTES or workers < 2:
        return map(function, tasks)
    return map_here(function, tasks, workers)


def _link(work: Work, shards: Iterable[Built]) -> list[Built]:
    """Take what another file has; returns those that none has. All copies get a second name first, because
    one shard's file may be another's content."""
    under = {one.blake3: path for path, one in work.seen.items()}
    found, left = [], []
    for shard in shards:
        path = under.get(shard.blake3)
        copy = work.copies.find(shard, work.inodes) if path is None else None
        if path is not None:
            how = f"renamed back from {path.relative_to(work.place.version).as_posix()}"
            found.append((shard, path, how, "renamed"))
        elif copy is not None:
            found.append((shard, copy[0], f"linked from {copy[1]}", "linked"))
        else:
            left.append(shard)
    for shard, path, _, _ in found:
        install.link(work.place, path, work.good(shard))
    for shard, _, how, way in found:
        work.install(shard, work.good(shard), how, way)
    return left


def _rounds(work: Work, recipes: Recipes, shards: Iterable[Built]) -> Iterator[list[Plan]]:
    some: list[Plan] = []
    samples = size_bytes = 0
    for shard in shards:
        rows = recipes.rows(shard)
        if rows is None:
            work.fail(shard, "no table tells which samples it held", REBUILD)
            continue
        seen = work.seen.get(work.path(shard))
        plan = Plan(shard, rows, seen.sound if seen is not None else [False] * len(rows))
        if plan.needed and work.origin.lacking:
            work.fail(shard, work.origin.lacking, CONFIGURE)
            continue
        some.append(plan)
        samples += len(plan.sound)
        size_bytes += shard.bytes
        if samples >= ROUND or size_bytes >= ROUND_BYTES:
            yield some
            some, samples, size_bytes = [], 0, 0
    if some:
        yield some


def _clear(place: Place, extras: Iterable[str], done: Sequence[Done]) -> Iterator[tuple[str, Path | None]]:
    """A name that is in no table goes where its content has its own name again, else moves away."""
    repaired = {install.inode(place.version / one.file) for one in done}
    for name in extras:
        path = place.version / name
        if install.is_file(path) and install.inode(path) in repaired:
            path.unlink()
            yield name, None
        elif os.path.lexists(path):
            yield name, install.set_aside(place, path, name)
