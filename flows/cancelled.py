"""What a cancelled flow run leaves on its page, whoever ends it.

Where Prefect's worker is quicker than the flow's own watch, it kills the flow's process, and only a hook in
the worker can leave anything: it belongs to no flow run, so everything here names the flow run that it is
about. The last state's message is then Prefect's own, which the worker writes over ours.
"""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.objects import FlowRun

from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.stage import artifact_key
from tasks.supervision.tracking import gathering


def kept(run: RunFolder) -> str:
    """Return what is left of the training of a flow run that was cancelled."""
    steps = [checkpoint.step for checkpoint in list_checkpoints(run)]
    if not steps:
        return f"{run.name}: it had no checkpoint yet"
    return f"{run.name}: its checkpoint of step {max(steps):,} is kept, and Retry goes on from there"


def leave_page(client: SyncPrefectClient, flow_run: FlowRun, run: RunFolder) -> None:
    """Write the run's page, as the flow itself does at its end."""
    from tasks.reporting import summary  # imports what draws pages

    page = summary.of_run(run, None, None, gathering.url(run))
    client.create_artifact(
        ArtifactCreate(
            key=artifact_key("run", run.id),
            type="markdown",
            data=page,
            description=f"the flow run was cancelled; {kept(run)}",
            flow_run_id=flow_run.id,
        )
    )


def close_progress(client: SyncPrefectClient, flow_run: FlowRun, run: RunFolder | None) -> None:
    """Have no progress of the flow run promise an end any more; that of its training shows the step at which
    the run stands."""
    chosen: Any = {"flow_run_id": {"any_": [flow_run.id]}, "type": {"any_": ["progress"]}}
    for artifact in client.read_artifacts(artifact_filter=ArtifactFilter.model_validate(chosen)):
        percent = artifact.data
        if artifact.id is None or not isinstance(percent, int | float) or percent >= 100:
            continue
        where = ""
        if run is not None and str(artifact.key).startswith("train-"):
            from tasks.supervision.status import look_at_run  # imports what reads a run

            condition = look_at_run(run).condition
            where, percent = f"{condition.where()} steps · ", 100.0 * condition.step / max(condition.steps, 1)
        update = ArtifactUpdate(data=percent, description=f"{where}cancelled")
        client.update_artifact(artifact.id, update)
