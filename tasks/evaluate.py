"""The evaluations: jobs of their own, started by the run's agent; this waits until all are final."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.core.errors import DataError
from tasks.core.units import counted
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, shown
from tasks.supervision import launch
from tasks.supervision.status import RunStatus, config_of


@task(name="evaluate", cache_policy=NO_CACHE)
def evaluate(run: RunFolder) -> StageResult:
    """Have every evaluation done that the run's config asks for; `details.missing` names the rest."""
    with shown("evaluate") as stage:

        def progress(status: RunStatus) -> None:
            stage.progress(status.evaluations_done, len(status.evaluations), "evaluations")

        started = launch.start_or_adopt(run, "evaluate")
        status = launch.wait_for_evaluations(run, progress)
        steps = {evaluation.step for evaluation in status.evaluations}
        done = f"{status.evaluations_done} of {len(status.evaluations)} results"
        summary = f"{counted(len(steps), 'checkpoint')}, {done}"
        missing = [_lost(run, status, one.step, one.task) for one in status.evaluations_missing]
        return stage.result(
            f"up to date: {summary}" if started.is_up_to_date else summary,
            mark="✗" if missing else "✓",
            run=str(run.path),
            missing=missing,
        )


def require(evaluated: StageResult) -> None:
    """DataError that names each evaluation without a result, why, and the command that does it again."""
    missing = evaluated["details"]["missing"]
    if missing:
        have = f"{counted(len(missing), 'evaluation')} {'has' if len(missing) == 1 else 'have'}"
        raise DataError("\n  ".join([f"{have} no result", *missing]))


def _lost(run: RunFolder, status: RunStatus, step: int, task_name: str) -> str:
    entry = next(e.entry for e in status.evaluations if (e.step, e.task) == (step, task_name))
    reason = entry.reason if entry is not None and entry.reason else "no job of it was started"
    if config_of(run).dataset.private:
        reason = f"the reason is in {run.ledger}, because the dataset is private"
    again = f"tarmac evaluate {run.handle} --step {step} --task {task_name}"
    return f"step {step} {task_name}: {reason}; again: {again}"
