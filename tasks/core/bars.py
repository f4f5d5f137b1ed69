"""Bar charts as SVG inside a page, beside the line charts of `tasks.core.charts` and in their frame.

Bars stand on edges, so they serve for a histogram (equal or unequal bins) as well as for a row of things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.core.charts import FRAME, tick_text, ticks
from tasks.core.formats import number

LEAST_GAP, MOST_GAP = 0.75, 6.0
"""Beside a bar, in user units: a twelfth of its width within these, none where it is narrower than four."""


@dataclass(frozen=True)
class Bars:
    """Bar i reaches from `edges[i]` to `edges[i + 1]` and is `heights[i]` high.

    `description` says in words what one sees, for those who cannot see it. `lines` are vertical, with labels.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    edges: Sequence[float]
    heights: Sequence[float]
    names: Sequence[str] = ()
    """What each bar is called when one points at it; its edges unless given."""
    lines: Sequence[tuple[str, float]] = ()
    note: str = ""
    is_whole: bool = False
    """Only whole numbers are marked along the bars."""


@dataclass(frozen=True)
class Column:
    """A bar in user units, and its text."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class Drawing:
    """Bars in user units, ready to be drawn."""

    bars: Bars
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    columns: Sequence[Column]
    lines: Sequence[tuple[float, str, str]]
    """Place, label, and the label's anchor: `start` or `end`, whichever leaves it inside the frame."""


def draw(bars: Bars) -> Drawing:
    """Places the bars; ValueError when there are none, or their edges do not rise."""
    edges, heights = bars.edges, bars.heights
    if not heights or len(edges) != len(heights) + 1 or edges[-1] <= edges[0]:
        raise ValueError(f"the chart {bars.title!r} has no bars")
    y_marks = ticks(0.0, max(max(heights), 1e-9), outside=True)
    span, wide = edges[-1] - edges[0], FRAME.right - FRAME.left

    def to_x(value: float) -> float:
        return round(FRAME.left + (value - edges[0]) / span * wide, 2)

    def to_y(value: float) -> float:
        return round(FRAME.bottom - value / y_marks[-1] * (FRAME.bottom - FRAME.top), 2)

    def column(index: int) -> Column:
        start, end = to_x(edges[index]), to_x(edges[index + 1])
        gap = min(max((end - start) / 12, LEAST_GAP), MOST_GAP) if end - start > 4 * LEAST_GAP else 0.0
        name = (
            bars.names[index] if bars.names else f"{number(edges[index], 4)} to {number(edges[index + 1], 4)}"
        )
        top = to_y(heights[index])
        if heights[index] > 0:
            top = min(top, FRAME.bottom - 1.0)  # what is there is seen
        text = f"{name}: {number(heights[index], 6)}"
        return Column(start + gap, top, round(end - start - 2 * gap, 2), round(FRAME.bottom - top, 2), text)

    x_marks = ticks(edges[0], edges[-1], outside=False)
    if bars.is_whole:
        x_marks = [mark for mark in x_marks if abs(mark - round(mark)) < 1e-6]
    inside = [(label, to_x(x)) for label, x in bars.lines if edges[0] <= x <= edges[-1]]
    middle = (FRAME.left + FRAME.right) / 2
    return Drawing(
        bars,
        x_ticks=[(to_x(value), tick_text(value, x_marks)) for value in x_marks],
        y_ticks=[(to_y(value), tick_text(value, y_marks)) for value in y_marks],
        columns=[column(index) for index, height in enumerate(heights) if height],
        lines=[(x, label, "start" if x < middle else "end") for label, x in inside],
    )
