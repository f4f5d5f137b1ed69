"""The evaluations of a run: jobs that the run's agent starts. The stage waits until all are final."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks import control, events, ownership
from tasks.core import screen
from tasks.core.errors import DataError, Withdrawn
from tasks.core.schema import Evaluate
from tasks.core.units import counted, number
from tasks.evaluation.condition import EvaluationStatus
from tasks.evaluation.results import StepSummary, examine_summary
from tasks.reporting.report import read_headline
from tasks.runs.folder import RunFolder
from tasks.runs.plan import command_to_resume
from tasks.stage import StageResult, shown
from tasks.supervision import launch
from tasks.supervision.evaluating.following import quiet_warning
from tasks.supervision.status import RunStatus, config_of, look_at_run


@dataclass(frozen=True)
class Evaluated:
    """The run, and a line for each evaluation without a result: the reason, and the command to repeat it."""

    run: Path
    missing: Sequence[str]


@control.stage(name="evaluate")
def evaluate(run: RunFolder, goal: launch.Goal = "evaluate") -> StageResult[Evaluated]:
    """Complete every evaluation that the run's config asks for; the details name those without a result.

    With the goal `train` a run that follows another trainer goes on until the last checkpoint is evaluated;
    Withdrawn where somebody cancels it.
    """
    with shown("evaluate") as stage:
        quiet_s = 0.0

        def progress(status: RunStatus) -> None:
            nonlocal quiet_s
            why = ""
            for waiting in status.evaluations_waiting[:1]:
                reason = " waits" if config_of(run).dataset.private else f": {waiting.waiting}"
                why = f"step {waiting.step:,} {waiting.task}{reason}"
            if not why and not status.training_is_over:
                why = status.reason  # what the folder that it follows has, and what comes next
            if status.quiet_s > quiet_s:
                screen.warn(quiet_warning(run, status.quiet_s))
            quiet_s = status.quiet_s
            why = status.silence or why
            stage.progress(status.evaluations_done, len(status.evaluations), "evaluations", why)

        started = ownership.start_or_adopt(run, goal)
        status = launch.wait_for_evaluations(run, progress)
        if goal == "train":
            require_followed(status)
        steps = {evaluation.step for evaluation in status.evaluations}
        done = f"{status.evaluations_done} of {len(status.evaluations)} results"
        summary = f"{counted(len(steps), 'checkpoint')}, {done}"
        missing = [_lost(run, one) for one in status.evaluations_missing]
        if not started.is_up_to_date and status.evaluations:
            _announce(run, status.record.name, summary, missing)
        return stage.result(
            f"up to date: {summary}" if started.is_up_to_date else summary,
            Evaluated(run.path, missing),
            "unchanged" if started.is_up_to_date else "changed",
            mark="✗" if missing else "✓",
        )


def require_followed(status: RunStatus) -> None:
    """Raise Withdrawn where the following was cancelled, DataError where it failed."""
    why = f"{status.run.name}: {status.state}: {status.reason}"
    if status.state == "cancelled":
        raise Withdrawn("cancelled", f"{why}; again: {command_to_resume(status.run)}")
    if status.state != "succeeded":
        raise DataError(f"{why}\n  log: {status.log}")


def require(evaluated: Evaluated) -> None:
    """Raise DataError where evaluations have no result; it names each, the reason, and the command to repeat
    it."""
    if evaluated.missing:
        number = len(evaluated.missing)
        have = f"{counted(number, 'evaluation')} {'has' if number == 1 else 'have'}"
        raise DataError("\n  ".join([f"{have} no result", *evaluated.missing]))


def _announce(run: RunFolder, config: str, summary: str, missing: Sequence[str]) -> None:
    """Report in events, and in the log what a person has to know, how the evaluations ended. The metrics are
    those of the checkpoint that the report begins with."""
    if missing:
        events.emit_run("failed", run, config, f"{counted(len(missing), 'evaluation')} without a result")
        return
    first = read_headline(run)
    found = None if first is None else examine_summary(run.eval_result(first.result.step))
    if not isinstance(found, StepSummary):
        return
    metrics = {name: value for name, value in found.results.items() if math.isfinite(value)}
    facts: dict[str, Any] = {"step": found.global_step, "metrics": metrics}
    events.emit_run("evaluated", run, config, f"{summary}; {first}", **facts)
    asked = config_of(run).evaluate
    events.emit_checkpoint(look_at_run(run))  # which may have been chosen only now
    events.emit_asset("evaluation", config, str(first), run=run.name, **facts)
    if short := shortfalls(asked, metrics):
        lines = "; ".join(short)
        screen.warn(f"{run.name}: step {found.global_step:,}: {lines}")
        events.emit_run("fell-short", run, config, lines, **facts)


def shortfalls(wanted: Evaluate | None, metrics: Mapping[str, float]) -> list[str]:
    """Return a sentence for each metric that is not as `evaluate.at_least` and `at_most` want it, or has no
    finite value."""
    if wanted is None:
        return []
    lines = []
    for key, limits in (("at_least", wanted.at_least), ("at_most", wanted.at_most)):
        for name, limit in limits.items():
            value = metrics.get(name)
            if value is None:
                lines.append(f"{name} has no finite value (evaluate.{key}: {limit:g})")
            elif key == "at_least" and value < limit:
                lines.append(f"{name} {number(value)} is below {limit:g} (evaluate.{key})")
            elif key == "at_most" and value > limit:
                lines.append(f"{name} {number(value)} is above {limit:g} (evaluate.{key})")
    return lines


def _lost(run: RunFolder, one: EvaluationStatus) -> str:
    is_private = config_of(run).dataset.private
    hidden = f"step {one.step} {one.task}: the reason is in {run.ledger}, because the dataset is private"
    return f"{hidden if is_private else one}; again: {one.command(run)}"
