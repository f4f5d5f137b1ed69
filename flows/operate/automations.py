"""What the Prefect server does by itself: it notices runs that died and starts them again, verifies what was
rebuilt and trains on it, and reports failures to a person.

Every automation is limited to flow runs with the tag `tarmac` or to Tarmac's own events, so that other flows
on the same server are left alone. Registering is idempotent: an automation is found by its name, written only
if it differs, and one that somebody switched off stays off.
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
"""The tag of the deployments whose crashed runs start again by themselves."""
SILENCE_S = 180
"""A run counts as crashed after so many seconds without a pulse: a server may be away for a minute, and take
another to start on a busy machine. `tasks.guard` and `flows.operate.recovery` report most ends sooner."""
SETTLED_S = 20
"""This long after a crash everybody has reported it. The worker reports it before its hooks and after them,
and they take seconds to start."""

FAILURE = "tarmac-failure"
State = Literal["new", "changed", "unchanged", "removed"]


@dataclass(frozen=True)
class Registered:
    """An automation as the server has it now."""

    name: str
    state: State


def standing() -> list[AutomationCore]:
    """Return the automations that depend on no deployment."""
    return [zombies(), take_up(), give_up()]


def zombies() -> AutomationCore:
    """Return the automation that marks a run as crashed whose process died unnoticed, with its worker or its
    machine."""
    return _changes_state(
        "tarmac-zombies",
        f"Marks a run of Tarmac as crashed when it has sent no sign of life for {SILENCE_S} seconds.",
        (StateType.CRASHED, "Crashed"),
        f"It sent no sign of life for {SILENCE_S} seconds; what was done is kept.",
        posture=Posture.Proactive,
        match_related=tagged(TAG),
        for_each={"prefect.resource.id"},
        after={PULSE},
        # Any state that it enters shows that somebody looks after it.
        expect={PULSE, STOPPED, "prefect.flow-run.*"},
        threshold=1,
        within=timedelta(seconds=SILENCE_S),
    )


def take_up() -> AutomationCore:
    """Return the automation that starts a crashed run again, a little later: the worker's second report of
    the same crash would end a run that has just been scheduled.

    A flow run that crashes too often ends itself when it is started (flows.starts), and `give_up` ends one
    that never begins.
    """
    return _changes_state(
        "tarmac-take-up",
        "Starts a crashed run of Tarmac again; it resumes.",
        (StateType.SCHEDULED, "AwaitingRetry"),
        "It crashed and starts again by itself; what was done is kept.",
        posture=Posture.Proactive,
        match_related=[tagged(TAG), tagged(TAKE_UP)],
        for_each={"prefect.resource.id"},
        after={"prefect.flow-run.Crashed", f"prefect.flow-run.{INTERRUPTED}"},
        expect={"prefect.flow-run.*"},  # a person may be quicker
        threshold=1,
        within=timedelta(seconds=SETTLED_S),
    )


def give_up() -> AutomationCore:
    """Return the automation that ends a run that crashes before it begins, which the server does not count as
    a start."""
    return _changes_state(
        "tarmac-give-up",
        "Ends a crashed run of Tarmac that cannot be started again.",
        (StateType.FAILED, "Failed"),
        f"It crashed, and {TAKEN_UP} times more before it could begin; see its log.",
        posture=Posture.Reactive,
        match_related=[tagged(TAG), tagged(TAKE_UP)],
        for_each={"prefect.resource.id", "prefect.run-count"},
        expect={"prefect.flow-run.AwaitingRetry"},
        threshold=TAKEN_UP + 1,
        within=timedelta(hours=1),
    )


def _changes_state(
    name: str, description: str, state: tuple[StateType, str], message: str, **trigger: Any
) -> AutomationCore:
    """Return an automation that sets flow runs to a state, of this type and name."""
    kind, named = state
    action = ChangeFlowRunState(state=kind, name=named, message=message, force=False)
    found = EventTrigger(match=FLOW_RUN, **trigger)
    return AutomationCore(name=name, description=description, trigger=found, actions=[action])


def verify_rebuilt(project: str, deployment: UUID) -> AutomationCore:
    """Return the automation by which this deployment verifies each version that is rebuilt in this folder."""
    return _on_rebuild(
        f"tarmac-verify-{project}",
        f"Verifies each new version of a dataset that was built in {Path.cwd()}.",
        {"prefect.resource.id": f"{DATASET}*", "tarmac.folder": escape(str(Path.cwd()))},
        deployment,
        {"dataset": "{{ event.payload.folder }}"},
    )


def train_name(config: str) -> str:
    """Return the name of the automation that trains when a dataset was rebuilt."""
    return f"tarmac-train-{config}"


def train_rebuilt(config: str, dataset: Path, deployment: UUID) -> AutomationCore:
    """Return the automation by which this deployment trains when a build has changed the dataset in this
    folder; a pipeline that has rebuilt the dataset trains on it anyway."""
    built = {"tarmac.dataset": escape(str(dataset)), "tarmac.flow": "build"}
    return _on_rebuild(
        train_name(config),
        f"Trains {config} when a rebuild has changed its dataset (schedule.then of the config).",
        {"prefect.resource.id": f"{DATASET}{config}", **built},
        deployment,
        {},
    )


def _on_rebuild(
    name: str, description: str, match: dict[str, Any], deployment: UUID, parameters: dict[str, Any]
) -> AutomationCore:
    """Return an automation that runs a deployment, which owns it, when such a dataset was rebuilt."""
    action = RunDeployment(
        source="selected", deployment_id=deployment, parameters=parameters, job_variables=None
    )
    return AutomationCore(
        name=name,
        description=description,
        trigger=EventTrigger(posture=Posture.Reactive, match=match, expect={REBUILT}),
        actions=[action],
        owner_resource=f"prefect.deployment.{deployment}",
    )


def failure(client: SyncPrefectClient, block: UUID | None) -> AutomationCore | None:
    """Return the automation that notifies a person of runs that need one, by this notification block, or by
    the one that it uses so far. None if there is neither."""
    if block is None:
        actions = [one for found in client.read_automations_by_name(FAILURE) for one in found.actions]
        block = next((one.block_document_id for one in actions if isinstance(one, SendNotification)), None)
    if block is None:
        return None
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
    """Return the notification block TYPE/NAME; UsageError if the server has none of this name."""
    kind, _, name = named.partition("/")
    if not kind or not name:
        raise UsageError(f"--notify: {named!r} is not the TYPE/NAME of a block, such as slack-webhook/team")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound:
        fix = "make one on its page Blocks, or see: prefect block ls"
        raise UsageError(f"--notify: the server has no block {named}; {fix}") from None


FLOW_RUN: dict[str, str | list[str]] = {"prefect.resource.id": "prefect.flow-run.*"}


def tagged(tag: str) -> dict[str, str | list[str]]:
    """Return what a trigger's `match_related` requires for events of a flow run with this tag."""
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
        # An update ignores what is not set, and refuses a new owner.
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
