"""Raw samples compared with what they were when they were converted, by content: what --rehash asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.core.engines import map_groups
from tasks.core.schema import Config
from tasks.core.screen import Progress
from tasks.dataset.build.catalogue import NAME, reading
from tasks.dataset.build.convert import content_digest, converter
from tasks.dataset.build.reuse import KnownShard, KnownSidecars
from tasks.dataset.build.staging import JOBS
from tasks.dataset.rejects import Reject

NOTE = "samples compared with their source"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A shard that a version holds, to be compared with its source."""

    staging: Path
    rules: str
    ordinal: int
    known: KnownShard


@dataclass(frozen=True, slots=True)
class Compared:
    ordinal: int
    samples: int
    is_same: bool


def changed_shards(
    config: Config, staging: Path, rules: str, known: Mapping[int, KnownShard], progress: Progress
) -> list[int]:
    """The known shards whose raw samples have another content than when they were converted."""
    work = [Comparison(staging, rules, ordinal, one) for ordinal, one in known.items()]
    total = sum(one.samples for one in known.values())
    done = 0
    changed = []
    for result in map_groups(compare, work, config.engine, folder=staging / JOBS):
        done += result.samples
        progress(done, total, NOTE)
        if not result.is_same:
            changed.append(result.ordinal)
    return changed


def compare(task: Comparison) -> Compared:
    """Whether every sample of a shard has the content that it had, or is rejected as it was."""
    table = KnownSidecars()[task.known]
    work = converter(task.staging, task.rules)
    with reading(task.staging / NAME) as catalogue:
        entries = catalogue.entries(catalogue.shard(task.ordinal))
    for entry, content in zip(entries, table.column("content").to_pylist(), strict=True):
        try:
            found = content_digest(entry, work.raw(entry))
        except Reject:
            found = None
        if found != content:
            return Compared(task.ordinal, len(entries), False)
    return Compared(task.ordinal, len(entries), True)
