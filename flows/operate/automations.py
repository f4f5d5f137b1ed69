"""What the Prefect server does by itself: it notices runs that died and starts them again, verifies what was
rebuilt and trains on it, and sends failures to a person.

Every automation is limited to flow runs with the tag `tarmac` or to Tarmac's own events, so that other flows
on the same server are left alone. Registering is idempotent: an automation is found by its name, written only
where it differs, and one that somebody switched off stays off.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from glob import escape
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from flows.starts import INTERRUPTED, TAKEN_UP
from tasks.core.errors import UsageError
from tasks.events import DATASET, PULSE, REBUILT, STOPPED, TAG

TAKE_UP = "take-up"
"""Of the deployments whose crashed runs start again by themselves."""
SILENCE_S = 180
"""After so many seconds without a pulse a run counts as crashed: a server may be away for a minute, and take
another to start on a busy machine. `tasks.guard` and `flows.operate.recovery` report most ends sooner."""
SETTLED_S = 20
"""So long after a crash everybody has reported it: the worker does so before its hooks and after them, which
take seconds to start."""

FAILURE = "tarmac-failure"
State = Literal["new", "changed", "unchanged", "removed"]


@dataclass(frozen=True)
class Registered:
    """An automation as the server has it now."""

    name: str
    state: State


def register(client: SyncPrefectClient) -> list[Registered]:
    """Have the server notice dead runs and start them again; PrefectHTTPStatusError where it refuses."""
    return [put(client, wanted) for wanted in standing()]


def standing() -> list[AutomationCore]:
    """The automations that depend on no deployment."""
    return [zombies(), take_up(), give_up()]


def zombies() -> AutomationCore:
    """Marks a run whose process died unnoticed, with its worker or its machine, as crashed."""
    return AutomationCore(
        name="tarmac-zombies",
        description=f"Marks a run of Tarmac as crashed when nothing was heard of it for {SILENCE_S} seconds.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match=FLOW_RUN,
            match_related=tagged(TAG),
            for_each={"prefect.resource.id"},
            after={PULSE},
            # Any state that it enters shows that somebody looks after it.
            expect={PULSE, STOPPED, "prefect.flow-run.*"},
            threshold=1,
            within=timedelta(seconds=SILENCE_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=f"Nothing was heard of it for {SILENCE_S} seconds; what was done is kept.",
                force=False,
            )
        ],
    )


def take_up() -> AutomationCore:
    """Starts a crashed run again, a little later: the worker's second report of the same crash would end the
    run that has just been scheduled."""
    return AutomationCore(
        name="tarmac-take-up",
        description="Starts a crashed run of Tarmac again; it resumes.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            # A flow run that crashes too often ends itself when it is started (flows.starts), and `give_up`
            # ends one that never begins.
            match=FLOW_RUN,
            match_related=[tagged(TAG), tagged(TAKE_UP)],
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.Crashed", f"prefect.flow-run.{INTERRUPTED}"},
            expect={"prefect.flow-run.*"},  # a person may be quicker
            threshold=1,
            within=timedelta(seconds=SETTLED_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.SCHEDULED,
                name="AwaitingRetry",
                message="It crashed and starts again by itself; what was done is kept.",
                force=False,
            )
        ],
    )


def give_up() -> AutomationCore:
    """Ends a run that crashes before it begins, which the server does not count as a start."""
    return AutomationCore(
        name="tarmac-give-up",
        description="Ends a crashed run of Tarmac that cannot be started again.",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            match=FLOW_RUN,
            match_related=[tagged(TAG), tagged(TAKE_UP)],
            for_each={"prefect.resource.id", "prefect.run-count"},
            expect={"prefect.flow-run.AwaitingRetry"},
            threshold=TAKEN_UP + 1,
            within=timedelta(hours=1),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.FAILED,
                name="Failed",
                message=f"It crashed, and {TAKEN_UP} times more before it could begin; see its log.",
                force=False,
            )
        ],
    )


def verify_rebuilt(project: str, deployment: UUID) -> AutomationCore:
    """Has each version that a rebuild in this folder has made verified by this deployment."""
    return AutomationCore(
        name=f"tarmac-verify-{project}",
        description=f"Verifies each new version of a dataset that was built in {Path.cwd()}.",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            match={"prefect.resource.id": f"{DATASET}*", "tarmac.folder": escape(str(Path.cwd()))},
            expect={REBUILT},
        ),
        actions=[_run(deployment, {"dataset": "{{ event.payload.folder }}"})],
        owner_resource=f"prefect.deployment.{deployment}",
    )


def _run(deployment: UUID, parameters: dict[str, Any]) -> RunDeployment:
    return RunDeployment(
        source="selected", deployment_id=deployment, parameters=parameters, job_variables=None
    )


def train_name(config: str) -> str:
    """The name of the automation that trains on what was rebuilt."""
    return f"tarmac-train-{config}"


def train_rebuilt(config: str, dataset: Path, deployment: UUID) -> AutomationCore:
    """Has this deployment train when a rebuild has changed the dataset in this folder."""
    return AutomationCore(
        name=train_name(config),
        description=f"Trains {config} when a rebuild has changed its dataset (schedule.then of the config).",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            match={
                "prefect.resource.id": f"{DATASET}{config}",
                "tarmac.dataset": escape(str(dataset)),
                # A pipeline that has rebuilt the dataset trains on it anyway.
                "tarmac.flow": "build",
            },
            expect={REBUILT},
        ),
        actions=[_run(deployment, {})],
        owner_resource=f"prefect.deployment.{deployment}",
    )


def failure(client: SyncPrefectClient, block: UUID | None) -> AutomationCore | None:
    """Sends what needs a person to a notification block; without one, to the block that it is sent to so far,
    if any."""
    if block is None:
        sent = [
            action
            for found in client.read_automations_by_name(FAILURE)
            for action in found.actions
            if isinstance(action, SendNotification)
        ]
        if not sent:
            return None
        block = sent[0].block_document_id
    return AutomationCore(
        name=FAILURE,
        description="Sends a message when a run of Tarmac has failed or crashed, or waits for an approval.",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            match=FLOW_RUN,
            match_related=tagged(TAG),
            for_each={"prefect.resource.id"},
            expect={f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "NeedsApproval")},
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="Tarmac: {{ flow_run.name }} is {{ flow_run.state.name }}",
                body="{{ flow_run.state.message }}\n{{ flow_run | ui_url }}",
            )
        ],
    )


def block_of(client: SyncPrefectClient, named: str) -> UUID:
    """The notification block TYPE/NAME; UsageError where the server has none of this name."""
    kind, _, name = named.partition("/")
    if not kind or not name:
        raise UsageError(f"--notify: {named!r} is no TYPE/NAME of a block, such as slack-webhook/team")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound:
        fix = "make one on its page Blocks, or see: prefect block ls"
        raise UsageError(f"--notify: the server has no block {named}; {fix}") from None


FLOW_RUN: dict[str, str | list[str]] = {"prefect.resource.id": "prefect.flow-run.*"}


def tagged(tag: str) -> dict[str, str | list[str]]:
    """What a trigger's `match_related` asks for, of events of a flow run with this tag."""
    return {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}


