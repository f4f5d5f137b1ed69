"""All planned shards through the engine, against the budget of rejects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.core.engines import map_groups
from tasks.core.progress import Progress
from tasks.core.schema import Config
from tasks.dataset.building.catalogue import NAME, reading
from tasks.dataset.building.convert import Conversion, content_digest, convert, converter_in
from tasks.dataset.building.rejects import Budget
from tasks.dataset.building.reuse import Known, KnownSidecars
from tasks.dataset.reasons import Reject

NOTE = "samples"
JOBS = "jobs"
REHASH_NOTE = "samples compared with their source"


def convert_all(
    config: Config,
    staging: Path,
    ordinals: Sequence[int],
    budget: Budget,
    done: int,
    total: int,
    progress: Progress,
) -> None:
    """Convert these leaves of the catalogue in `staging`; ends early once the budget is exceeded."""
    work = [Conversion(staging, ordinal) for ordinal in ordinals]

    def say(text: str) -> None:
        progress(done, total, f"{NOTE}; {text}")

    for result in map_groups(convert, work, config.engine, folder=staging / JOBS, say=say):
        done += result.samples
        progress(done, total, NOTE)
        budget.add(result.rejects)
        if budget.is_exceeded:
            return  # which ends the map: the shards in hand are finished, no more are begun


@dataclass(frozen=True, slots=True)
class Comparison:
    """A leaf that a version holds, to be compared with its source."""

    staging: Path
    ordinal: int
    known: Known


@dataclass(frozen=True, slots=True)
class Compared:
    ordinal: int
    samples: int
    is_same: bool


def rehashed(config: Config, staging: Path, known: Mapping[int, Known], progress: Progress) -> list[int]:
    """The known leaves whose raw samples have another content than when they were converted."""
    work = [Comparison(staging, ordinal, one) for ordinal, one in known.items()]
    total = sum(one.samples for one in known.values())
    done = 0
    changed = []
    for result in map_groups(compare, work, config.engine, folder=staging / JOBS):
        done += result.samples
        progress(done, total, REHASH_NOTE)
        if not result.is_same:
            changed.append(result.ordinal)
    return changed


def compare(task: Comparison) -> Compared:
    """Whether every sample of a leaf that was taken has its content still, and every reject has none."""
    table = KnownSidecars()[task.known]
    work = converter_in(task.staging)
    with reading(task.staging / NAME) as catalogue:
        entries = catalogue.entries(catalogue.leaf(task.ordinal))
    for entry, content in zip(entries, table.column("content").to_pylist(), strict=True):
        try:
            found = content_digest(entry, work.raw(entry))
        except Reject:
            found = None
        if found != content:
            return Compared(task.ordinal, len(entries), False)
    return Compared(task.ordinal, len(entries), True)
