"""What the stage of the evaluations reports when all have ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tasks import evaluate, events
from tasks.core.errors import UsageError
from tasks.core.files import write_json
from tasks.core.schema import Evaluate
from tasks.evaluation import evaluators
from tasks.evaluation.results import EvaluationResult, write_result
from tasks.runs import record
from tests.supervision.fakes import make_config, make_run

FIGURES = {"zero_shot_top1": 0.82, "zero_shot_loss": 2.5}


@pytest.mark.parametrize(
    ("limits", "lines"),
    [
        ({"at_least": {"zero_shot_top1": 0.8}}, []),
        ({"at_least": {"zero_shot_top1": 0.82}, "at_most": {"zero_shot_loss": 2.5}}, []),
        ({"at_least": {"zero_shot_top1": 0.9}}, ["zero_shot_top1 0.820 is below 0.9 (evaluate.at_least)"]),
        ({"at_most": {"zero_shot_loss": 1}}, ["zero_shot_loss 2.50 is above 1 (evaluate.at_most)"]),
        ({"at_least": {"gone": 1}}, ["gone has no finite value (evaluate.at_least: 1)"]),
    ],
)
def test_a_metric_beyond_its_limit_is_named(limits: dict[str, Any], lines: list[str]) -> None:
    wanted = Evaluate.model_validate({"every": 10, "tasks": ["zero_shot"], **limits})
    assert evaluate.shortfalls(wanted, FIGURES) == lines


def test_a_limit_for_a_metric_that_no_task_gives_is_refused(tmp_path: Any) -> None:
    limit = {"at_least": {"zero_shot_top_1": 0.9}}
    config = make_config(tmp_path, evaluate={"every": 10, "tasks": ["zero_shot"], **limit})
    with pytest.raises(UsageError, match=r"evaluate\.at_least: no task .* did you mean zero_shot_top1\?"):
        evaluators.check_tasks(config)


def test_the_end_of_the_evaluations_is_an_event_with_their_metrics(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    emitted: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        events, "get_current_settings", lambda: SimpleNamespace(api=SimpleNamespace(url="http"))
    )
    monkeypatch.setattr(
        events, "emit_event", lambda name, **event: emitted.append((name, event.get("payload", {})))
    )
    asked = {"every": 10, "tasks": ["zero_shot"], "at_least": {"zero_shot_top1": 0.9}}
    run = make_run(tmp_path, evaluate=asked)
    config = record.load_record(run).name
    metrics = {"top1": 0.82, "loss": 2.5}
    versions = {"tarmac": "0"}
    done = EvaluationResult(
        task="zero_shot", step=40, checkpoint="", metrics=metrics, samples=9, seconds=1.0, versions=versions
    )
    write_result(run, done, [])
    write_json(run.eval_result(40), {"global_step": 40, "results": {**FIGURES, "zero_shot_nan": None}})
    evaluate._announce(run, config, "1 checkpoint, 1 of 1 results", [])
    (evaluated, first), (_, _), (made, asset), (short, second) = emitted
    assert made == "prefect.asset.materialization.succeeded" and asset["metrics"] == FIGURES
    assert (evaluated, short) == ("tarmac.run.evaluated", "tarmac.run.fell-short")
    assert (
        first["metrics"] == FIGURES and first["step"] == 40 and "Zero-shot accuracy 0.820" in first["cause"]
    )
    assert second["cause"] == "zero_shot_top1 0.820 is below 0.9 (evaluate.at_least)"
    assert second["cause"] in caplog.text
    emitted.clear()
    evaluate._announce(run, config, "1 checkpoint, 0 of 1 results", ["step 40 zero_shot: it was killed"])
    assert [(name, about["cause"]) for name, about in emitted] == [
        ("tarmac.run.failed", "1 evaluation without a result")
    ]
