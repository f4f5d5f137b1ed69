"""What counts as lost by a fine-tuning: beyond noise, beyond chance, and to stay."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from tasks.core.findings import Finding
from tasks.evaluation import results
from tasks.evaluation.forgetting import forgotten
from tasks.evaluation.kinds.statistics import wilson_interval
from tasks.evaluation.results import EvaluationResult
from tasks.runs.folder import RunFolder
from tasks.runs.run_findings import doubts_about
from tasks.supervision.evaluating.forgetfulness import Forgetfulness
from tests.supervision.fakes import make_config

LAST = 300


def scored(
    step: int, right: int, samples: int = 200, task: str = "zero_shot", chance: float = 0.2
) -> EvaluationResult:
    return EvaluationResult(
        task=task,
        step=step,
        checkpoint="",
        metrics={"top1": right / samples, "top5": 1.0},
        intervals={"top1": wilson_interval(right, samples)},
        chance={} if math.isnan(chance) else {"top1": chance},
        samples=samples,
        seconds=1.0,
        versions={},
    )


def course(*right: int, **keys: float) -> list[Finding]:
    """What is found where the scores of steps 0, 100, … are these of 200."""
    return list(forgotten([scored(100 * n, one, **keys) for n, one in enumerate(right)], LAST))


@pytest.mark.parametrize(
    ("right", "is_lost"),
    [
        ((190, 190, 188, 100), True),
        ((190, 100, 188, 190), False),
        ((190, 100, 100), True),
        ((190, 100), False),
        ((190, 190, 190, 182), False),
        ((44, 44, 44, 10), False),
        ((190,), False),
        ((100, 190, 190, 190), False),
    ],
    ids=[
        "at the end",
        "for a while",
        "twice in a row",
        "once",
        "noise",
        "never known",
        "step 0 alone",
        "gained",
    ],
)
def test_what_is_lost(right: tuple[int, ...], is_lost: bool) -> None:
    assert len(course(*right)) == is_lost


def test_the_finding_has_the_figures_and_the_fix() -> None:
    (found,) = course(190, 190, 190, 110)
    assert (found.code, found.severity, found.where) == ("finetune.forgot", "warning", {"task": "zero_shot"})
    what = found.evidence["what"]
    assert "top1 was 0.950 (0.910 to 0.973) at step 0 and is 0.550 (0.481 to 0.617) at step 300" in what
    assert "53% of what the weights knew beyond chance (0.200) is lost" in what
    assert all(key in found.remedy for key in ("train.lr", "train.lora", "train.freeze", "train.data"))


def test_of_many_samples_a_small_loss_does_not_matter() -> None:
    found = [scored(step, right, 1_000_000) for step, right in ((0, 950_000), (300, 940_000))]
    assert found[1].intervals["top1"][1] < found[0].intervals["top1"][0]
    assert not list(forgotten(found, LAST))


def test_a_metric_without_chance_or_a_task_without_its_first_score_is_not_judged() -> None:
    assert not course(190, 100, 100, 100, chance=math.nan)
    assert not list(forgotten([scored(200, 190), scored(300, 100)], LAST))


def test_an_agent_reports_each_task_once(tmp_path: Path) -> None:
    tasks = ["zero_shot", {"kind": "zero_shot", "name": "old"}]
    config = make_config(
        tmp_path, train={"steps": 300}, evaluate={"every": 100, "start": True, "tasks": tasks}
    )
    run = RunFolder(tmp_path / "run")
    for task, rights in {"zero_shot": (100, 190, 190), "old": (190, 100, 100)}.items():
        for number, right in enumerate(rights):
            results.write_result(run, scored(100 * number, right, task=task), ())
    watch = Forgetfulness(run, config)
    (found,) = watch.look(1)
    assert found.where == {"task": "old"}
    assert not watch.look(1), "no evaluation has ended since"
    line = {**asdict(found), "by": "scores", "attempt": 1, "t": 0.0}
    run.findings.write_text(json.dumps(line) + "\n")
    assert not Forgetfulness(run, config).look(2), "another agent knows of it"
    assert [one.code for one in doubts_about(run)] == ["finetune.forgot"]
