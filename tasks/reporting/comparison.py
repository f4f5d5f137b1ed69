"""Compare runs from their folders: what differs between them, and how far their scores, losses and speeds
differ.

The first run is the reference. A difference of scores is judged sample by sample where both evaluations kept
what each sample contributed and were of the same samples; otherwise the two figures stand side by side, with
the reason. Nothing here shows a sample's key.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.errors import DataError, UsageError
from tasks.core.units import count, counted, number
from tasks.evaluation.evaluators import is_better_low, tasks_of
from tasks.evaluation.paired import PairedDifference, paired_differences
from tasks.evaluation.results import EvaluationResult, full_name
from tasks.evaluation.samples import JudgedSamples, read_samples
from tasks.reporting.differences import (
    Difference,
    code_differences,
    config_differences,
    data_differences,
)
from tasks.reporting.evidence import RunContents, collect
from tasks.reporting.plots import Training, summarize
from tasks.reporting.scores import title_of
from tasks.runs.folder import RunFolder, find

MOST_RUNS = 8
"""As many curves can be distinguished on one chart."""
LEAST_SEEDS = 3
SAME = 1e-6
"""How far a metric may be from what its samples give, which are stored with all their digits."""


@dataclass(frozen=True)
class ScoreVerdict:
    """A run's score beside the reference's. `paired` has the difference with its interval, where both were of
    the same samples; else `reason` says why not."""

    difference: float | None
    is_better_low: bool
    is_share: bool
    paired: PairedDifference | None = None
    reason: str = ""

    def __str__(self) -> str:
        """Format it like `better by 0.8 points, 95 % interval 0.2 to 1.4`."""
        if self.difference is None:
            return self.reason
        if self.paired is None:
            return f"{self._amount(self.difference, sign='+')}, unpaired: {self.reason}"
        low, high = self.paired.low, self.paired.high
        if not self.paired.is_shown:
            around = f"95 % interval {self._number(low, sign='+')} to {self._number(high, sign='+')}"
            return f"no difference shown: {self._amount(self.difference, sign='+')}, {around}"
        low, high = (low, high) if low > 0 else (-high, -low)
        word = "better" if (self.paired.low > 0) != self.is_better_low else "worse"
        around = f"95 % interval {self._number(low)} to {self._number(high)}"
        return f"{word} by {self._amount(abs(self.difference))}, {around}"

    @property
    def tone(self) -> str:
        """How a page colours it: good, bad, or neither."""
        if self.paired is None or not self.paired.is_shown:
            return ""
        return "good" if (self.paired.low > 0) != self.is_better_low else "bad"

    def _amount(self, value: float, sign: str = "") -> str:
        return self._number(value, sign) + (" points" if self.is_share else "")

    def _number(self, value: float, sign: str = "") -> str:
        if not self.is_share:
            text = number(abs(value))
        else:
            text = f"{abs(value) * 100:.{1 if abs(value) >= 0.001 or value == 0 else 2}f}"
        return ("−" if value < 0 else sign if value > 0 else "") + text


@dataclass(frozen=True)
class ScoreRow:
    """One metric of one task, at the best or the last checkpoint of each run."""

    task: str
    metric: str
    at: str
    results: Sequence[EvaluationResult | None]
    """Of each run; None where it has none."""
    verdicts: Sequence[ScoreVerdict | None]
    """Of each run but the first; None where one of the two has no figure."""
    is_detail: bool
    """Whether it is the metric of one label, of which there may be dozens."""

    @property
    def title(self) -> str:
        return f"{title_of(self.task)}: {title_of(self.metric)}"

    @property
    def values(self) -> list[float | None]:
        return [None if one is None else one.metrics.get(self.metric) for one in self.results]


@dataclass(frozen=True)
class SeedSpread:
    """The scores of runs that differ in their seed alone."""

    runs: Sequence[str]
    task: str
    metric: str
    at: str
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation of one run."""
        return statistics.stdev(self.values)

    def __str__(self) -> str:
        low, high = number(min(self.values)), number(max(self.values))
        spread = f"standard deviation {number(self.deviation, 2)}, {low} to {high}"
        return f"mean {number(self.mean)}, {spread} ({counted(len(self.values), 'seed')})"


@dataclass(frozen=True)
class ComparedRun:
    """A run with the figures of its training, and its name in the comparison."""

    label: str
    contents: RunContents
    training: Training | None
    step_s: float | None
    """The median time of a step."""

    @property
    def run(self) -> RunFolder:
        return self.contents.run

    @property
    def recipe(self) -> str:
        config = self.contents.config
        return "" if config is None or config.train is None else config.train.recipe

    def result_at(self, task: str, at: str) -> EvaluationResult | None:
        """Return the task's result of the best checkpoint, or that of the last with one."""
        found = {one.step: one for one in self.contents.results if one.task == task and one.metrics}
        if at == LAST:
            return found[max(found)] if found else None
        best = self.contents.best_step
        return None if best is None else found.get(best)


