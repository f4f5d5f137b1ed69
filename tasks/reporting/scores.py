"""What the evaluations of a run say: the figure that stands first, and each task over the steps.

Pure. The headline is the first task's first metric of the checkpoint that `checkpoints/best` names, because
that is the model a person takes along; without a result for it, of the last evaluated checkpoint. The choice
never looks at the headline's own metric, so that it is no maximum over noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    "auroc_mean": "Mean AUROC",
    "f1_mean": "Mean F1",
    "accuracy_mean": "Mean accuracy",
    "precision_mean": "Mean precision",
    "retrieval": "Retrieval",
    "vlm": "Questions about pictures",
    "exact_match": "Exact match",
    "validation_loss": "Validation loss",
    "loss": "Loss",
    "image_to_text_R@1": "Image to text, R@1",
    "image_to_text_R@5": "Image to text, R@5",
    "image_to_text_R@10": "Image to text, R@10",
    "image_to_text_median_rank": "Image to text, median rank",
    "text_to_image_R@1": "Text to image, R@1",
    "text_to_image_R@5": "Text to image, R@5",
    "text_to_image_R@10": "Text to image, R@10",
    "text_to_image_median_rank": "Text to image, median rank",
}
"""Words for names that a newcomer cannot know; any other name speaks for itself."""

TRAIN = "train"
MOST_BESIDE = 3
"""Metrics of a table that finds room beside a chart."""


@dataclass(frozen=True)
class Headline:
    """One metric of one checkpoint: what the whole run comes to."""

    title: str
    task: str
    metric: str
    value: float
    low: float | None
    high: float | None
    chance: float | None
    split: str
    samples: int
    step: int
    is_best: bool
    """Whether the checkpoint is the one `checkpoints/best` names."""

    def __str__(self) -> str:
        """`Zero-shot accuracy 0.957 (0.926 to 0.975 at 95 %; 270 held-out samples; chance 0.10)`."""
        around = "" if self.interval is None else f"{self.interval} at 95 %; "
        chance = f"; chance {number(self.chance, 2)}" if self.chance is not None else ""
        samples = f"{count(self.samples)} {self.sort_of_samples}"
        return f"{self.title} {number(self.value)} ({around}{samples}{chance})"

    @property
    def is_of_training(self) -> bool:
        """Whether the training saw the samples."""
        return self.split == TRAIN

    @property
    def sort_of_samples(self) -> str:
        if not self.split:
            return "samples"  # of data that another program brought
        return "samples that it was trained on" if self.is_of_training else "held-out samples"

    @property
    def names(self) -> int | None:
        """How many names a classifier chose from; None for a metric that is no share of right choices."""
        is_accuracy = self.task == "zero_shot" and self.metric == "top1"
        return round(1 / self.chance) if is_accuracy and self.chance else None

    @property
    def interval(self) -> str | None:
        """The 95 % interval as the page's tables show it."""
        return None if self.low is None or self.high is None else interval(self.low, self.high)


Cell = tuple[float | None, tuple[float | None, float | None]]
"""A figure and its interval, each None where there is none."""
BY_LABEL = (("auroc", "AUROC"), ("f1", "F1"), ("accuracy", "Accuracy"), ("precision", "Precision"))


@dataclass(frozen=True)
class LabelTable:
    """One result of a task that judges several labels, label by label."""

    step: int
    titles: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    """Each label with a cell for every title."""
    notes: Sequence[str]


@dataclass(frozen=True)
class TaskView:
    """One task over the evaluated checkpoints: a chart of its first metric, and all results by step."""

    task: str
    title: str
    metrics: Sequence[tuple[str, str]]
    """Name and title of each metric."""
    chart: Chart | None
    """None where no value is a finite number."""
    results: Sequence[EvaluationResult]
    labels: LabelTable | None = None
    """None for a task whose metrics are not by label."""

    @property
    def is_wide(self) -> bool:
        """Whether the table of all metrics takes the page's whole width."""
        return len(self.metrics) > MOST_BESIDE

    @property
    def samples(self) -> int | None:
        """How many samples each result judged; None when they differ."""
        numbers = {result.samples for result in self.results}
        return numbers.pop() if len(numbers) == 1 else None

    @property
    def is_of_training(self) -> bool:
        """Whether the training saw the samples."""
        return any(result.split == TRAIN for result in self.results)


