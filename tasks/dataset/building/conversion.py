"""All planned shards through the engine, against the budget of rejects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.core.engines import map_groups
from tasks.core.progress import Progress
from tasks.core.schema import Config
from tasks.dataset.building.convert import Conversion, convert
from tasks.dataset.building.rejects import Budget

NOTE = "samples"
JOBS = "jobs"


def convert_all(
    config: Config,
    staging: Path,
    rules: str,
    ordinals: Sequence[int],
    budget: Budget,
    done: int,
    total: int,
    progress: Progress,
) -> None:
    """Convert these leaves of the catalogue in `staging`; ends early once the budget is exceeded."""
    work = [Conversion(staging, rules, ordinal) for ordinal in ordinals]

    def say(text: str) -> None:
        progress(done, total, f"{NOTE}; {text}")

    for result in map_groups(convert, work, config.engine, folder=staging / JOBS, say=say):
        done += result.samples
        progress(done, total, NOTE)
        budget.add(result.rejects)
        if budget.is_exceeded:
            return  # which ends the map: the shards in hand are finished, no more are begun