BEST, LAST = "best", "last"


@dataclass(frozen=True)
class RunComparison:
    """All that a comparison found, for a terminal, a page and a program alike."""

    runs: Sequence[ComparedRun]
    config: Sequence[Difference]
    data: Sequence[Difference]
    code: Sequence[Difference]
    scores: Sequence[ScoreRow]
    seeds: Sequence[SeedSpread]
    notes: Sequence[str] = field(default=())


def find_runs(runs: Path, names: Sequence[str]) -> list[RunFolder]:
    """Return the runs of these names; UsageError for fewer than two, for one that is named twice, and for
    more than a chart can show."""
    if len(names) < 2:
        raise UsageError("RUN: a comparison needs two runs or more; tarmac status lists them")
    if len(names) > MOST_RUNS:
        raise UsageError(f"RUN: {len(names)} runs are too many for one chart; compare {MOST_RUNS} at most")
    found = [find(runs, name) for name in names]
    for place, run in enumerate(found):
        if run.path.resolve() in {other.path.resolve() for other in found[:place]}:
            raise UsageError(f"RUN: {run.name} is named twice; name another run to compare it with")
    return found


def compare_runs(folders: Sequence[RunFolder]) -> RunComparison:
    """Compare the runs with the first. DataError for a run that has neither a result nor a metric, or where
    runs of different recipes have no metric in common."""
    contents = [collect(folder) for folder in folders]
    labels = _labels(folders)
    runs = [
        ComparedRun(label, one, summarize(one.rows), _median(one.rows, "train/step_s"))
        for label, one in zip(labels, contents, strict=True)
    ]
    for run in runs:
        if run.training is None and not run.contents.results:
            raise DataError(
                f"{run.run.name} has neither a result of an evaluation nor a row of metrics yet, so there is "
                f"nothing to compare; see tarmac status"
            )
    scores = list(_score_rows(runs))
    recipes = list(dict.fromkeys(run.recipe for run in runs))
    if len(recipes) > 1 and not any(all(row.results) for row in scores):
        each = ", ".join(f"{run.run.name} ({run.recipe or 'no recipe'})" for run in runs)
        raise DataError(f"the runs are of different recipes and have no metric in common: {each}")
    return RunComparison(
        runs,
        config_differences(contents),
        data_differences(contents),
        code_differences(contents),
        scores,
        list(_spreads(runs, scores)),
        list(_notes(runs, scores)),
    )


def _labels(folders: Sequence[RunFolder]) -> list[str]:
    """Return names with as much of the id as tells the runs apart; the whole folder's name where even that
    does not."""
    for digits in range(4, 13):
        found = [f"{run.name.rpartition('-')[0] or run.name}-{run.id[:digits]}" for run in folders]
        if len(set(found)) == len(found):
            return found
    return [str(run.path) for run in folders]


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if isinstance(row.get(key), int | float) and math.isfinite(row[key])]
    return statistics.median(values) if values else None


def _score_rows(runs: Sequence[ComparedRun]) -> Iterator[ScoreRow]:
    """Yield the metrics of each task at the best checkpoints, and at the last where those are others."""
    config = runs[0].contents.config
    asked = [spec.name for spec in tasks_of(config)] if config is not None else []
    given = dict.fromkeys(one.task for run in runs for one in run.contents.results if one.metrics)
    for task in sorted(given, key=lambda name: asked.index(name) if name in asked else len(asked)):
        best, last = ([run.result_at(task, at) for run in runs] for at in (BEST, LAST))
        if not any(best):
            yield from _rows_at(runs, task, LAST, last)
        elif best == last:
            yield from _rows_at(runs, task, f"{BEST} and {LAST}", best)
        else:
            yield from _rows_at(runs, task, BEST, best)
            yield from _rows_at(runs, task, LAST, last)


def _rows_at(
    runs: Sequence[ComparedRun], task: str, at: str, results: Sequence[EvaluationResult | None]
) -> Iterator[ScoreRow]:
    names = list(dict.fromkeys(name for result in results if result is not None for name in result.metrics))
    judged = [
        "no result" if result is None else _samples_of(run, result)
        for run, result in zip(runs, results, strict=True)
    ]
    beside = [_verdicts(runs, task, results, judged, place, names) for place in range(1, len(runs))]
    by_label = any(name.endswith("_mean") for name in names)
    for name in names:
        is_detail = by_label and not name.endswith("_mean")
        yield ScoreRow(task, name, at, results, [verdicts.get(name) for verdicts in beside], is_detail)


