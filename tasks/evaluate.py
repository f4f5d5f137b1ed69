"""The evaluations of a run: jobs that the run's agent starts. The stage waits until all are final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks import control, ownership
from tasks.core.errors import DataError
from tasks.core.units import counted
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, shown
from tasks.supervision import launch
from tasks.supervision.status import EvaluationStatus, RunStatus, config_of


@dataclass(frozen=True)
class Evaluated:
    """The run, and a line for each evaluation without a result: the reason, and the command to repeat it."""

    run: Path
    missing: Sequence[str]


@control.stage(name="evaluate")
def evaluate(run: RunFolder) -> StageResult[Evaluated]:
    """Complete every evaluation that the run's config asks for; the details name those without a result."""
    with shown("evaluate") as stage:

        def progress(status: RunStatus) -> None:
            why = ""
            for waiting in status.evaluations_waiting[:1]:
                reason = " waits" if config_of(run).dataset.private else f": {waiting.waiting}"
                why = f"step {waiting.step:,} {waiting.task}{reason}"
            stage.progress(status.evaluations_done, len(status.evaluations), "evaluations", why)

        started = ownership.start_or_adopt(run, "evaluate")
        status = launch.wait_for_evaluations(run, progress)
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
