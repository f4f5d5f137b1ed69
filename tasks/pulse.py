"""The sign of life of a flow run, which the automation tarmac-zombies listens to.

Prefect's own heartbeat comes every 30 seconds at best, and lasts until the flow's process ends. A server that
is away for a minute then misses three of them, and marks a healthy run as crashed when it is back; and one
more heartbeat after a run was suspended has it marked a little later. A pulse is more frequent, is sent only
to a server that answers, and says when it stops.
"""

from __future__ import annotations

from uuid import UUID

from prefect.events import emit_event

PULSE = "tarmac.flow-run.pulse"
STOPPED = "tarmac.flow-run.stopped"
"""No pulse is to be expected any more; the flow run's state says why."""
INTERVAL_S = 7.0
TAG = "tarmac"
"""Of every flow run of Tarmac."""


def send(event: str, flow_run_id: UUID) -> None:
    """Tell the server of one of the events above, in the background."""
    emit_event(
        event,
        resource={"prefect.resource.id": f"prefect.flow-run.{flow_run_id}"},
        related=[{"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}],
    )
