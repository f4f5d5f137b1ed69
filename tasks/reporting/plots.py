"""Turn rows of metrics and results of evaluations into charts and the figures beside them.

All functions are pure. A long run is drawn as the mean of neighbouring rows with an area from their lowest to
their highest value, so that a spike of one step stays visible among 10^5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasks.core.charts import Chart, Interval, Point, Series
from tasks.core.units import count, number, percent

MOST_POINTS = 150
"""The most points of a line; more cannot be distinguished at the width of a chart."""
MOST_MARKS = 12
"""Lines with at most so many points have a mark at each, so that a single point is visible and validation
differs from training."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """A summary of a run's metrics; a figure is None where no row has it."""

    last_step: int
    first_loss: float | None
    last_loss: float | None
    val_loss: float | None
    samples_per_s: float | None
    """The median over all rows."""
    waiting: float | None
    """The share of the training time spent waiting for data."""
    split: Mapping[str, float]
    """The shares of the other parts of a step, by name, where they were measured."""
    not_finite: int
    """The number of rows whose loss is not finite."""


@dataclass(frozen=True)
class Score:
    """One metric of one evaluation: `low` and `high` bound its 95 % interval, None where it has none."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


def summarize(rows: Sequence[Row]) -> Training | None:
    """Summarize a run; None when no row has a training step."""
    steps = [row["train/step"] for row in rows if _has(row, "train/step")]
    if not steps:
        return None
    losses, val_losses, speeds = (
        [y for _, y in _column(rows, key) if y is not None]
        for key in ("train/loss", "val/loss", "train/samples_per_s")
    )
    return Training(
        last_step=max(steps),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        val_loss=val_losses[-1] if val_losses else None,
        samples_per_s=statistics.median(speeds) if speeds else None,
        waiting=_share(rows, "train/data_wait"),
        split={name: share for name in PARTS if (share := _share_of_step(rows, name)) is not None},
        not_finite=sum(1 for row in rows if "train/loss" in row and not _has(row, "train/loss")),
    )


@dataclass(frozen=True)
class Panel:
    """A chart of some columns of the metrics, each with its label."""

    title: str
    y_label: str
    columns: Mapping[str, str]
    unit: Literal["number", "share"] = "number"


PARTS = ("forward", "backward", "update")
"""The parts of a step whose time is measured, in their order."""
PANELS = (
    Panel("Loss", "loss", {"train/loss": "training", "val/loss": "validation"}),
    Panel(
        "Student and teachers",
        "cross entropy",
        {
            "train/distillation": "the student's with the teachers",
            "train/teacher_entropy": "the teachers' own",
        },
    ),
    Panel("Learning rate", "learning rate", {"train/lr": "learning rate"}),
    Panel("Throughput", "samples/s", {"train/samples_per_s": "samples/s"}),
    Panel("Waiting for data", "share of time", {"train/data_wait": "share of time"}, "share"),
    Panel(
        "Time of a step",
        "seconds",
        {
            "train/forward_s": "forward",
            "train/backward_s": "backward",
            "train/update_s": "update",
        },
    ),
    Panel("Use of the device", "share of its peak", {"train/mfu": "share of its peak"}, "share"),
    Panel("Rows", "share of places", {"train/fill": "with a token"}, "share"),
)


def training_charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw one chart per panel; a panel without any value is left out."""
    return [chart for panel in PANELS if (chart := _chart(panel, rows)) is not None]


COMPARED = (
    Panel("Training loss", "loss", {"train/loss": ""}),
    Panel("Validation loss", "loss", {"val/loss": ""}),
    Panel("Learning rate", "learning rate", {"train/lr": ""}),
    Panel("Throughput", "samples/s", {"train/samples_per_s": ""}),
    Panel("Waiting for data", "share of time", {"train/data_wait": ""}, "share"),
)
"""The panels in which several runs have one line each."""


def compared_charts(rows_by_run: Mapping[str, Sequence[Row]]) -> list[Chart]:
    """Draw the curves of several runs, by name, on the same axes; a panel without any value is left out."""
    charts = []
    for panel in COMPARED:
        (key,) = panel.columns
        columns = {name: _column(rows, key) for name, rows in rows_by_run.items()}
        if any(y is not None for points in columns.values() for _, y in points):
            charts.append(_compared_chart(panel.title, panel.y_label, columns, panel.unit))
    return charts


def compared_scores_chart(title: str, metric: str, scores_by_run: Mapping[str, Sequence[Score]]) -> Chart:
    """Draw a metric, in words, of several runs, by name, over the steps at which each was evaluated."""
    columns = {
        name: [(score.step, score.value) for score in sorted(scores, key=lambda score: score.step)]
        for name, scores in scores_by_run.items()
    }
    values = [score.value for scores in scores_by_run.values() for score in scores]
    is_share = all(0 <= value <= 1 for value in values) and max(values) > LOW_SHARE
    chart = _compared_chart(title, metric[:1].lower() + metric[1:], columns)
    return replace(chart, y_high=1.0 if is_share else 0.0)


