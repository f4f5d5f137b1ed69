"""Every result in the run's trackers: the agent's gatherer has written most of it, this stage completes and
checks it."""

from __future__ import annotations

from tasks import control
from tasks.core import screen
from tasks.core.units import counted, near
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, is_transient, shown
from tasks.supervision.status import config_of
from tasks.supervision.tracking import gathering


@control.stage(name="gather", retries=2, retry_delay_seconds=5, retry_condition_fn=is_transient)
def gather(run: RunFolder) -> StageResult[None]:
    """Complete what the trackers have. TarmacError when the gatherer fails; no part of the training is lost
    then."""
    with shown("gather") as stage:
        track = config_of(run).track
        if track.mode == "disabled":
            return stage.result("tracking is disabled (track.mode)", None, "unchanged")
        was_complete = gathering.is_complete(run)
        gathering.complete(run)
        for line in gathering.faults(run):
            screen.warn(f"{run.name}: not gathered: {line}")
        evaluations = counted(len(gathering.results_of(run)), "evaluation")
        if track.has_wandb:
            upload = gathering.upload(run) if track.mode == "online" else None
            where = f"wandb run {record.load_record(run).wandb_id or run.id} ({upload or track.mode})"
        else:
            where = near(run.tensorboard)
        summary = f"metrics and {evaluations} in {where}"
        return stage.result(summary, None, "unchanged" if was_complete else "changed")
