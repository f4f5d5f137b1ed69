"""Bars stand where their numbers say, and what is there is seen."""

from __future__ import annotations

import pytest

from tasks.core.bars import Bars, draw
from tasks.core.charts import FRAME


def bars(edges: list[float], heights: list[float], **options: object) -> Bars:
    return Bars("Sides", "Sides of images", "pixels", "images", edges, heights, **options)  # type: ignore[arg-type]


def test_bars_fill_the_frame_in_proportion() -> None:
    drawing = draw(bars([0, 10, 20, 40], [5, 10, 0]))
    first, second = drawing.columns
    assert second.height == pytest.approx(2 * first.height)
    assert second.y == FRAME.top and second.y + second.height == FRAME.bottom
    assert FRAME.left < first.x < second.x < (FRAME.left + FRAME.right) / 2
    assert first.text == "0 to 10.00: 5.00000"


def test_one_among_a_million_is_still_seen() -> None:
    rare, _ = draw(bars([0, 1, 2], [1, 1_000_000])).columns
    assert rare.height >= 1


def test_a_bar_of_a_whole_number_is_marked_by_it_and_lines_outside_are_left_out() -> None:
    drawing = draw(bars([0.5, 1.5, 2.5], [1, 2], is_whole=True, lines=[("limit", 2), ("far", 77)]))
    assert [text for _, text in drawing.x_ticks] == ["1", "2"] or [t for _, t in drawing.x_ticks] == [
        "1.0",
        "2.0",
    ]
    assert [label for _, label, _ in drawing.lines] == ["limit"]


def test_no_bars_are_no_chart() -> None:
    with pytest.raises(ValueError, match="has no bars"):
        draw(bars([0], []))
