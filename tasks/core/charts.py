"""Line and bar charts as SVG inside a page: the geometry is here, the drawing in `core/templates`.

A chart in the page's own colours follows light, dark and print, its text is text, and no plotting library is
imported. The price is a small vocabulary: lines, marks with intervals, levels; bars between edges, for a
histogram as well as a row of things. Series differ in dash and mark as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.core.units import number, percent


@dataclass(frozen=True)
class ChartFrame:
    """The chart's size and plot area in user units; labels fit the margins in larger type, too."""

    width: int = 520
    height: int = 280
    left: int = 66
    right: int = 504
    top: int = 36
    bottom: int = 228


FRAME = ChartFrame()
LEAST_GAP, MOST_GAP = 0.75, 6.0
"""Limits of the gap beside a bar, a twelfth of its width, in user units; narrow bars have none."""

Point = tuple[float, float | None]
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Series:
    """Points (x, y) in the order of x; a y of None breaks the line. `intervals` are (x, low, high)."""

    label: str
    points: Sequence[Point]
    intervals: Sequence[Interval] = ()
    marked: bool = False
    """A mark at each point, and intervals as bars; otherwise they are an area behind the line."""


@dataclass(frozen=True)
class Chart:
    """A line chart, whose axes reach zero. `description` puts it into words, for those who cannot see it."""

    title: str
    description: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    levels: Sequence[tuple[str, float]] = ()
    """Horizontal lines with their labels."""
    x_high: float = 0.0
    y_high: float = 0.0
    """Values that the axes reach as well."""
    x_is_whole: bool = False
    """Only whole numbers are ticks of the x axis."""
    y_unit: Literal["number", "share"] = "number"
    note: str = ""
    """How to read it, where that is not obvious."""


@dataclass(frozen=True)
class Shape:
    """A series in user units: SVG paths, marks (x, y, text) and bars (x, low, high)."""

    label: str
    line: str
    area: str
    marks: Sequence[tuple[float, float, str]]
    bars: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Layout:
    """A chart in user units, ready to be drawn."""

    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    shapes: Sequence[Shape]
    levels: Sequence[tuple[float, str]]


def layout(chart: Chart) -> Layout:
    """Compute the positions of everything on a chart; raises ValueError if no point has a value."""
    places = [x for series in chart.series for x, y in series.points if y is not None]
    heights = [y for series in chart.series for _, y in series.points if y is not None]
    heights += [end for series in chart.series for _, *ends in series.intervals for end in ends]
    if not places:
        raise ValueError(f"the chart {chart.title!r} has no points")
    x_low, x_high = _range([*places, chart.x_high])
    heights += [value for _, value in chart.levels]
    y_marks = ticks(*_range([*heights, chart.y_high]), outside=True)
    y_low, y_high = y_marks[0], y_marks[-1]

    def to_x(value: float) -> float:
        return round(FRAME.left + (value - x_low) / (x_high - x_low) * (FRAME.right - FRAME.left), 1)

    def to_y(value: float) -> float:
        return round(FRAME.bottom - (value - y_low) / (y_high - y_low) * (FRAME.bottom - FRAME.top), 1)

    to_text = percent if chart.y_unit == "share" else number

    def shape(series: Series) -> Shape:
        marks = [
            (to_x(x), to_y(y), f"{chart.x_label} {number(x, 9)}: {to_text(y)}")
            for x, y in series.points
            if y is not None and series.marked
        ]
        bounds = [(to_x(x), to_y(low), to_y(high)) for x, low, high in series.intervals]
        line = _path([(to_x(x), None if y is None else to_y(y)) for x, y in series.points])
        around = [(x, high) for x, _, high in bounds] + [(x, low) for x, low, _ in reversed(bounds)]
        area = "" if series.marked or not bounds else _path(around) + "Z"
        return Shape(series.label, line, area, marks, bounds if series.marked else [])

    x_marks = [x for x in ticks(x_low, x_high, outside=False) if not chart.x_is_whole or _is_whole(x)]
    return Layout(
        x_ticks=[(to_x(value), tick_text(value, x_marks)) for value in x_marks],
        y_ticks=[(to_y(value), tick_text(value, y_marks, chart.y_unit)) for value in y_marks],
        shapes=[shape(series) for series in chart.series],
        levels=[(to_y(value), label) for label, value in chart.levels],
    )


