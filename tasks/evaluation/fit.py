"""Whether a version of the data has what a config's evaluations ask for, told before the training.

As few samples as tell are looked at: an evaluation needs its label on every sample, so any one shows a wrong
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tasks.core.errors import DataError, UsageError
from tasks.core.formats import counted
from tasks.core.quarantine import Entry
from tasks.core.schema import Config
from tasks.dataset.quarantine import rows
from tasks.dataset.versions import read_manifest
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Members
from tasks.evaluation.retrieval import Retrieval, pair_of
from tasks.evaluation.zero_shot import Label
from tasks.loader.decoders import decode_json
from tasks.loader.indexed import IndexedReader
from tasks.models.held_out import held_out, nothing_held_out
from tasks.runs.data import data_of
from tasks.runs.quarantine import of_dataset

MOST_NAMED = 10


def require_fit(config: Config, version: Path) -> None:
    """UsageError for a task of a split that the version lacks or that has too few samples, or of a label that
    its samples lack."""
    splits = read_manifest(version).splits
    left_out = of_dataset(version, data_of(version)[0].version)
    for task in config.evaluate.tasks if config.evaluate is not None else ():
        evaluator = evaluators.load(task)
        asked = evaluator.model_dump()
        split = asked.get("split") or held_out(splits)
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
        samples_of = _samples(version, split, left_out)
        if "label" in asked:
            _require_label(f"{where}: label", asked["label"], split, next(samples_of, None))
        if isinstance(evaluator, Retrieval):
            _require_difference(where, split, islice(samples_of, evaluator.samples))


def _require_label(where: str, label: str, split: str, members: Members | None) -> None:
    if members is None or Label(label)(members):
        return
    fields = decode_json(members.get("json", b"{}"))
    known = [name for name in fields if Label(name)(members)] if isinstance(fields, dict) else []
    raise UsageError(
        f"{where}: the samples of split {split} have no {label!r} in their json member; there are: "
        f"{', '.join(known[:MOST_NAMED]) or 'none'}{', …' if len(known) > MOST_NAMED else ''}"
    )


def _require_difference(where: str, split: str, samples: Iterable[Members]) -> None:
    """As a rule two samples are enough to tell; one without picture or caption shows elsewhere."""
    images, captions = set[str](), set[str]()
    for members in samples:
        try:
            digest, caption = pair_of(members).split(" ", 1)
        except (DataError, KeyError):
            return
        images.add(digest)
        captions.add(caption)
        if min(len(images), len(captions)) > 1:
            return
    for what, different in (("captions", captions), ("images", images)):
        if len(different) == 1:
            raise UsageError(
                f"{where}: all {what} of split {split} are the same, so there is nothing to tell apart; "
                "take it out of evaluate.tasks"
            )


def _samples(version: Path, split: str, left_out: list[Entry]) -> Iterator[Members]:
    """Up to the first that cannot be read, which says nothing of labels and shows elsewhere."""
    with suppress(DataError):
        reader = IndexedReader(version, split, rows(version, split, left_out))
        for number in range(len(reader)):
            yield reader.read(number).members
