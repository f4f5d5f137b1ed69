"""The page of a comparison: the curves of all runs on the same axes, their scores, and what differs.

Apart from `tasks.reporting.comparison`, because a comparison in a terminal or for a program draws nothing.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.core.charts import Chart
from tasks.core.files import write_atomic
from tasks.core.pages import render
from tasks.core.units import count, duration, number, percent
from tasks.reporting.comparison import RunComparison
from tasks.reporting.differences import Difference
from tasks.reporting.plots import Score, compared_charts, compared_scores_chart
from tasks.reporting.scores import title_of


def write_page(compared: RunComparison, page: Path) -> None:
    """Write the page of a comparison; OSError where it cannot be written."""
    write_atomic(page, compose_page(compared, time.time()))


def default_page(compared: RunComparison, runs: Path) -> Path:
    """Return where a comparison's page lies unless another place is given: beside the runs."""
    ids = "-".join(run.run.id[:6] for run in compared.runs)
    return runs / f"compare-{ids}.html"


def compose_page(compared: RunComparison, written: float) -> str:
    """Render the page; `written` is the time in Unix seconds."""
    first = next((row for row in compared.scores if not row.is_detail), None)
    rows = {run.label: run.contents.rows for run in compared.runs}
    return render(
        "reporting/comparison.html",
        compared=compared,
        names=" and ".join(rows),
        first=first,
        training=training_figures(compared),
        training_charts=compared_charts(rows),
        score_charts=list(_score_charts(compared)),
        seed_titles=[f"{title_of(one.task)}: {title_of(one.metric)}" for one in compared.seeds],
        command=shlex.join(["tarmac", "compare", *(run.run.handle for run in compared.runs)]),
        written=written,
    )


def training_figures(compared: RunComparison) -> list[Difference]:
    """Return a row per figure of the trainings, as text for a reader."""
    runs = [(run, run.training) for run in compared.runs]
    columns = {
        "Steps": [count(each.last_step if each else None) for _, each in runs],
        "Training loss": [number(each.last_loss if each else None) for _, each in runs],
        "Validation loss": [number(each.val_loss if each else None) for _, each in runs],
        "Samples per second": [number(each.samples_per_s if each else None) for _, each in runs],
        "Time of a step": [duration(run.step_s) for run, _ in runs],
        "Waiting for data": [percent(each.waiting if each else None) for _, each in runs],
    }
    return [Difference(name, values) for name, values in columns.items()]


def _score_charts(compared: RunComparison) -> Iterator[Chart]:
    """Draw each metric of each task, without those of single labels, over the steps."""
    named = {(row.task, row.metric): row.title for row in compared.scores if not row.is_detail}
    for (task, metric), title in named.items():
        scores = {
            run.label: [
                Score(one.step, one.metrics[metric])
                for one in run.contents.results
                if one.task == task and math.isfinite(one.metrics.get(metric, math.nan))
            ]
            for run in compared.runs
        }
        if any(scores.values()):
            yield compared_scores_chart(title, title_of(metric), scores)
