"""Check before the training whether a version of the data has what the config's evaluations need.

The checks read as few samples as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.quarantine_file import Quarantined
from tasks.core.schema import Config, TableSource, TaskSpec
from tasks.core.units import counted
from tasks.dataset.sources import open_sources
from tasks.dataset.version.quarantine import rows
from tasks.dataset.version.versions import read_manifest
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Evaluator, Members
from tasks.evaluation.kinds.zero_shot import ClassReader, ZeroShot
from tasks.loader.indexed import IndexedReader
from tasks.models import recipes
from tasks.models.held_out import held_out, nothing_held_out
from tasks.runs.data import current_of, data_of, left_out_of

LOOKED_AT = 200
"""How many samples are read to learn the names of classes."""


def require_fit(config: Config, version: Path) -> None:
    """Raise UsageError for a task that the version's splits and samples do not fit.

    That is a split that is missing or too small, samples that the evaluation cannot judge, or a best
    checkpoint by a label that they do not have.
    """
    metrics: list[str] = []
    for task in evaluators.tasks_of(config):
        evaluator = evaluators.load_evaluator(task)
        if evaluator.judges_samples:
            mine = _version_of(config, task.name, evaluator, version)
            left_out = left_out_of(mine, data_of(mine)[0].version)
            split = _split_of(evaluator, task, mine, left_out)
            with suppress(DataError):  # samples that cannot be read are reported elsewhere
                if problem := evaluator.problem(split, _samples(mine, split, left_out)):
                    raise UsageError(f"evaluate.tasks: {task.name}: {problem}")
                metrics += evaluators.metrics_of(task, _samples(mine, split, left_out))
                continue
        metrics += evaluators.metrics_of(task)
    evaluators.require_known(config, metrics)


def _version_of(config: Config, name: str, evaluator: Evaluator, own: Path) -> Path:
    """The version that the task evaluates on; UsageError where there is none, or the model takes no such
    samples."""
    if evaluator.dataset is None:
        return own
    where = f"evaluate.tasks: {name}: dataset: {evaluator.dataset}"
    found = current_of(evaluator.dataset)
    if found is None:
        raise UsageError(f"{where} holds no version of a dataset; build it first")
    modality = read_manifest(found).modality
    if config.train is not None and not recipes.check_recipe(config.train).takes(modality):
        raise UsageError(f"{where} is one of {modality}, which recipe {config.train.recipe} does not take")
    return found


def _split_of(evaluator: Evaluator, task: TaskSpec, version: Path, left_out: list[Quarantined]) -> str:
    """The split that the task evaluates; UsageError where that is missing or too small."""
    splits, where = read_manifest(version).splits, f"evaluate.tasks: {task.name}"
    split = evaluator.split or held_out(splits)
    if split is None:
        raise UsageError(f"{where}: {nothing_held_out(version, splits)}")
    if split not in splits:
        raise UsageError(f"{where}: split: {version} has no {split!r}; there are: {', '.join(splits)}")
    samples = splits[split].samples - sum(entry.split == split for entry in left_out)
    if samples < evaluator.least_samples:
        raise UsageError(
            f"{where}: split {split} of {version} has {counted(samples, 'sample')}, and {task.kind} "
            f"needs at least {evaluator.least_samples}; hold more out by dataset.splits"
        )
    further = evaluator.further_split
    if further == split:
        raise UsageError(f"{where}: needs two splits, and both are {split!r}; give another one")
    if further is not None and further not in splits:
        raise UsageError(f"{where}: {version} has no split {further!r}; there are: {', '.join(splits)}")
    return split


def require_held_out(config: Config) -> None:
    """Raise UsageError for a task whose split a build by `dataset.splits` does not make. A split that a
    column of the data names shows only in the version."""
    if config.dataset.splits.column is not None:
        return
    splits = ["train", *(name for name, share in config.dataset.splits.shares.items() if share > 0)]
    for task in evaluators.tasks_of(config):
        evaluator = evaluators.load_evaluator(task)
        if not evaluator.judges_samples or evaluator.dataset is not None:
            continue
        if (evaluator.split or held_out(splits)) in splits:
            continue
        if evaluator.split:
            problem = f"{task.kind} judges the split {evaluator.split}"
        elif len(splits) > 1:
            problem = "name the one to judge by split: NAME"
        else:
            problem = "hold a part out, such as by --set dataset.splits.val=0.1"
        made = f"dataset.splits makes {' and '.join(splits)}"
        raise UsageError(f"evaluate.tasks: {task.name}: {made}; {problem}")


def doubtful_classes(config: Config, version: Path | None) -> Iterator[str]:
    """Yield a warning for each zero-shot task whose classes are numbers that no caption contains, as in a
    table without the names of its classes. Without a version the first rows of the tables are read."""
    for task in evaluators.tasks_of(config):
        evaluator = evaluators.load_evaluator(task)
        if not isinstance(evaluator, ZeroShot) or evaluator.classes is not None:
            continue
        with suppress(TarmacError, KeyError):  # what cannot be read is reported elsewhere
            pairs = list(islice(_labels(config, version, evaluator), LOOKED_AT))
            are_numbers = bool(pairs) and all(label.isdecimal() for label, _ in pairs)
            if are_numbers and not any(label in caption.split() for label, caption in pairs):
                prompt = evaluator.templates[0].replace("{}", pairs[0][0])
                yield (
                    f"evaluate.tasks: {task.name}: the classes of {evaluator.label!r} are numbers that no "
                    f"caption contains, so “{prompt}” means nothing to the model; put the class names there"
                )


def _labels(config: Config, version: Path | None, task: ZeroShot) -> Iterator[tuple[str, str]]:
    """Yield label and caption of samples."""
    if task.dataset is not None:
        version = current_of(task.dataset)
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
