"""What the Prefect server does by itself: it notices runs that died and starts them again, verifies what was
rebuilt and trains on it, and reports failures to a person.

Every automation is limited to flow runs with the tag `tarmac` or to Tarmac's own events, so that other flows
on the same server are left alone. Registering is idempotent: an automation is found by its name, written only
if it differs, and one that somebody switched off stays off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tasks.core.errors import UsageError, instead
from tasks.events import DATASET, PULSE, REBUILT, RUN, STALE, STOPPED, TAG

TAKE_UP = "take-up"
"""The tag of the deployments whose crashed runs start again by themselves."""
SILENCE_S = 180
"""A run counts as crashed after so many seconds without a pulse: a server may be away for a minute, and take
another to start on a busy machine. `tasks.guard` and `flows.operate.recovery` report most ends sooner."""
SETTLED_S = 20
"""This long after a crash everybody has reported it. The worker reports it before its hooks and after them,
and they take seconds to start."""

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
    """Return the automation by which this deployment decodes what is new in each version that is rebuilt in
    this folder: the flow that has built it has compared the bytes."""
    return _on_rebuild(
        f"tarmac-verify-{project}",
        f"Decodes what is new in each version of a dataset that was built in {Path.cwd()}.",
        {"prefect.resource.id": f"{DATASET}*", "tarmac.folder": escape(str(Path.cwd()))},
        deployment,
        {"dataset": "{{ event.payload.folder }}", "level": "full", "again": False},
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


FLOW_RUN: dict[str, str | list[str]] = {"prefect.resource.id": "prefect.flow-run.*"}


def tagged(tag: str) -> dict[str, str | list[str]]:
    """Return what a trigger's `match_related` requires for events of a flow run with this tag."""
    return {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}


ON_PAGE = "{{ flow_run | ui_url }}"
ENDED = (
    "Tarmac: {{ flow_run.name }} is {{ flow_run.state.name }}",
    "{{ flow_run.state.message }}\n" + ON_PAGE,
)
"""Subject and body of a message about a flow run's state."""
TRAINING = ["pipeline", "train", "evaluate"]
"""The names of the flows that work on a run."""


@dataclass(frozen=True)
class Notice:
    """A message to a person: the automation that sends it, when it does, and what it says."""

    name: str
    description: str
    trigger: EventTrigger
    subject: str
    body: str

    def automation(self, block: UUID) -> AutomationCore:
        """Return the automation that sends it by this notification block."""
        sent = SendNotification(block_document_id=block, subject=self.subject, body=self.body)
        return AutomationCore(
            name=self.name, description=self.description, trigger=self.trigger, actions=[sent]
        )


def _of_run(*events: str) -> EventTrigger:
    return EventTrigger(
        posture=Posture.Reactive,
        match={"prefect.resource.id": f"{RUN}*"},
        for_each={"prefect.resource.id"},
        expect={f"{RUN}{event}" for event in events},
    )


def _of_flow_run(*states: str, flows: Sequence[str] = ()) -> EventTrigger:
    related: list[Any] = [tagged(TAG)]
    if flows:
        related.append({"prefect.resource.role": "flow", "prefect.resource.name": [*flows]})
    return EventTrigger(
        posture=Posture.Reactive,
        match=FLOW_RUN,
        match_related=related,
        for_each={"prefect.resource.id"},
        expect={f"prefect.flow-run.{state}" for state in states},
    )


NoticeKind = Literal["failed", "stalled", "stale", "succeeded", "fell-short"]
DEFAULT_NOTICES: tuple[NoticeKind, ...] = ("failed", "stalled", "stale")
"""What `--notify` alone asks for: what needs a person."""
NOTICES: Mapping[NoticeKind, Notice] = {
    "failed": Notice(
        "tarmac-failure",
        "Sends a message when a run of Tarmac has failed or crashed, or waits for an approval.",
        _of_flow_run("Failed", "Crashed", "NeedsApproval"),
        *ENDED,
    ),
    "stalled": Notice(
        "tarmac-stalled",
        "Sends a message when a training stands still, and when it goes on.",
        _of_run("stalled", "goes-on"),
        "Tarmac: {{ event.payload.run }} {{ 'is stalled' if 'stalled' in event.event else 'goes on' }}",
        "{{ event.payload.cause }}\n" + ON_PAGE,
    ),
    "stale": Notice(
        "tarmac-stale",
        "Sends a message when a dataset is older than schedule.fresh_within of its config.",
        EventTrigger(
            posture=Posture.Reactive,
            match={"prefect.resource.id": f"{DATASET}*"},
            for_each={"prefect.resource.id"},
            expect={STALE},
        ),
        "Tarmac: the dataset of {{ event.payload.config }} is stale",
        "{{ event.payload.cause }}",
    ),
    "succeeded": Notice(
        "tarmac-succeeded",
        "Sends a message when a run of Tarmac was trained and evaluated.",
        _of_flow_run("Completed", flows=TRAINING),
        *ENDED,
    ),
    "fell-short": Notice(
        "tarmac-fell-short",
        "Sends a message when a run misses evaluate.at_least or at_most of its config.",
        _of_run("fell-short"),
        "Tarmac: {{ event.payload.run }} fell short",
        "{{ event.payload.cause }}\n" + ON_PAGE,
    ),
}
"""The messages by the kind that `tarmac deploy --notify-on` names."""


def notifications(
    client: SyncPrefectClient, block: UUID | None, kinds: Sequence[NoticeKind] | None
) -> tuple[list[AutomationCore], list[str]]:
    """Return the automations that send messages about these kinds to a notification block, and the names of
    those that are to go.

    Without `block`, the one that is used so far is meant; without `kinds`, those that are sent so far, and
    with a block also DEFAULT_NOTICES. UsageError for kinds without a block.
    """
    there = {kind: client.read_automations_by_name(one.name) for kind, one in NOTICES.items()}
    known = [kind for kind, found in there.items() if found]
    if kinds is None:
        wanted = [
            kind for kind in NOTICES if kind in known or (block is not None and kind in DEFAULT_NOTICES)
        ]
    else:
        wanted = [kind for kind in NOTICES if kind in kinds]
    actions = [action for found in there.values() for one in found for action in one.actions]
    used = (one.block_document_id for one in actions if isinstance(one, SendNotification))
    to = block or next(used, None)
    if to is None:
        if kinds is not None:
            raise UsageError("--notify-on: nothing was given to send it to; add --notify TYPE/NAME")
        return [], []
    gone = [NOTICES[kind].name for kind in known if kind not in wanted]
    return [NOTICES[kind].automation(to) for kind in wanted], gone


def kinds_of(named: str) -> list[NoticeKind]:
    """Return the kinds in a list such as `failed,stalled`; UsageError for an unknown one."""
    kinds: list[NoticeKind] = []
    for word in filter(None, map(str.strip, named.split(","))):
        kind = next((kind for kind in NOTICES if kind == word), None)
        if kind is None:
            raise UsageError(f"--notify-on: unknown kind {word!r}; {instead(word, [*NOTICES])}")
        kinds.append(kind)
    return kinds


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