def put(client: SyncPrefectClient, wanted: AutomationCore, dry_run: bool = False) -> Registered:
    """Make the server's automation of this name the wanted one, and the only one of its name."""
    found = client.read_automations_by_name(wanted.name)
    is_same = len(found) == 1 and _compared(found[0]) == _compared(wanted)
    state: State = "unchanged" if is_same else "changed" if found else "new"
    if dry_run or is_same:
        return Registered(wanted.name, state)
    for another in found[1:]:
        client.delete_automation(another.id)
    if found:
        # An update leaves out what is not set, and refuses a new owner.
        whole = {**wanted.model_dump(exclude={"owner_resource"}), "enabled": found[0].enabled}
        client.update_automation(found[0].id, AutomationCore.model_validate(whole))
    else:
        client.create_automation(wanted)
    return Registered(wanted.name, state)


def remove(client: SyncPrefectClient, name: str, dry_run: bool = False) -> list[Registered]:
    """Take the automation of this name from the server, if there is one."""
    found = client.read_automations_by_name(name)
    for automation in () if dry_run else found:
        client.delete_automation(automation.id)
    return [Registered(name, "removed")] if found else []


def _compared(automation: AutomationCore) -> dict[str, Any]:
    return automation.model_dump(include={"description", "trigger", "actions"})