def _compared_chart(
    title: str,
    y_label: str,
    columns: Mapping[str, Sequence[Point]],
    unit: Literal["number", "share"] = "number",
) -> Chart:
    form = percent if unit == "share" else number
    series, ends, merged = [], [], 1
    for name, points in columns.items():
        means, _, chunk = thin(points)  # areas of several runs would hide each other
        merged = max(merged, chunk)
        series.append(Series(name, means, marked=len(means) <= MOST_MARKS))
        values = [(x, y) for x, y in points if y is not None]
        ends += [f"{name} {form(values[-1][1])} at step {count(values[-1][0])}"] if values else []
    return Chart(
        title=title,
        description=f"{title} of {len(series)} runs: {'; '.join(ends)}.",
        x_label="step",
        y_label=y_label,
        series=series,
        y_unit=unit,
        note=f"Lines: means of up to {merged} rows." if merged > 1 else "",
    )


def loss_chart(rows: Sequence[Row]) -> Chart | None:
    """Draw the first panel; None when no row has a loss."""
    return _chart(PANELS[0], rows)


LOW_SHARE = 0.2
"""Charts of shares up to this one have an axis of their own height, because an axis up to 1 would
show nothing."""


def evaluation_chart(title: str, scores: Sequence[Score], chance: float | None) -> Chart:
    """Draw a metric over the steps at which it was measured, with its intervals and the level of guessing."""
    scores = sorted(scores, key=lambda score: score.step)
    intervals = [(s.step, s.low, s.high) for s in scores if s.low is not None and s.high is not None]
    last = scores[-1]
    shares = all(0 <= s.value <= 1 for s in scores)
    highest = max(s.value if s.high is None else s.high for s in scores)
    description = f"{title}: {number(scores[0].value)} at step {count(scores[0].step)}"
    if len(scores) > 1:
        description += f", {number(last.value)} at step {count(last.step)}"
    return Chart(
        title=title,
        description=description + (f"; guessing gives {number(chance, 2)}." if chance is not None else "."),
        x_label="step",
        y_label=title[:1].lower() + title[1:],
        series=[Series(title, [(s.step, s.value) for s in scores], intervals, marked=True)],
        levels=[(f"guessing: {number(chance, 2)}", chance)] if chance is not None else [],
        y_high=1.0 if shares and highest > LOW_SHARE else 0.0,
        note="Bars: 95 % intervals." if intervals else "",
    )


def _chart(panel: Panel, rows: Sequence[Row]) -> Chart | None:
    form = percent if panel.unit == "share" else number
    series, described, merged = [], [], 1
    for key, label in panel.columns.items():
        points = _column(rows, key)
        values = [(x, y) for x, y in points if y is not None]
        if not values:
            continue
        (first, start), (last, end) = values[0], values[-1]
        described.append(f"{label} {form(start)} at step {count(first)}, {form(end)} at step {count(last)}")
        means, intervals, chunk = thin(points)
        merged = max(merged, chunk)
        series.append(Series(label, means, intervals, marked=len(means) <= MOST_MARKS))
    if not series:
        return None
    return Chart(
        title=panel.title,
        description=f"{panel.title}: {'; '.join(described)}.",
        x_label="step",
        y_label=panel.y_label,
        series=series,
        x_high=max(row["train/step"] for row in rows if _has(row, "train/step")),
        y_unit=panel.unit,
        note=f"Line: mean of {merged} rows; area: lowest to highest." if merged > 1 else "",
    )


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[list[Point], list[Interval], int]:
    """Return at most `most` points, each the mean of a chunk of neighbours, the lowest and highest value of
    each chunk, and the size of a chunk."""
    if len(points) <= most:
        return list(points), [], 1
    chunk = math.ceil(len(points) / most)
    means, intervals = list[Point](), list[Interval]()
    for start in range(0, len(points), chunk):
        part = points[start : start + chunk]
        middle = (part[0][0] + part[-1][0]) / 2
        values = [y for _, y in part if y is not None]
        means.append((middle, statistics.fmean(values) if values else None))
        if values:
            intervals.append((middle, min(values), max(values)))
    return means, intervals, chunk


def _column(rows: Sequence[Row], key: str) -> list[Point]:
    """Return the values of a key by training step; None where a row has the key without a finite value."""
    points = [
        (row["train/step"], row[key] if _has(row, key) else None)
        for row in rows
        if key in row and _has(row, "train/step")
    ]
    return sorted(points, key=lambda point: point[0])


def _share_of_step(rows: Sequence[Row], part: str) -> float | None:
    whole = [row for row in rows if _has(row, "train/step_s") and row["train/step_s"] > 0]
    shares = [
        {**row, "share": row[f"train/{part}_s"] / row["train/step_s"]}
        for row in whole
        if _has(row, f"train/{part}_s")
    ]
    return _share(shares, "share")


def _share(rows: Sequence[Row], key: str) -> float | None:
    """Return the share over the whole run, in which each row is weighted by the time of its step."""
    timed = [
        (row[key], row["train/step_s"] if _has(row, "train/step_s") else 1.0)
        for row in rows
        if _has(row, key)
    ]
    whole = sum(seconds for _, seconds in timed)
    return sum(share * seconds for share, seconds in timed) / whole if whole > 0 else None


def _has(row: Row, key: str) -> bool:
    value = row.get(key)
    return isinstance(value, (int, float)) and math.isfinite(value)
