"""A rule about a metric is met once, says why, and begins anew afterwards."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks.core.schema.judging import StopRule
from tasks.evaluation.rules import MetricValue, finding_of_rule


def met(values: list[float], after: int | None = None, mode: Any = "max", **rule: Any) -> str | None:
    history = [MetricValue(10 * number, value) for number, value in enumerate(values, 1)]
    found = finding_of_rule(StopRule(metric="m", **rule), history, mode, after)
    return None if found is None else str(found.evidence["what"])


@pytest.mark.parametrize(
    ("values", "mode", "is_met"),
    [
        ([0.1, 0.2, 0.3], "max", False),
        ([0.3, 0.2, 0.1], "max", True),
        ([0.1, 0.3, 0.3, 0.2], "max", True),
        ([0.3, 0.2], "max", False),
        ([0.3, 0.2, 0.1], "min", False),
        ([1.0, 1.2, 1.1], "min", True),
        ([0.3, math.nan, math.nan], "max", True),
        ([math.nan, math.nan, math.nan], "max", False),
    ],
)
def test_a_metric_that_is_no_better_for_two_values(values: list[float], mode: str, is_met: bool) -> None:
    assert (met(values, mode=mode, no_better_for=2) is not None) is is_met


def test_the_patience_begins_anew_after_the_rule_was_met() -> None:
    values = [0.3, 0.2, 0.1, 0.2]
    assert met(values[:3], no_better_for=2) is not None
    assert met(values, after=30, no_better_for=2) is None
    again = met([*values, 0.25], after=30, no_better_for=2)
    assert again == "m is no better than 0.300 at step 10 for 4 values, the last one 0.250 at step 50"


def test_a_limit_is_crossed_once() -> None:
    assert met([0.95, 0.85], below=0.9) == "m is 0.850, below 0.900, at step 20"
    assert met([0.95, 0.85, 0.8], after=20, below=0.9) is None
    assert met([0.95, 0.85, 0.8], below=0.9) == "m is 0.800, below 0.900, at step 30", "both came at once"
    assert met([0.95, 0.85, 0.95, 0.8], after=20, below=0.9) is not None
    assert met([5.0, 11.0], above=10) == "m is 11.0, above 10.0, at step 20"
    assert met([5.0, math.nan], above=10) == "m is not finite, at step 20"
    assert met([], below=1) is None


@pytest.mark.parametrize("rule", [{}, {"below": 1, "above": 2}, {"below": 1, "mode": "max"}])
def test_a_rule_without_one_condition_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no_better_for"):
        StopRule(metric="m", **rule)
