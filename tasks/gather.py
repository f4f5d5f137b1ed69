"""Every result in one wandb run: the agent's gatherer did most of it, this completes and checks it."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.core.units import counted
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, is_transient, shown
from tasks.supervision import gathering
from tasks.supervision.status import config_of


@task(name="gather", retries=2, retry_delay_seconds=5, retry_condition_fn=is_transient, cache_policy=NO_CACHE)
def gather(run: RunFolder) -> StageResult:
    """TarmacError when the gatherer fails; nothing of the training is lost by it."""
    with shown("gather") as stage:
        track = config_of(run).track
        if track.mode == "disabled":
            return stage.result("tracking is disabled (track.mode)")
        gathering.complete(run)
        evaluations = counted(len(gathering.results_of(run)), "evaluation")
        wandb_id = record.load(run).wandb_id or run.id
        upload = gathering.upload(run) if track.mode == "online" else None
        return stage.result(f"metrics and {evaluations} in wandb run {wandb_id} ({upload or track.mode})")
