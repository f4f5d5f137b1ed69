"""The training: starts the run's agent, or adopts the one that lives, and watches it."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.core import screen
from tasks.reporting.left_out import left_out
from tasks.reporting.plots import summarize
from tasks.runs import metrics, record
from tasks.runs.data import version_path
from tasks.runs.doubts import doubts
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, shown
from tasks.supervision import launch
from tasks.supervision.status import RunStatus, config_of


@task(name="train", cache_policy=NO_CACHE)
def train(run: RunFolder) -> StageResult:
    """DataError with the reason and the log's last lines when the training does not succeed.

    Nothing is retried here: the agent knows what can be tried again, and a new start resumes.
    """
    with shown("train") as stage:

        def progress(status: RunStatus) -> None:
            loss = "" if status.loss is None else f", loss {status.loss:.3f}"
            stage.progress(status.step, status.steps, f"steps{loss}")

        if skipped := left_out(run):
            screen.warn(skipped)
        for doubt in doubts(config_of(run), version_path(record.load(run).data[0])):
            screen.warn(doubt)
        started = launch.start_or_adopt(run, "train")
        if started.changes:
            screen.warn(f"not as in the run's last attempt: {', '.join(started.changes)}")
        status = launch.wait_for_training(run, progress)
        how = "adopted; " if started.adopted else "up to date: " if started.is_up_to_date else ""
        return stage.result(how + _summary(run, status), run=str(run.path), changes=list(started.changes))


def _summary(run: RunFolder, status: RunStatus) -> str:
    """Steps, loss, and the share of time spent waiting for data."""
    rows, _ = metrics.read(run.metrics)
    told = summarize(rows)
    if told is None:
        return f"{status.step:,} steps"
    loss = "" if told.first_loss is None else f", loss {told.first_loss:.2f} → {told.last_loss:.2f}"
    waiting = "" if told.waiting is None else f", waiting for data {100 * told.waiting:.1f} %"
    return f"{status.step:,} steps{loss}{waiting}"
