"""The results of a run's evaluations: the headline figure, and each task over the steps.

All functions are pure. The headline is the first metric of the first task for the checkpoint that
`checkpoints/best` names, because users take that model; without a result for it, for the last evaluated
checkpoint. The choice never depends on the headline's own metric, so that it is no maximum over noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tasks.core.charts import Chart
from tasks.core.schema import Config
from tasks.core.units import count, interval, number
from tasks.evaluation.results import EvaluationResult
from tasks.reporting.plots import Score, evaluation_chart

TITLES = {
    "zero_shot": "Zero-shot classification",
    "top1": "Accuracy",
    "top5": "Top-5 accuracy",
    "mean_per_class": "Mean accuracy per class",
    "multilabel": "Findings",
    "linear_probe": "Findings by a linear probe",
    "auroc_mean": "Mean AUROC",
    "f1_mean": "Mean F1",
    "accuracy_mean": "Mean accuracy",
    "precision_mean": "Mean precision",
    "retrieval": "Retrieval",
    "vlm": "Questions about pictures",
    "exact_match": "Exact match",
    "validation_loss": "Validation loss",
    "loss": "Loss",
    "image_to_text_median_rank": "Image to text, median rank",
    "text_to_image_median_rank": "Text to image, median rank",
    **{f"image_to_text_R@{within}": f"Image to text, R@{within}" for within in (1, 5, 10)},
    **{f"text_to_image_R@{within}": f"Text to image, R@{within}" for within in (1, 5, 10)},
}
"""Titles for names that a newcomer cannot know; any other name is shown as it is."""

TRAIN = "train"
MOST_BESIDE = 3
"""The most metrics of a table beside a chart."""


@dataclass(frozen=True)
class Headline:
    """The first metric of one result, as the figure for the whole run."""

    result: EvaluationResult
    is_best: bool
    """Whether the checkpoint is the one that `checkpoints/best` names."""

    def __str__(self) -> str:
        """Format it like `Zero-shot accuracy 0.957 (0.926 to 0.975 at 95 %; 270 held-out samples;
        chance 0.10)`."""
        around = "" if self.interval is None else f"{self.interval} at 95 %; "
        chance = f"; chance {number(self.chance, 2)}" if self.chance is not None else ""
        samples = f"{count(self.result.samples)} {self.sort_of_samples}"
        return f"{self.title} {number(self.value)} ({around}{samples}{chance})"

    @property
    def metric(self) -> str:
        return next(iter(self.result.metrics))

    @property
    def value(self) -> float:
        return self.result.metrics[self.metric]

    @property
    def chance(self) -> float | None:
        return self.result.chance.get(self.metric)

    @property
    def title(self) -> str:
        if self._is_accuracy:
            return "Zero-shot accuracy"
        return f"{title_of(self.result.task)}: {title_of(self.metric)}"

    @property
    def is_of_training(self) -> bool:
        """Whether the training used the samples."""
        return self.result.split == TRAIN

    @property
    def sort_of_samples(self) -> str:
        if not self.result.split:
            return "samples"  # data of another program
        return "samples that it was trained on" if self.is_of_training else "held-out samples"

    @property
    def names(self) -> int | None:
        """How many names a classifier chose from; None for a metric that is no share of right choices."""
        return round(1 / self.chance) if self._is_accuracy and self.chance else None

    @property
    def interval(self) -> str | None:
        """The 95 % interval as the page's tables show it."""
        low, high = _interval(self.result, self.metric)
        return None if low is None or high is None else interval(low, high)

    @property
    def _is_accuracy(self) -> bool:
        return self.result.task == "zero_shot" and self.metric == "top1"


Cell = tuple[float | None, tuple[float | None, float | None]]
"""A figure and its interval, each None where there is none."""
BY_LABEL = (("auroc", "AUROC"), ("f1", "F1"), ("accuracy", "Accuracy"), ("precision", "Precision"))


@dataclass(frozen=True)
class LabelTable:
    """One result of a task with several labels, label by label."""

    step: int
    titles: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    """One row per label, with a cell for every title."""
    samples: Mapping[str, int]
    """The number of samples in which each label is known; empty for a result of an earlier Tarmac."""
    notes: Sequence[str]


