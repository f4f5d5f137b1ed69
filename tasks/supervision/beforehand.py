"""Checks before anything is built or started for a training: errors that would end it, and likely mistakes.

`plan`, `run`, `train` and the flows run the same checks, so that they agree. Each costs milliseconds, or one
question to the hub; found later, the error costs a build, a server and the measuring of a loader.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.config import reload
from tasks.core.errors import TarmacError, UsageError
from tasks.core.schema import Config, TableSource, Train
from tasks.dataset.building.check import fewer_than
from tasks.evaluation.evaluators import load_evaluator, tasks_of
from tasks.evaluation.fit import require_fit, require_held_out
from tasks.loader.settings import read_settings
from tasks.models import hub
from tasks.models.fetch import require_offered
from tasks.models.hub import Lack
from tasks.models.recipes import check_recipe
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.data import current_of, missing_shares, overfull, overfull_of
from tasks.runs.folder import list_runs
from tasks.runs.plan import locate
from tasks.runs.record import load_record

LOOKED_INTO = 5
"""The number of earlier runs that are searched for a pace."""
PACE = {
    *("recipe", "model", "batch_size", "micro_batch", "precision", "compile", "checkpointing"),
    *("pack", "lora", "freeze", "threads"),
}
"""The keys of the train block that decide how long a step takes."""


def require_startable(
    config: Config,
    version: Path | None,
    *,
    most: int | None = None,
    fresh: bool = False,
    asks_hub: bool = True,
) -> None:
    """Raise UsageError or DataError for evaluations or a batch that `version` does not serve, and for weights
    that the training starts from and cannot have.

    Where the version is yet to be built, it has `most` samples at most; unless that is given, as many
    samples as a batch takes are listed. The hub is asked
    for weights that would be downloaded, unless the training runs elsewhere.
    """
    batch = None
    if version is not None:
        require_fit(config, version)
        batch = overfull(config, version)
    else:
        require_held_out(config)
    train = config.train
    if version is None and train is not None and len(train.data or ()) < 2:
        most = fewer_than(config.dataset, train.batch_size) if most is None else most
        batch = None if most is None else overfull_of(train, most, "samples that there are")
    if batch is not None and batch.is_wrong:
        raise UsageError(f"train.batch_size: {batch.problem}; {batch.remedy}")
    missing = _missing(config, version, fresh)
    for lack in missing:
        if lack.is_certain:
            raise UsageError(_in_words(lack))
    if missing and asks_hub and config.engine.train.kind == "local":
        require_offered([lack.need for lack in missing], config.runs)


def lacking_weights(config: Config, version: Path | None) -> list[str]:
    """Return what a training of the config has to download first, in a sentence each that begins with the
    key."""
    return [_in_words(lack) for lack in _missing(config, version, fresh=False) if not lack.is_certain]


@dataclass(frozen=True)
class KnownPace:
    """How many samples (or packed rows) per second a training like the config's gets on this machine, and
    the run that has shown it."""

    per_s: float
    unit: str
    run: str


def known_pace(config: Config, train: Train) -> KnownPace | None:
    """Return the pace by what was measured for the newest run of the config on this machine that took the
    same steps, however many; None where there is none."""
    runs = [run for run in list_runs(config.runs) if run.name.startswith(f"{config.name}-")]
    runs = [run for run in runs if run.loader.exists()]
    for run in sorted(runs, key=lambda run: run.loader.stat().st_mtime, reverse=True)[:LOOKED_INTO]:
        with suppress(TarmacError, OSError):  # a damaged run is reported elsewhere
            found, attempts = read_settings(run.loader), load_record(run).attempts
            own = reload(run.config)
            is_here = bool(attempts) and attempts[-1].host == socket.gethostname()
            is_alike = own.train is not None and _steps_of(own.train) == _steps_of(train)
            given = [one.samples_per_s for one in found.measurements if one.workers == found.workers]
            if is_here and is_alike and found.taken_per_s and given:
                pace = found.reached_per_s or min(found.taken_per_s, max(given))
                return KnownPace(pace, found.unit, run.name)
    return None


def _steps_of(train: Train) -> dict[str, Any]:
    """Return what decides how long a step takes."""
    return train.model_dump(include=PACE)


def _missing(config: Config, version: Path | None, fresh: bool) -> list[Lack]:
    """Return what is missing on this machine, or changed since it was fetched.

    A run that has a checkpoint starts from that.
    """
    if config.train is None:
        return []
    if version is not None and not fresh and list_checkpoints(locate(config, version)):
        return []
    return list(hub.lacks(check_recipe(config.train).needs, hub.read_lock(config.runs)))


def _in_words(lack: Lack) -> str:
    return f"{lack.problem}; {lack.finding().remedy}"


def doubts(config: Config, version: Path) -> Iterator[str]:
    """Yield a sentence, which begins with the key, for each likely mistake; the training is done all the
    same.

    `config` is a resolved one. DataError for a version that has nothing to train on.
    """
    yield from doubts_of(config)
    if (batch := overfull(config, version)) is not None and not batch.is_wrong:  # else it is an error
        yield f"train.batch_size: {batch.problem}"


def doubts_of(config: Config) -> Iterator[str]:
    """Yield the doubts that show without any data; the one about the warm-up where the steps are known."""
    splits = config.dataset.splits
    tables = [source for source in config.dataset.all_sources if isinstance(source, TableSource)]
    shared = [table.image for table in tables if isinstance(table.key, list) and table.image in table.key]
    if shared and splits.shares and splits.group_by is None:
        yield (
            "dataset.splits: rows that share an image may come into different splits, and the model is "
            f"judged on what it was trained on; add group_by: {shared[0]}"
        )
    train = config.train
    if train is not None and train.steps is not None and train.warmup_steps >= train.steps:
        yield (
            f"train.warmup: all {train.steps:,} steps are among the {train.warmup_steps:,} of the warm-up, "
            "so the learning rate only rises"
        )
    for dataset in missing_shares(config):
        yield f"train.data: {dataset} holds no version of a dataset yet; build it before the training"
    for task in tasks_of(config):
        other = load_evaluator(task).dataset
        if other is not None and current_of(other) is None:
            yield (
                f"evaluate.tasks: {task.name}: dataset: {other} holds no version of a dataset yet; build it "
                "before the training"
            )
