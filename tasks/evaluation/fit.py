"""Whether a version of the data has what a config's evaluations ask for, told before the training.

As few samples are read as tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tasks.core.errors import DataError, UsageError
from tasks.core.quarantine_file import Quarantined
from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.dataset.quarantine import rows
from tasks.dataset.versions import read_manifest
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Members
from tasks.loader.indexed import IndexedReader
from tasks.models.held_out import held_out, nothing_held_out
from tasks.runs.data import data_of, left_out_of


def require_fit(config: Config, version: Path) -> None:
    """UsageError for a task of a split that the version lacks or that has too few samples, or whose samples
    the evaluation cannot judge, and for a best checkpoint by a label that they do not have."""
    splits = read_manifest(version).splits
    left_out = left_out_of(version, data_of(version)[0].version)
    metrics: list[str] = []
    for task in config.evaluate.tasks if config.evaluate is not None else ():
        evaluator = evaluators.load(task)
        if not evaluator.judges_samples:
            metrics += evaluators.metrics_of(task)
            continue
        split = evaluator.split or held_out(splits)
        where = f"evaluate.tasks: {task.name}"
        if split is None:
            raise UsageError(f"{where}: {nothing_held_out(version, splits)}")
        if split not in splits:
            raise UsageError(f"{where}: split: {version} has no {split!r}; there are: {', '.join(splits)}")
        samples = splits[split].samples - sum(entry.split == split for entry in left_out)
        if samples < evaluator.least_samples:
            raise UsageError(
                f"{where}: split {split} of {version} has {counted(samples, 'sample')}, and {task.kind} "
                f"takes {evaluator.least_samples} and more; hold more out by dataset.splits"
            )
        with suppress(DataError):  # what cannot be read says nothing of labels, and shows elsewhere
            if problem := evaluator.problem(split, _samples(version, split, left_out)):
                raise UsageError(f"{where}: {problem}")
            metrics += evaluators.metrics_of(task, _samples(version, split, left_out))
            continue
        metrics += evaluators.metrics_of(task)
    evaluators.require_best(config, metrics)


def _samples(version: Path, split: str, left_out: list[Quarantined]) -> Iterator[Members]:
    reader = IndexedReader(version, split, rows(version, split, left_out))
    for number in range(len(reader)):
        yield reader.read(number).members