def _samples_of(run: ComparedRun, result: EvaluationResult) -> JudgedSamples | str:
    """Return what each sample contributed to a result, or why that is not known."""
    path = run.run.judged_samples(result.step, result.task)
    judged = read_samples(path)
    where = f"step {count(result.step)} of {run.label}"
    if judged is None:
        state = "cannot be read" if path.exists() else "is missing"
        return f"the file of samples of {where} {state}"
    figures = judged.figures(np.ones((1, len(judged.keys))))
    for name, values in figures.items():
        if not math.isclose(values[0], result.metrics.get(name, math.nan), rel_tol=SAME, abs_tol=SAME):
            return f"the file of samples of {where} belongs to another result"
    return judged


def _verdicts(
    runs: Sequence[ComparedRun],
    task: str,
    results: Sequence[EvaluationResult | None],
    judged: Sequence[JudgedSamples | str],
    place: int,
    names: Sequence[str],
) -> dict[str, ScoreVerdict]:
    """Judge the metrics of one run beside the reference's."""
    first, other = results[0], results[place]
    if first is None or other is None:
        return {}
    both = [name for name in names if name in first.metrics and name in other.metrics]
    mine, its = judged[0], judged[place]
    found: Mapping[str, PairedDifference | str]
    if isinstance(mine, JudgedSamples) and isinstance(its, JudgedSamples):
        found = paired_differences(mine, its, both)
    else:
        found = dict.fromkeys(both, mine if isinstance(mine, str) else str(its))
    verdicts = {}
    for name in both:
        values = [result.metrics[name] for result in results if result is not None and name in result.metrics]
        is_low = _is_better_low(runs[0], task, name)
        is_share = not is_low and all(0 <= value <= 1 for value in values)
        difference = other.metrics[name] - first.metrics[name]
        plain = ScoreVerdict(difference if math.isfinite(difference) else None, is_low, is_share)
        one = found[name]
        verdicts[name] = (
            replace(plain, paired=one) if isinstance(one, PairedDifference) else replace(plain, reason=one)
        )
    return verdicts


def _is_better_low(run: ComparedRun, task: str, metric: str) -> bool:
    config = run.contents.config
    if config is None:
        return False
    name = full_name(task, metric)
    best = config.evaluate.best if config.evaluate is not None else None
    if best is not None and best.metric == name and best.mode is not None:
        return best.mode == "min"
    return is_better_low(tasks_of(config), name)


def _spreads(runs: Sequence[ComparedRun], scores: Sequence[ScoreRow]) -> Iterator[SeedSpread]:
    """Yield the spread of each score over at least LEAST_SEEDS runs that differ in their seed alone."""
    alike: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        record = run.contents.record
        if record is not None:
            fields = {key: value for key, value in record.identity.items() if key not in ("seed", "digest")}
            alike.setdefault(json.dumps(fields, sort_keys=True), []).append(place)
    for places in alike.values():
        if len(places) < LEAST_SEEDS:
            continue
        for row in scores:
            values = [row.values[place] for place in places]
            known = [value for value in values if value is not None and math.isfinite(value)]
            if len(known) == len(values) and not row.is_detail:
                yield SeedSpread([runs[place].label for place in places], row.task, row.metric, row.at, known)


def _notes(runs: Sequence[ComparedRun], scores: Sequence[ScoreRow]) -> Iterator[str]:
    """Yield what a reader has to know before the figures."""
    for run in runs:
        for file, why in run.contents.unreadable.items():
            yield f"{run.label}: {file} cannot be read: {why}"
        if not run.contents.results:
            yield f"{run.label} has no result of an evaluation, so only loss and speed are compared"
        if run.contents.record is None or not run.contents.record.attempts:
            yield f"{run.label} has no attempt on record, so its code and packages are unknown"
        if run.training is None:
            yield f"{run.label} has no metrics of its training"
    if len({run.recipe for run in runs}) > 1:
        yield "the recipes differ, so their losses do not compare"
    sizes = {run.contents.config.judged_at_once for run in runs if run.contents.config is not None}
    if len(sizes) > 1:
        each = " and ".join(count(size) for size in sorted(sizes))
        yield f"the validation loss is measured among {each} samples at once; a contrast among more is harder"
    yield from _task_notes(runs, list(dict.fromkeys(row.task for row in scores)))


def _task_notes(runs: Sequence[ComparedRun], tasks: Sequence[str]) -> Iterator[str]:
    """Yield for which tasks the runs were not evaluated alike."""
    for task in tasks:
        arguments = {json.dumps(_arguments(run, task), sort_keys=True) for run in runs}
        if len(arguments) > 1:
            yield f"{task} has other arguments in some of the runs, so its figures may not compare"
        codes = {
            one.versions.get("evaluator", "")
            for run in runs
            for one in run.contents.results
            if one.task == task
        }
        if len(codes) > 1:
            yield f"{task} was computed by different versions of the evaluator; evaluate the older run again"


def _arguments(run: ComparedRun, task: str) -> Any:
    config = run.contents.config
    found = [spec for spec in tasks_of(config) if spec.name == task] if config is not None else []
    return [{"kind": spec.kind, **spec.arguments, "dataset": None} for spec in found]
