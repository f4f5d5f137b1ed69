"""Watches the rules of `evaluate.stop_when` for a run's agent, which polls often.

In a run that follows another trainer a rule only reports, because Tarmac cannot stop that trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tasks.core.findings import Finding, finding_of
from tasks.core.schema import Config
from tasks.core.schema.judging import StopRule
from tasks.evaluation.best import direction_of, figure_of
from tasks.evaluation.expected import expected_of
from tasks.evaluation.rules import MetricValue, finding_of_rule
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, read_metrics
from tasks.runs.record import load_record
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
        self._met: dict[str, int] | None = None
        """By rule, the step at which it was met last; None before that is known."""
        self._disobeyed: dict[str, Finding] = {}
        """By rule, that it was met, where the agent was killed before its training had stopped."""

    def look(self, evaluated: int, *, trains: bool) -> Iterator[tuple[StopRule, Finding]]:
        """Yield each rule that is newly met, or that is still to stop a run which `trains`; `evaluated` is
        how often results have changed.

        What the caller fails to do about a rule is yielded again at the next look.
        """
        if not self._rules:
            return
        self._read_rows()
        seen = (evaluated, self._offset if self._rows else 0)
        if seen == self._seen:
            return
        met = self._met_before()
        for rule in self._rules:
            name = _name(rule)
            found = self._disobeyed.get(name) if trains and rule.then == "stop" else None
            if found is None and (new := self._newly_met(rule, met.get(name))) is not None:
                found = replace(new, evidence={**new.evidence, "rule": name})
            if found is not None:
                yield rule, found
                met[name] = int(found.where["step"])
                self._disobeyed.pop(name, None)
        self._seen = seen

    def _newly_met(self, rule: StopRule, after: int | None) -> Finding | None:
        mode = rule.mode or direction_of(self._config, rule.metric)
        return finding_of_rule(rule, self._values(rule.metric), mode, after)

    def _met_before(self) -> dict[str, int]:
        if self._met is None:
            attempts = load_record(self._run).attempts
            lost = {number for number, one in enumerate(attempts, 1) if one.outcome == "lost"}
            lines = [line for line in read_findings(self._run) if line.get("by") == "scores"]
            last = {
                str(line["evidence"]["rule"]): line
                for line in lines
                if "rule" in (line.get("evidence") or {})
            }
            self._disobeyed = {
                name: finding_of(line) for name, line in last.items() if line.get("attempt") in lost
            }
            self._met = {name: int(line["where"]["step"]) for name, line in last.items()}
        return self._met

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
