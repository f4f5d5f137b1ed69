import time

import pytest

from tasks.core.charts import layout
from tasks.reporting.plots import MOST_POINTS, Score, evaluation_chart, summarize, thin, training_charts


def row(step: int, **values: float | None) -> dict[str, object]:
    named = {f"train/{key}": value for key, value in values.items()}
    return {"uid": f"train/step:{step}:train", "train/step": step, **named}


ROWS = [
    row(10, loss=4.0, lr=1e-3, samples_per_s=100.0, data_wait=0.5, step_s=0.1, forward_s=0.02),
    row(20, loss=2.0, lr=5e-4, samples_per_s=300.0, data_wait=0.0, step_s=0.3),
    row(30, loss=1.0, lr=0.0, samples_per_s=200.0, data_wait=0.0, step_s=0.1),
    {"uid": "train/step:30:val", "train/step": 30, "val/loss": 1.5},
]


def test_the_figures_of_a_run() -> None:
    training = summarize(ROWS)
    assert training is not None
    assert (training.last_step, training.first_loss, training.last_loss, training.val_loss) == (
        30,
        4.0,
        1.0,
        1.5,
    )
    assert training.samples_per_s == 200.0
    assert training.waiting == pytest.approx(0.05 / 0.5), "a share weighs as much as its step took"
    assert training.split == {"forward": pytest.approx(0.2)}, "of the steps in which it was measured"
    assert training.not_finite == 0


def test_a_run_without_rows_has_no_figures_and_no_charts() -> None:
    assert summarize([]) is None and training_charts([]) == []


def test_one_chart_a_figure_with_the_validation_beside_the_training() -> None:
    charts = training_charts(ROWS)
    assert [chart.title for chart in charts] == [
        "Loss",
        "Learning rate",
        "Throughput",
        "Waiting for data",
        "Time of a step",
    ]
    assert [series.label for series in charts[0].series] == ["training", "validation"]
    assert "training 4.00 at step 10, 1.00 at step 30" in charts[0].description
    assert charts[3].y_unit == "share"
    for chart in charts:
        layout(chart)


def test_a_student_is_drawn_beside_its_teachers() -> None:
    rows = [
        row(10, loss=9.0, distillation=8.0, teacher_entropy=3.0),
        row(20, distillation=4.0, teacher_entropy=3.5),
    ]
    (chart,) = [chart for chart in training_charts(rows) if chart.title == "Student and teachers"]
    assert len(chart.series) == 2 and "4.00 at step 20" in chart.description


def test_rows_of_an_external_trainer_may_lack_anything() -> None:
    assert [chart.title for chart in training_charts([row(1, loss=2.0), {"uid": "x"}])] == ["Loss"]
    training = summarize([row(1, loss=2.0), {"uid": "x"}])
    assert training is not None and training.waiting is None and training.samples_per_s is None


def test_a_loss_that_is_not_finite_is_counted_and_breaks_the_line() -> None:
    rows = [row(1, loss=2.0), row(2, loss=None), row(3, loss=1.0)]
    training = summarize(rows)
    assert training is not None and training.not_finite == 1
    assert layout(training_charts(rows)[0]).shapes[0].line.count("M") == 2


def test_rows_out_of_order_are_drawn_by_step() -> None:
    (chart,) = training_charts([row(20, loss=1.0), row(10, loss=2.0)])
    assert chart.series[0].points == [(10, 2.0), (20, 1.0)]


def test_a_spike_of_one_step_survives_in_a_long_run() -> None:
    points = [(float(step), 1.0) for step in range(100_000)]
    points[54_321] = (54_321.0, 50.0)
    means, intervals, chunk = thin(points)
    assert len(means) <= MOST_POINTS and chunk > 600
    assert max(high for _, _, high in intervals) == 50.0 and min(low for _, low, _ in intervals) == 1.0


def test_a_short_run_is_drawn_as_it_is() -> None:
    points = [(float(step), float(step)) for step in range(MOST_POINTS)]
    assert thin(points) == (points, [], 1)


def test_a_hundred_thousand_rows_take_a_moment() -> None:
    rows = [
        row(step, loss=1.0, lr=1e-3, samples_per_s=10.0, data_wait=0.1, step_s=0.1)
        for step in range(1, 100_001)
    ]
    start = time.monotonic()
    charts = training_charts(rows)
    assert summarize(rows) is not None and time.monotonic() - start < 40
    assert all(len(series.points) <= MOST_POINTS for chart in charts for series in chart.series)
    assert "mean of 667 rows" in charts[0].note


def test_the_evaluation_shows_intervals_and_the_level_of_guessing() -> None:
    chart = evaluation_chart("Accuracy", [Score(400, 0.95, 0.92, 0.97), Score(200, 0.85, 0.80, 0.89)], 0.1)
    assert chart.series[0].points == [(200, 0.85), (400, 0.95)]
    assert chart.series[0].intervals == [(200, 0.80, 0.89), (400, 0.92, 0.97)]
    assert chart.levels == [("guessing: 0.10", 0.1)] and chart.y_high == 1.0
    assert "0.850 at step 200, 0.950 at step 400; guessing gives 0.10" in chart.description


def test_low_shares_have_an_axis_of_their_own_height() -> None:
    low = [Score(200, 0.004, 0.001, 0.01), Score(400, 0.02, 0.01, 0.04)]
    assert evaluation_chart("R@1", low, 0.0002).y_high == 0
    assert evaluation_chart("R@1", [*low, Score(600, 0.2, 0.18, 0.23)], 0.0002).y_high == 1.0


def test_an_evaluation_without_interval_or_chance() -> None:
    chart = evaluation_chart("perplexity", [Score(200, 12.5)], None)
    assert chart.levels == [] and chart.series[0].intervals == [] and chart.y_high == 0
    layout(chart)
