"""The rules of `evaluate.stop_when`: whether a metric has stopped getting better, or has left its limits.

Pure, from the values of a metric to a finding. A rule that was met once begins anew after that: a training
that a person resumes gets its patience again, and a limit has to be crossed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from tasks.core.findings import Finding
from tasks.core.schema.judging import StopRule
from tasks.core.units import number

Mode = Literal["max", "min"]


class MetricValue(NamedTuple):
    """The value of a metric at a step; not finite where it was lost."""

    step: int
    value: float


def finding_of_rule(
    rule: StopRule, values: Sequence[MetricValue], mode: Mode, after: int | None
) -> Finding | None:
    """Return the finding where the rule is met by `values`, in the order of their steps; None where it is
    not. `mode` is the better direction, and `after` the step at which the rule was met before."""
    since = [one for one in values if after is None or one.step > after]
    if not since:
        return None
    newest = since[-1]
    if rule.no_better_for is not None:
        code, what = "score.plateau", _plateau(rule, values, len(since), mode)
    else:
        code, what = "score.limit", _limit(rule, values, after)
    if what is None:
        return None
    stops = rule.then == "stop"
    remedy = (
        "tarmac resume goes on with it; its best checkpoint is checkpoints/best" if stops else "look at it"
    )
    where = {"metric": rule.metric, "step": newest.step}
    return Finding(code, "warning", remedy, where=where, evidence={"what": what})


def _plateau(rule: StopRule, values: Sequence[MetricValue], fresh: int, mode: Mode) -> str | None:
    """Say since when the metric is no better; None where the best of all is newer than that, or the rule has
    not had so many values to judge by."""
    assert rule.no_better_for is not None
    finite = [one for one in values if math.isfinite(one.value)]
    if not finite or fresh < rule.no_better_for:
        return None
    sign = 1.0 if mode == "max" else -1.0
    best = max(finite, key=lambda one: (sign * one.value, -one.step))
    later = sum(1 for one in values if one.step > best.step)
    if later < rule.no_better_for:
        return None
    return (
        f"{rule.metric} is no better than {number(best.value)} at step {best.step:,} for {later} values, "
        f"the last one {number(values[-1].value)} at step {values[-1].step:,}"
    )


def _limit(rule: StopRule, values: Sequence[MetricValue], after: int | None) -> str | None:
    """Say that the newest value is beyond the limit; None where it is not, or has been so since before the
    step `after`."""
    newest = values[-1]
    out = list(takewhile(lambda one: _is_out(rule, one), reversed(values)))
    if not out or (after is not None and out[-1].step <= after):
        return None
    limit = f"below {number(rule.below)}" if rule.below is not None else f"above {number(rule.above)}"
    how = f"{number(newest.value)}, {limit}" if math.isfinite(newest.value) else "not finite"
    return f"{rule.metric} is {how}, at step {newest.step:,}"


def _is_out(rule: StopRule, one: MetricValue) -> bool:
    if not math.isfinite(one.value):
        return True
    if rule.below is not None:
        return one.value < rule.below
    return rule.above is not None and one.value > rule.above
