import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from tasks.core.charts import FRAME, Bars, Chart, Series, layout, layout_bars, tick_text, ticks
from tasks.core.pages import _environment, render


def chart(*series: Series, **changes: Any) -> Chart:
    return Chart(
        "Loss", "falls", "step", "loss", series or [Series("train", [(0, 4.0), (600, 1.0)])], **changes
    )


def draw(given: Chart) -> ElementTree.Element:
    """The figure as the page shows it, parsed."""
    macro = '{% from "core/parts.html" import figure %}{{ figure(chart) }}'
    return ElementTree.fromstring(_environment().from_string(macro).render(chart=given).strip())


def labels(figure: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in figure.iter("text")]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 600, [0, 200, 400, 600]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 4.16, [0, 1, 2, 3, 4, 5])],
)
def test_ticks_are_round_and_enclose_the_data(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, outside=True) == pytest.approx(expected)


def test_ticks_within_do_not_pass_the_ends() -> None:
    assert ticks(20, 610, outside=False) == [200, 400, 600]


@pytest.mark.parametrize(
    ("marks", "texts"),
    [
        ([0, 0.2, 0.4], ["0", "0.2", "0.4"]),
        ([0, 500, 1000], ["0", "500", "1,000"]),
        ([0, 20_000, 40_000], ["0", "20k", "40k"]),
        ([0, 5e-7, 1e-6], ["0", "5e-7", "1e-6"]),
        ([0, 1e300, 2e300], ["0", "1e300", "2e300"]),
        ([0, 5e5, 1e6, 1e7], ["0", "0.5M", "1.0M", "10.0M"]),
    ],
)
def test_tick_labels_tell_neighbours_apart(marks: list[float], texts: list[str]) -> None:
    assert [tick_text(value, marks) for value in marks] == texts


def test_the_line_spans_the_plot_and_falls_downwards() -> None:
    drawing = layout(chart())
    (start_x, start_y), (end_x, end_y) = [
        map(float, p.split()) for p in re.findall(r"[\d.]+ [\d.]+", drawing.shapes[0].line)
    ]
    assert (start_x, end_x) == (FRAME.left, FRAME.right)
    assert FRAME.top <= start_y < end_y <= FRAME.bottom


def test_a_missing_value_breaks_the_line() -> None:
    points = [(0, 1.0), (1, None), (2, 1.0), (3, 2.0)]
    assert layout(chart(Series("train", points))).shapes[0].line.count("M") == 2


def test_one_point_and_equal_values_can_be_drawn() -> None:
    for points in ([(600, 0.5)], [(0, 0.0)], [(1, 3.0), (2, 3.0)], [(0, -1.0)]):
        drawing = layout(chart(Series("train", points, marked=True)))
        assert all(FRAME.top <= y <= FRAME.bottom for _, y, _ in drawing.shapes[0].marks)
        assert all(FRAME.left <= x <= FRAME.right for x, _, _ in drawing.shapes[0].marks)


def test_a_chart_without_a_value_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="Loss"):
        layout(chart(Series("train", [(0, None)])))


def test_the_figure_has_words_for_those_who_cannot_see_it_and_labels_its_axes() -> None:
    figure = draw(chart(y_unit="share", levels=[("guessing: 0.10", 0.1)]))
    svg = next(figure.iter("svg"))
    assert svg.get("role") == "img" and svg.get("aria-label") == "falls"
    assert {"step", "loss", "guessing: 0.10"} <= set(labels(figure))


def test_two_series_differ_without_colour_and_have_a_legend() -> None:
    figure = draw(
        chart(Series("train", [(0, 1.0), (1, 2.0)]), Series("val", [(0, 1.5), (1, 2.5)], marked=True))
    )
    legends = [span for span in figure.iter("span") if "legend" in (span.get("class") or "")]
    assert ["".join(span.itertext()).strip() for span in legends] == ["train", "val"]
    assert len(list(figure.iter("circle"))) == 3, "two marks and the one in the legend"


def test_intervals_are_bars_of_marks_and_an_area_behind_a_line() -> None:
    intervals = [(0.0, 0.5, 1.5), (1.0, 1.0, 3.0)]
    points = [(0, 1.0), (1, 2.0)]
    bars = layout(chart(Series("val", points, intervals, marked=True))).shapes[0]
    area = layout(chart(Series("train", points, intervals))).shapes[0]
    assert len(bars.bars) == 2 and not bars.area
    assert area.area.endswith("Z") and not area.bars


def test_hostile_labels_stay_text() -> None:
    figure = draw(
        chart(Series("<script>", [(0, 1.0), (1, 1.0)]), Series("b", [(0, 1.0)]), levels=[('"><script>', 0.5)])
    )
    assert not list(figure.iter("script")) and '"><script>' in labels(figure)


def bars(edges: list[float], heights: list[float], **options: object) -> Bars:
    names = [f"from {edge}" for edge in edges[:-1]]
    return Bars("Sides", "Sides of images", "pixels", "images", edges, heights, names, **options)  # type: ignore[arg-type]


def test_bars_fill_the_frame_in_proportion() -> None:
    drawing = layout_bars(bars([0, 10, 20, 40], [5, 10, 0]))
    first, second = drawing.columns
    assert second.height == pytest.approx(2 * first.height)
    assert second.y == FRAME.top and second.y + second.height == FRAME.bottom
    assert FRAME.left < first.x < second.x < (FRAME.left + FRAME.right) / 2
    assert first.text == "from 0: 5.00000"


def test_one_among_a_million_is_still_seen() -> None:
    rare, _ = layout_bars(bars([0, 1, 2], [1, 1_000_000])).columns
    assert rare.height >= 1


def test_a_bar_of_a_whole_number_is_marked_by_it_and_lines_outside_are_left_out() -> None:
    drawing = layout_bars(bars([0.5, 1.5, 2.5], [1, 2], is_whole=True, lines=[("limit", 2), ("far", 77)]))
    assert [text for _, text in drawing.x_ticks] == ["1", "2"] or [t for _, t in drawing.x_ticks] == [
        "1.0",
        "2.0",
    ]
    assert [label for _, label, _ in drawing.lines] == ["limit"]


def test_no_bars_are_no_chart() -> None:
    with pytest.raises(ValueError, match="has no bars"):
        layout_bars(bars([0], []))


def test_a_picture_of_its_own_names_many_series_below_and_is_readable_in_the_dark() -> None:
    many = [Series(f"run {number}", [(0, 1.0), (1, 2.0)], marked=True) for number in range(5)]
    few, tall = (ElementTree.fromstring(render("core/chart.svg", chart=chart(*many[:n]))) for n in (2, 5))
    names = [text.text for text in tall.iter("{http://www.w3.org/2000/svg}text")][-5:]
    assert names == [f"run {number}" for number in range(5)]
    assert float(tall.get("height", 0)) > float(few.get("height", 0)) == FRAME.height
    assert "prefers-color-scheme: dark" in ElementTree.tostring(tall, encoding="unicode")