def ticks(low: float, high: float, outside: bool, about: int = 5) -> list[float]:
    """Return values 1, 2 or 5 times a power of ten apart that lie in [low, high] or, `outside`, enclose
    it."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = low / step, high / step
    near = 1e-6
    start = math.floor(first + near) if outside else math.ceil(first - near)
    end = math.ceil(last - near) if outside else math.floor(last + near)
    return [index * step for index in range(start, end + 1)]


def tick_text(value: float, marks: Sequence[float], unit: Literal["number", "share"] = "number") -> str:
    """Return a tick's label with as many decimals as neighbours need to differ: `0.2`, `1,500`, `20k`,
    `5e-7`, `40 %`."""
    step = marks[1] - marks[0] if len(marks) > 1 else abs(value) or 1.0
    if unit == "share":
        return percent(value, _decimals(step * 100))
    largest = max(abs(marks[0]), abs(marks[-1]))
    if value == 0:
        return "0"
    if largest < 1e-3 or largest >= 1e15:
        return number(value, 2)
    for limit, suffix, factor in ((1e10, "G", 1e9), (1e7, "M", 1e6), (1e4, "k", 1e3)):
        if largest >= limit:
            return f"{value / factor:,.{_decimals(step / factor)}f}{suffix}"
    return f"{value:,.{_decimals(step)}f}"


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of the values and zero; it is never empty."""
    lowest, highest = min(0.0, *values), max(0.0, *values)
    return (lowest, highest) if highest > lowest else (0.0, 1.0)


def _path(points: Sequence[Point]) -> str:
    """SVG path data through the points, interrupted where a y is None."""
    parts = []
    pen_is_down = False
    for x, y in points:
        if y is not None:
            parts.append(f"{'L' if pen_is_down else 'M'}{x:g} {y:g}")
        pen_is_down = y is not None
    return "".join(parts)


@dataclass(frozen=True)
class Bars:
    """A bar chart: bar i reaches from `edges[i]` to `edges[i + 1]` and is `heights[i]` high.

    `description` puts it into words, for those who cannot see it. `lines` are vertical, with labels.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    edges: Sequence[float]
    heights: Sequence[float]
    names: Sequence[str]
    """The name of each bar in its tooltip."""
    lines: Sequence[tuple[str, float]] = ()
    note: str = ""
    is_whole: bool = False
    """Only whole numbers are ticks of the x axis."""


@dataclass(frozen=True)
class Bar:
    """A bar in user units, and its text."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class BarLayout:
    """Bars in user units, ready to be drawn."""

    bars: Bars
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    columns: Sequence[Bar]
    lines: Sequence[tuple[float, str, str]]
    """Place, label and text anchor (`start` or `end`, so that the label stays inside the frame)."""


def layout_bars(bars: Bars) -> BarLayout:
    """Compute the positions of all bars; raises ValueError if there are none or their edges do not rise."""
    edges, heights = bars.edges, bars.heights
    if not heights or len(edges) != len(heights) + 1 or edges[-1] <= edges[0]:
        raise ValueError(f"the chart {bars.title!r} has no bars")
    y_marks = ticks(0.0, max(max(heights), 1e-9), outside=True)
    span, wide = edges[-1] - edges[0], FRAME.right - FRAME.left

    def to_x(value: float) -> float:
        return round(FRAME.left + (value - edges[0]) / span * wide, 2)

    def to_y(value: float) -> float:
        return round(FRAME.bottom - value / y_marks[-1] * (FRAME.bottom - FRAME.top), 2)

    def column(index: int) -> Bar:
        start, end = to_x(edges[index]), to_x(edges[index + 1])
        gap = min(max((end - start) / 12, LEAST_GAP), MOST_GAP) if end - start > 4 * LEAST_GAP else 0.0
        top = to_y(heights[index])
        if heights[index] > 0:
            top = min(top, FRAME.bottom - 1.0)  # a bar above zero is visible
        text = f"{bars.names[index]}: {number(heights[index], 6)}"
        return Bar(start + gap, top, round(end - start - 2 * gap, 2), round(FRAME.bottom - top, 2), text)

    x_marks = ticks(edges[0], edges[-1], outside=False)
    if bars.is_whole:
        x_marks = [mark for mark in x_marks if _is_whole(mark)]
    inside = [(label, to_x(x)) for label, x in bars.lines if edges[0] <= x <= edges[-1]]
    middle = (FRAME.left + FRAME.right) / 2
    return BarLayout(
        bars,
        x_ticks=[(to_x(value), tick_text(value, x_marks)) for value in x_marks],
        y_ticks=[(to_y(value), tick_text(value, y_marks)) for value in y_marks],
        columns=[column(index) for index, height in enumerate(heights) if height],
        lines=[(x, label, "start" if x < middle else "end") for label, x in inside],
    )