def headline_of(
    results: Sequence[EvaluationResult], config: Config | None, best_step: int | None
) -> Headline | None:
    """The result a reader came for; None when no evaluation has one. Tasks in the order of the config."""
    asked = config.evaluate if config is not None else None
    tasks = [task.name for task in asked.tasks] if asked is not None else []
    for task in (*tasks, *sorted({result.task for result in results} - set(tasks))):
        found = _by_step(results, task)
        if found:
            chosen = next((result for result in found if result.step == best_step), found[-1])
            return _headline(chosen, chosen.step == best_step)
    return None


def task_views(results: Sequence[EvaluationResult], best_step: int | None = None) -> list[TaskView]:
    """A view a task that has at least one metric, in order of their names; labels as of the checkpoint of
    `best_step`, or else of the last."""
    views = []
    for task in sorted({result.task for result in results}):
        found = _by_step(results, task)
        if not found:
            continue
        metrics = list(dict.fromkeys(name for result in found for name in result.metrics))
        first = metrics[0]
        measured = [result for result in found if math.isfinite(result.metrics.get(first, math.nan))]
        scores = [Score(result.step, result.metrics[first], *_interval(result, first)) for result in measured]
        chart = evaluation_chart(title_of(first), scores, _chance(found[-1], first)) if scores else None
        chosen = next((result for result in found if result.step == best_step), found[-1])
        labels = _label_table(chosen)
        shown = [name for name in metrics if labels is None or name.endswith("_mean")]
        titles = [(name, title_of(name)) for name in shown]
        views.append(TaskView(task, title_of(task), titles, chart, found, labels))
    return views


def _label_table(result: EvaluationResult) -> LabelTable | None:
    """Of a result with a figure for each label beside the mean of all."""
    first = f"{BY_LABEL[0][0]}_"
    labels = [name.removeprefix(first) for name in result.metrics if name.startswith(first)]
    if "mean" not in labels:
        return None
    rows = [
        (label, [_cell(result, f"{metric}_{label}") for metric, _ in BY_LABEL])
        for label in labels
        if label != "mean"
    ]
    return LabelTable(result.step, [title for _, title in BY_LABEL], rows, result.notes)


def _cell(result: EvaluationResult, name: str) -> Cell:
    return result.metrics.get(name), _interval(result, name)


def title_of(name: str) -> str:
    """A task's or metric's name in words: `mean_per_class` -> `Mean accuracy per class`."""
    return TITLES.get(name) or name.replace("_", " ")


def _by_step(results: Sequence[EvaluationResult], task: str) -> list[EvaluationResult]:
    """The results of a task that hold a metric."""
    found = [result for result in results if result.task == task and result.metrics]
    return sorted(found, key=lambda result: result.step)


def _headline(result: EvaluationResult, is_best: bool) -> Headline:
    metric, value = next(iter(result.metrics.items()))
    low, high = _interval(result, metric)
    is_zero_shot = result.task == "zero_shot" and metric == "top1"
    return Headline(
        title="Zero-shot accuracy" if is_zero_shot else f"{title_of(result.task)}: {title_of(metric)}",
        task=result.task,
        metric=metric,
        value=value,
        low=low,
        high=high,
        chance=_chance(result, metric),
        split=result.split,
        samples=result.samples,
        step=result.step,
        is_best=is_best,
    )


def _interval(result: EvaluationResult, metric: str) -> tuple[float | None, float | None]:
    low, high = result.intervals.get(metric, (math.nan, math.nan))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)


def _chance(result: EvaluationResult, metric: str) -> float | None:
    return result.chance.get(metric)
