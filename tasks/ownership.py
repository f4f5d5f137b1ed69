"""Whose training a flow run watches: that of the flow run that has started its agent, which its record names.

Two flow runs with the same values share one training. Cancel and Suspend of the one that has adopted it end
only its own watching while the owner goes on: a click on one page must not end the work of another.
"""

from __future__ import annotations

import functools
from uuid import UUID

from prefect.artifacts import create_link_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.utilities.urls import url_for

from tasks import control
from tasks.core import screen
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.stage import artifact_key, best_effort
from tasks.supervision import launch
from tasks.supervision.launch import Started


def this_flow_run() -> str | None:
    """Return the id of the flow run that this code runs in."""
    flow_run = control.own_flow_run()
    return None if flow_run is None else str(flow_run.id)


def start_or_adopt(run: RunFolder, goal: launch.Goal) -> Started:
    """Start the run's agent for this flow run, or adopt the one that lives."""
    return launch.start_or_adopt(run, goal, control.raise_if_withdrawn, this_flow_run())


def named(flow_run: FlowRun) -> str:
    """Return its name and the address of its page, as two flow runs on one run have the same name."""
    return f"{flow_run.name} ({url_for('flow-run', obj_id=flow_run.id) or flow_run.id})"


def other_owner(run: RunFolder, flow_run: str) -> FlowRun | None:
    """Return the flow run that has started the run's agent and is not over. None where that is `flow_run`
    itself, or the server does not know it, as it came from a terminal without a server."""
    owner = record.load_record(run).started_by
    if owner is None or owner == flow_run:
        return None
    with get_client(sync_client=True) as client:
        try:
            found = client.read_flow_run(UUID(owner))
        except ObjectNotFound:
            return None
    return None if found.state is None or found.state.is_final() or found.state.is_paused() else found


def is_adopted(run: RunFolder, started: Started) -> bool:
    """Whether the training that `started` has found is not this flow run's own, taken up again. If so, the
    log names its owner and what Cancel does."""
    mine = this_flow_run()
    if not started.adopted or (mine is not None and started.by == mine):
        return False
    owner = None if mine is None else best_effort(other_owner, run, mine)
    if owner is not None:
        _announce(
            f"{run.name} is adopted from flow run {named(owner)}; Cancel and Suspend of this one end only "
            "its watching while that one goes on",
            artifact_key("owner", run.id),
            url_for("flow-run", obj_id=owner.id),
        )
    elif control.deployed() is not None:
        _announce(
            f"{run.name} is running already, and no other flow run here owns it; Cancel of this one ends it"
        )
    return True


@functools.cache
def _announce(text: str, key: str = "", url: str | None = None) -> None:
    """Log this once, though several stages find it out, and leave a link, which a log cannot hold."""
    screen.warn(text)
    if url is not None:
        title = "the flow run that owns the training"
        best_effort(create_link_artifact, url, link_text=title, key=key, description=text)
