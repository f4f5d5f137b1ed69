"""Programs as evaluations: what they are given, and what is made of what they leave."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import TaskSpec
from tasks.evaluation import evaluators
from tasks.evaluation.contract import CheckpointLocation, EvaluationOutcome


class Subject:
    def place(self) -> CheckpointLocation:
        return CheckpointLocation(Path("/runs/a"), Path("/runs/a/checkpoints/step_00000005"), 5)


def evaluated(code: str, *arguments: str) -> EvaluationOutcome:
    task = TaskSpec(
        kind="command", command=[sys.executable, "-c", f"import json, os, sys\n{code}", *arguments]
    )
    return evaluators.load_evaluator(task).evaluate(Subject())  # type: ignore[arg-type]


def test_a_program_is_told_of_the_checkpoint_and_its_figures_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_ADDR", "node7")
    code = (
        "assert sys.argv[1:3] == ['/runs/a/checkpoints/step_00000005', 'run=/runs/a@5'], sys.argv\n"
        "assert 'RANK' not in os.environ and 'MASTER_ADDR' not in os.environ\n"
        "json.dump({'metrics': {'score': 0.5, 'tries': 3}, 'samples': 7}, open(sys.argv[3], 'w'))"
    )
    outcome = evaluated(code, "{checkpoint}", "run={run}@{step}", "{output}")
    assert outcome.metrics == {"score": 0.5, "tries": 3.0} and outcome.samples == 7
    plain = evaluated("json.dump({'score': 1}, open(sys.argv[1], 'w'))", "{output}")
    assert plain.metrics == {"score": 1.0}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("print('one'); print('no GPU'); sys.exit(3)", r"ended with exit code 3: one \| no GPU"),
        ("pass", r"wrote no \{output\}"),
        ("open(sys.argv[1], 'w').write('{')", "wrote no JSON"),
        ("json.dump([1], open(sys.argv[1], 'w'))", "wrote no object of numbers"),
        (
            "json.dump({'a': 'high'}, open(sys.argv[1], 'w'))",
            "wrote 'high' as 'a', which is not a finite number",
        ),
        ("json.dump({'a': float('nan')}, open(sys.argv[1], 'w'))", "wrote nan as 'a'"),
    ],
)
def test_a_program_that_leaves_no_figures_has_failed(code: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        evaluated(code, "{output}")


def test_a_program_that_is_not_there_is_a_mistake_of_the_config() -> None:
    task = TaskSpec(kind="command", command=["no-such-program"])
    with pytest.raises(UsageError, match="no-such-program cannot be started: No such file"):
        evaluators.load_evaluator(task).evaluate(Subject())  # type: ignore[arg-type]
