"""From rows of metrics and results of evaluations to charts and to the figures that stand beside them.

Pure: values in, values out. A long run is drawn as the mean of neighbouring rows with an area from their
lowest to their highest value, so that a spike of one step stays visible among 10^5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.core.charts import Chart, Interval, Point, Series
from tasks.core.units import count, number, percent

MOST_POINTS = 150
"""Points a line may have; more cannot be told apart at the width of a chart."""
MOST_MARKS = 12
"""Points that get a mark each: few, so that one alone can be seen and validation differs from training."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """What a run's metrics say in a few figures; None where no row says it."""

    first_step: int
    last_step: int
    first_loss: float | None
    last_loss: float | None
    val_loss: float | None
    samples_per_s: float | None
    """The median over the rows."""
    waiting: float | None
    """Share of the training time spent waiting for data."""
    not_finite: int
    """Rows whose loss was not a finite number."""


@dataclass(frozen=True)
class Score:
    """One metric of one evaluation: `low` and `high` bound its 95 % interval, None where it has none."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


def summarize(rows: Sequence[Row]) -> Training | None:
    """The figures of a run; None when no row has a training step."""
    steps = [row["train/step"] for row in rows if _has(row, "train/step")]
    if not steps:
        return None
    losses = [y for _, y in _column(rows, "train/loss") if y is not None]
    val_losses = [y for _, y in _column(rows, "val/loss") if y is not None]
    speeds = [y for _, y in _column(rows, "train/samples_per_s") if y is not None]
    return Training(
        first_step=min(steps),
        last_step=max(steps),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        val_loss=val_losses[-1] if val_losses else None,
        samples_per_s=statistics.median(speeds) if speeds else None,
        waiting=_waiting(rows),
        not_finite=sum(1 for row in rows if "train/loss" in row and not _has(row, "train/loss")),
    )


@dataclass(frozen=True)
class Panel:
    """A chart of some columns of the metrics, each with its label."""

    title: str
    y_label: str
    columns: Mapping[str, str]
    unit: Literal["number", "share"] = "number"


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
)


def training_charts(rows: Sequence[Row]) -> list[Chart]:
    """One chart a panel; a panel without any value is left out."""
    charts = [_chart(panel, rows) for panel in PANELS]
    return [chart for chart in charts if chart is not None]


def loss_chart(rows: Sequence[Row]) -> Chart | None:
    """The first of them; None when no row has a loss."""
    return _chart(PANELS[0], rows)


LOW_SHARE = 0.2
"""Shares up to this one, of which an axis up to 1 would show nothing, have an axis of their own height."""


def evaluation_chart(title: str, scores: Sequence[Score], chance: float | None) -> Chart:
    """A metric over the steps at which it was measured, with its intervals and the level of guessing."""
    scores = sorted(scores, key=lambda score: score.step)
    intervals = [(s.step, s.low, s.high) for s in scores if s.low is not None and s.high is not None]
    last = scores[-1]
    shares = all(0 <= s.value <= 1 for s in scores)
    highest = max(s.value if s.high is None else s.high for s in scores)
    spoken = f"{title}: {number(scores[0].value)} at step {count(scores[0].step)}"
    if len(scores) > 1:
        spoken += f", {number(last.value)} at step {count(last.step)}"
    return Chart(
        title=title,
        description=spoken + (f"; guessing gives {number(chance, 2)}." if chance is not None else "."),
        x_label="step",
        y_label=title[:1].lower() + title[1:],
        series=[Series(title, [(s.step, s.value) for s in scores], intervals, marked=True)],
        levels=[(f"guessing: {number(chance, 2)}", chance)] if chance is not None else [],
        y_high=1.0 if shares and highest > LOW_SHARE else 0.0,
        note="Bars: 95 % intervals." if intervals else "",
    )


def _chart(panel: Panel, rows: Sequence[Row]) -> Chart | None:
    say = percent if panel.unit == "share" else number
    series, spoken, merged = [], [], 1
    for key, label in panel.columns.items():
        points = _column(rows, key)
        values = [(x, y) for x, y in points if y is not None]
        if not values:
            continue
        (first, start), (last, end) = values[0], values[-1]
        spoken.append(f"{label} {say(start)} at step {count(first)}, {say(end)} at step {count(last)}")
        means, intervals, chunk = thin(points)
        merged = max(merged, chunk)
        series.append(Series(label, means, intervals, marked=len(means) <= MOST_MARKS))
    if not series:
        return None
    return Chart(
        title=panel.title,
        description=f"{panel.title}: {'; '.join(spoken)}.",
        x_label="step",
        y_label=panel.y_label,
        series=series,
        x_high=max(row["train/step"] for row in rows if _has(row, "train/step")),
        y_unit=panel.unit,
        note=f"Line: mean of {merged} rows; area: lowest to highest." if merged > 1 else "",
    )


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[list[Point], list[Interval], int]:
    """At most `most` points, each a mean of neighbours, with their lowest and highest, and of how many."""
    if len(points) <= most:
        return list(points), [], 1
    chunk = math.ceil(len(points) / most)
    means: list[Point] = []
    intervals: list[Interval] = []
    for start in range(0, len(points), chunk):
        part = points[start : start + chunk]
        middle = (part[0][0] + part[-1][0]) / 2
        values = [y for _, y in part if y is not None]
        means.append((middle, statistics.fmean(values) if values else None))
        if values:
            intervals.append((middle, min(values), max(values)))
    return means, intervals, chunk


def _column(rows: Sequence[Row], key: str) -> list[Point]:
    """The values of a key by training step; None where a row has the key without a finite value."""
    points = [
        (row["train/step"], row[key] if _has(row, key) else None)
        for row in rows
        if key in row and _has(row, "train/step")
    ]
    return sorted(points, key=lambda point: point[0])


def _waiting(rows: Sequence[Row]) -> float | None:
    """The share over the whole run: each row's share weighs as much as its step took."""
    timed = [
        (row["train/data_wait"], row["train/step_s"] if _has(row, "train/step_s") else 1.0)
        for row in rows
        if _has(row, "train/data_wait")
    ]
    whole = sum(seconds for _, seconds in timed)
    return sum(share * seconds for share, seconds in timed) / whole if whole > 0 else None


def _has(row: Row, key: str) -> bool:
    value = row.get(key)
    return isinstance(value, (int, float)) and math.isfinite(value)