@dataclass(frozen=True)
class TaskView:
    """One task over the evaluated checkpoints: a chart of its first metric, and all results by step."""

    task: str
    title: str
    metrics: Sequence[tuple[str, str]]
    """The name and title of each metric."""
    chart: Chart | None
    """None where no value is a finite number."""
    results: Sequence[EvaluationResult]
    labels: LabelTable | None = None
    """None for a task whose metrics are not by label."""

    @property
    def is_wide(self) -> bool:
        """Whether the table of all metrics takes the full width of the page."""
        return len(self.metrics) > MOST_BESIDE

    @property
    def samples(self) -> int | None:
        """The number of samples of each result; None when they differ."""
        numbers = {result.samples for result in self.results}
        return numbers.pop() if len(numbers) == 1 else None

    @property
    def is_of_training(self) -> bool:
        """Whether the training used the samples."""
        return any(result.split == TRAIN for result in self.results)


def headline_of(
    results: Sequence[EvaluationResult], config: Config | None, best_step: int | None
) -> Headline | None:
    """Choose the headline, by the order of tasks in the config; None when no evaluation has a result."""
    asked = config.evaluate if config is not None else None
    tasks = [task.name for task in asked.tasks] if asked is not None else []
    for task in (*tasks, *sorted({result.task for result in results} - set(tasks))):
        found = _by_step(results, task)
        if found:
            chosen = next((result for result in found if result.step == best_step), found[-1])
            return Headline(chosen, chosen.step == best_step)
    return None


def task_views(results: Sequence[EvaluationResult], best_step: int | None = None) -> list[TaskView]:
    """Return one view per task with at least one metric, ordered by name; labels are those of the checkpoint
    of `best_step`, or else of the last. Charts of one metric say whose they are."""
    by_task = {task: _by_step(results, task) for task in sorted({result.task for result in results})}
    firsts = [next(iter(found[0].metrics)) for found in by_task.values() if found]
    views = []
    for task, found in by_task.items():
        if not found:
            continue
        metrics = list(dict.fromkeys(name for result in found for name in result.metrics))
        first = metrics[0]
        measured = [result for result in found if math.isfinite(result.metrics.get(first, math.nan))]
        scores = [Score(result.step, result.metrics[first], *_interval(result, first)) for result in measured]
        chance = found[-1].chance.get(first)
        chart = evaluation_chart(title_of(first), scores, chance) if scores else None
        if chart is not None and firsts.count(first) > 1:
            chart = replace(chart, title=f"{title_of(task)}: {chart.title}")
        chosen = next((result for result in found if result.step == best_step), found[-1])
        labels = _label_table(chosen)
        shown = [name for name in metrics if labels is None or name.endswith("_mean")]
        titles = [(name, title_of(name)) for name in shown]
        views.append(TaskView(task, title_of(task), titles, chart, found, labels))
    return views


def _label_table(result: EvaluationResult) -> LabelTable | None:
    """Return the table of a result that has a figure for each label beside the mean of all."""
    first = f"{BY_LABEL[0][0]}_"
    labels = [name.removeprefix(first) for name in result.metrics if name.startswith(first)]
    if "mean" not in labels:
        return None
    rows: list[tuple[str, list[Cell]]] = []
    for label in labels:
        names = [f"{metric}_{label}" for metric, _ in BY_LABEL]
        cells = [(result.metrics.get(name), _interval(result, name)) for name in names]
        rows += [(label, cells)] if label != "mean" else []
    titles = [title for _, title in BY_LABEL]
    return LabelTable(result.step, titles, rows, result.samples_by_label, result.notes)


def title_of(name: str) -> str:
    """Return a task's or metric's name in words: `mean_per_class` becomes `Mean accuracy per class`."""
    return TITLES.get(name) or name.replace("_", " ")


def _by_step(results: Sequence[EvaluationResult], task: str) -> list[EvaluationResult]:
    """Return the results of a task that have a metric, by step."""
    found = [result for result in results if result.task == task and result.metrics]
    return sorted(found, key=lambda result: result.step)


def _interval(result: EvaluationResult, metric: str) -> tuple[float | None, float | None]:
    low, high = result.intervals.get(metric, (math.nan, math.nan))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
