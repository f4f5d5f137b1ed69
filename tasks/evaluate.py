"""The evaluations of a run: jobs that the run's agent starts. The stage waits until all are final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks import control, ownership
from tasks.core import screen
from tasks.core.errors import DataError, Withdrawn
from tasks.core.units import counted
from tasks.runs.folder import RunFolder
from tasks.runs.plan import command_to_resume
from tasks.stage import StageResult, shown
from tasks.supervision import launch
from tasks.supervision.following import quiet_warning
from tasks.supervision.status import EvaluationStatus, RunStatus, config_of


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
            stage.progress(status.evaluations_done, len(status.evaluations), "evaluations", why)

        started = ownership.start_or_adopt(run, goal)
        status = launch.wait_for_evaluations(run, progress)
        if goal == "train":
            require_followed(status)
        steps = {evaluation.step for evaluation in status.evaluations}
        done = f"{status.evaluations_done} of {len(status.evaluations)} results"
        summary = f"{counted(len(steps), 'checkpoint')}, {done}"
        missing = [_lost(run, one) for one in status.evaluations_missing]
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


def _lost(run: RunFolder, one: EvaluationStatus) -> str:
    is_private = config_of(run).dataset.private
    hidden = f"step {one.step} {one.task}: the reason is in {run.ledger}, because the dataset is private"
    again = f"tarmac evaluate {run.handle} --step {one.step} --task {one.task}"
    return f"{hidden if is_private else one}; again: {again}"
