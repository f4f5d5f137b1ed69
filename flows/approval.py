"""Asks a person on Prefect's page whether a build may go on with what it lost, instead of failing at night.

The flow run is suspended as NeedsApproval, which costs no process. Resume opens a form with one question; the
run then starts again, comes to the same question and finds its answer. A loss that has changed meanwhile is
a new question.
"""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import Pause
from prefect.input import RunInput
from prefect.input.run_input import keyset_from_paused_state
from prefect.states import Suspended
from pydantic import Field

from tasks import control
from tasks.core import screen
from tasks.core.errors import NeedsApproval
from tasks.core.files import digest


class ApprovalAnswer(RunInput):
    """The form behind the button Resume."""

    accept_loss: bool = Field(
        default=False,
        title="Accept the loss",
        description="Publish the version that has lost these samples or has other content in their place. "
        "Without your consent the run fails.",
    )


def approve(loss: NeedsApproval) -> None:
    """Return once a person has accepted the loss; raises Pause while nobody has answered. NeedsApproval if
    it was declined, or if there is no deployment and so no page to ask on."""
    flow_run = control.deployed()
    if flow_run is None:
        raise loss
    reason, *folders = loss.reason.splitlines()
    state: State[None] = Suspended(
        message="\n".join(
            [f"{reason}: {loss.field} in the form behind Resume", *folders, "Cancel changes nothing."]
        ),
        pause_key=digest(str(loss))[:12],
    )
    state.name = control.NEEDS_APPROVAL
    keys = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = {str(part): key for part, key in keys.items()}
    description = "\n\n".join([f"**{reason}**", *map(str.strip, folders)])
    form: Any = ApprovalAnswer.with_initial_data(
        description=description
    )  # typed as if it might be asynchronous
    with get_client(sync_client=True) as client:
        answer = client.set_flow_run_state(flow_run.id, state)
    if answer.status is SetStateStatus.ACCEPT:
        form.save(keys)
        screen.warn(f"{reason}; this waits until somebody presses Resume on the page of the flow run")
        raise Pause(reason, state=answer.state)
    if not form.load(keys).accept_loss:  # the server does not ask the same twice, so there is an answer
        raise NeedsApproval(f"the loss was declined: {loss.reason}") from loss
