"""Whether a version of the data has what a config's evaluations ask for, told before the training.

As few samples are read as tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.quarantine_file import Quarantined
from tasks.core.schema import Config, TableSource
from tasks.core.units import counted
from tasks.dataset.quarantine import rows
from tasks.dataset.sources import open_sources
from tasks.dataset.versions import read_manifest
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Members
from tasks.evaluation.zero_shot import ClassReader, ZeroShot
from tasks.loader.indexed import IndexedReader
from tasks.models.held_out import held_out, nothing_held_out
from tasks.runs.data import data_of, left_out_of

LOOKED_AT = 200
"""Samples that show what classes are called."""


def require_fit(config: Config, version: Path) -> None:
    """UsageError for a task of a split that the version lacks or that has too few samples, or whose samples
    the evaluation cannot judge, and for a best checkpoint by a label that they do not have."""
    splits = read_manifest(version).splits
    left_out = left_out_of(version, data_of(version)[0].version)
    metrics: list[str] = []
    for task in config.evaluate.tasks if config.evaluate is not None else ():
        evaluator = evaluators.load_evaluator(task)
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


def doubtful_classes(config: Config, version: Path | None) -> Iterator[str]:
    """A sentence for each zero-shot task whose classes are numbers that no caption holds, as in a table that
    lost the names of its classes. Without a version the first rows of the tables are asked."""
    for task in config.evaluate.tasks if config.evaluate is not None else ():
        evaluator = evaluators.load_evaluator(task)
        if not isinstance(evaluator, ZeroShot) or evaluator.classes is not None:
            continue
        with suppress(TarmacError, KeyError):  # what cannot be read shows elsewhere
            pairs = list(islice(_labels(config, version, evaluator), LOOKED_AT))
            are_numbers = bool(pairs) and all(label.isdecimal() for label, _ in pairs)
            if are_numbers and not any(label in caption.split() for label, caption in pairs):
                prompt = evaluator.templates[0].replace("{}", pairs[0][0])
                yield (
                    f"evaluate.tasks: {task.name}: the classes of {evaluator.label!r} are numbers that no "
                    f"caption holds, and “{prompt}” means nothing to the model; put the classes' names there"
                )


def _labels(config: Config, version: Path | None, task: ZeroShot) -> Iterator[tuple[str, str]]:
    """Label and caption of samples."""
    if version is not None:
        split = task.split or held_out(read_manifest(version).splits)
        label = ClassReader(task.label)
        for members in _samples(version, split, []) if split is not None else ():
            yield label(members), members["txt"].decode()
        return
    for source, opened in zip(config.dataset.all_sources, open_sources(config.dataset), strict=True):
        if isinstance(source, TableSource) and source.templates is None:
            for item in opened.items(next(iter(opened.containers()))):
                yield str(item.fields.get(task.label, "")), str(item.fields.get(source.caption, ""))


def _samples(version: Path, split: str, left_out: list[Quarantined]) -> Iterator[Members]:
    reader = IndexedReader(version, split, rows(version, split, left_out))
    for number in range(len(reader)):
        yield reader.read(number).members
