from pathlib import Path
from typing import Any

import pytest

from tasks.core.schema import Config
from tasks.evaluation.results import EvaluationResult
from tasks.reporting.scores import headline_of, task_views, title_of
from tests.reporting.finished_run import make_config


def result(step: int, value: float, task: str = "zero_shot", **changes: Any) -> EvaluationResult:
    values = {
        "task": task, "step": step, "checkpoint": f"checkpoints/step_{step:08d}", "metrics": {"top1": value},
        "intervals": {"top1": (value - 0.03, value + 0.02)}, "chance": {"top1": 0.1}, "split": "val", "samples": 270,
        "seconds": 1.0, "versions": {},
    }  # fmt: skip
    return EvaluationResult(**{**values, **changes})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path, ["a"])


def test_the_headline_is_of_the_best_checkpoint_not_of_the_best_figure(config: Config) -> None:
    found = headline_of([result(200, 0.99), result(400, 0.95), result(600, 0.97)], config, best_step=400)
    assert found is not None and (found.result.step, found.value, found.is_best) == (400, 0.95, True)
    assert (
        str(found) == "Zero-shot accuracy 0.950 (0.920 to 0.970 at 95 %; 270 held-out samples; chance 0.10)"
    )
    assert found.names == 10


def test_the_interval_of_a_headline_is_the_one_of_the_table(config: Config) -> None:
    """Which of a share near 0 lies above it only: half of its width on both sides would be wrong."""
    nothing = result(400, 0.0, intervals={"top1": (0.0, 0.0493)}, samples=74)
    found = headline_of([nothing], config, best_step=400)
    assert str(found) == "Zero-shot accuracy 0 (0 to 0.0493 at 95 %; 74 held-out samples; chance 0.10)"


def test_samples_of_the_training_are_called_that(config: Config) -> None:
    found = headline_of([result(400, 0.95, split="train")], config, best_step=400)
    assert "; 270 samples that it was trained on; chance 0.10)" in str(found)
    assert [view.is_of_training for view in task_views([result(400, 0.95, split="train")])] == [True]


def test_without_a_result_for_the_best_checkpoint_the_last_one_speaks(config: Config) -> None:
    found = headline_of([result(400, 0.95), result(200, 0.99)], config, best_step=600)
    assert found is not None and (found.result.step, found.is_best) == (400, False)


def test_the_first_task_of_the_config_that_has_a_result_comes_first(config: Config) -> None:
    other = result(600, 0.5, task="a_retrieval", metrics={"recall_at_1": 0.5}, intervals={}, chance={})
    found = headline_of([other, result(600, 0.95)], config, None)
    assert found is not None and found.result.task == "zero_shot"
    alone = headline_of([other], config, None)
    assert alone is not None and alone.names is None
    assert str(alone) == "a retrieval: recall at 1 0.500 (270 held-out samples)"


def test_no_result_no_headline(config: Config) -> None:
    assert headline_of([], config, 600) is None and headline_of([], None, None) is None
    assert headline_of([result(600, 0.9, metrics={})], config, 600) is None


def test_a_view_a_task_with_its_chart_and_every_metric() -> None:
    second = result(400, 0.9, metrics={"top1": 0.9, "top5": 0.99}, samples=271)
    (view,) = task_views([second, result(200, 0.8)])
    assert view.chart is not None
    assert view.title == "Zero-shot classification" and view.chart.title == "Accuracy"
    assert view.metrics == [("top1", "Accuracy"), ("top5", "Top-5 accuracy")]
    assert [found.step for found in view.results] == [200, 400]
    assert view.chart.series[0].points == [(200, 0.8), (400, 0.9)]
    assert view.samples is None, "the results judged different numbers of samples"


def test_charts_of_one_metric_say_whose_they_are() -> None:
    views = task_views([result(200, 0.8), result(200, 0.6, task="old")])
    assert [view.chart.title for view in views if view.chart is not None] == [
        "old: Accuracy",
        "Zero-shot classification: Accuracy",
    ]


def test_a_value_that_is_not_finite_is_not_drawn() -> None:
    nan = float("nan")
    (view,) = task_views([result(200, nan), result(400, 0.9, intervals={"top1": (nan, nan)})])
    assert view.chart is not None and view.chart.series[0].points == [(400, 0.9)]
    assert not view.chart.series[0].intervals
    assert [view.chart for view in task_views([result(200, nan)])] == [None]


def test_names_that_nobody_worded_speak_for_themselves() -> None:
    assert title_of("multilabel_auroc_mean") == "multilabel auroc mean"
