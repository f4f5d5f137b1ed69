"""Watches the rules of `evaluate.stop_when` for a run's agent, which polls often.

In a run that follows another trainer a rule only reports, because Tarmac cannot stop that trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.core.schema.training import StopRule
from tasks.evaluation.best import direction_of, figure_of
from tasks.evaluation.expected import expected_of
from tasks.evaluation.rules import MetricValue, finding_of_rule
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, read_metrics
from tasks.runs.run_findings import read_findings


class StopRules:
    """The rules of one run."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        self._run, self._config = run, config
        self._rules = config.evaluate.stop_when if config.evaluate is not None else []
        if run.followed.exists():
            self._rules = [rule.model_copy(update={"then": "report"}) for rule in self._rules]
        self._offset = 0
        self._rows: dict[str, dict[int, float]] = {
            rule.metric: {} for rule in self._rules if is_of_rows(rule.metric)
        }
        self._seen: tuple[int, int] | None = None
        self._after: dict[str, int] | None = None
        """By rule, the step at which it was met last; None before that is known."""

    def look(self, evaluated: int) -> Iterator[tuple[StopRule, Finding]]:
        """Yield each rule that is newly met; `evaluated` is how often results have changed."""
        if not self._rules:
            return
        self._read_rows()
        seen = (evaluated, self._offset if self._rows else 0)
        if seen == self._seen:
            return
        self._seen = seen
        met = self._met_before()
        for rule in self._rules:
            mode = rule.mode or direction_of(self._config, rule.metric)
            found = finding_of_rule(rule, self._values(rule.metric), mode, met.get(_name(rule)))
            if found is not None:
                met[_name(rule)] = int(found.where["step"])
                yield rule, replace(found, evidence={**found.evidence, "rule": _name(rule)})

    def _met_before(self) -> dict[str, int]:
        if self._after is None:
            lines = [line for line in read_findings(self._run) if line.get("by") == "scores"]
            self._after = {
                str(line["evidence"]["rule"]): int(line["where"]["step"])
                for line in lines
                if "rule" in (line.get("evidence") or {})
            }
        return self._after

    def _read_rows(self) -> None:
        if not self._rows:
            return
        rows, self._offset = read_metrics(self._run.metrics, self._offset)
        for row in rows:
            for metric, values in self._rows.items():
                if metric in row and TRAIN_AXIS in row:
                    value = row[metric]
                    values[int(row[TRAIN_AXIS])] = math.nan if value is None else float(value)

    def _values(self, metric: str) -> Sequence[MetricValue]:
        if metric in self._rows:
            return [MetricValue(*one) for one in sorted(self._rows[metric].items())]
        steps = dict.fromkeys(step for step, _ in expected_of(self._run, self._config))
        found = ((step, figure_of(self._run, step, metric)) for step in steps)
        return [MetricValue(step, value) for step, value in found if value is not None]


def is_of_rows(metric: str) -> bool:
    """Whether a metric is a key of `metrics.jsonl` rather than one of the evaluations'."""
    return "/" in metric


def _name(rule: StopRule) -> str:
    """The rule in words that stay the same over attempts."""
    limits = {"no better for": rule.no_better_for, "below": rule.below, "above": rule.above}
    words = [f"{word} {value:g}" for word, value in limits.items() if value is not None]
    return f"{rule.metric} {words[0]}"
