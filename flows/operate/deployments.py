"""Registers a project's deployments with a Prefect server, for `tarmac deploy`.

A deployment is written only if it differs from the server's, while Prefect's own registration writes it each
time and drops the planned runs. What an operator has set on a page stays: more tags, a concurrency limit,
further job variables, other schedules, a pause.

The folder that it is called in becomes the working directory of the runs, and owns its deployments: those of
another folder are not taken over by accident, and those that it no longer offers are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.urls import url_for
from prefect.workers.process import ProcessWorker

from flows.operate import automations, folder, server
from flows.operate.automations import Registered, State
from flows.operate.offers import (
    FLOWS,
    JOB_VARIABLES,
    SCHEDULE_SLUG,
    Offer,
    of_config,
    of_project,
    pool,
)
from tasks.core.config import differing_keys, load_config
from tasks.core.errors import UsageError
from tasks.events import TAG

STEPS = (folder.ENTER, "flows.operate.folder.enter", "prefect.deployments.steps.set_working_directory")
"""The pull steps that name a deployment's folder: ours, as it is called now and was before, and that of a
prefect.yaml without any."""
UNKNOWN = UUID(int=0)
"""The id of a new deployment that a dry run does not make."""
PAGE = 200
"""The server lists at most this many deployments at once."""


@dataclass(frozen=True)
class Change:
    """A change of one deployment; `fields` maps the dotted name of each field that differs to its old and its
    new value."""

    name: str
    state: State
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    schedule: str | None = None
    url: str = ""


@dataclass(frozen=True)
class Deployed:
    """What was registered, or would be; `left_out` gives the reason for each config that was not."""

    deployments: list[Change]
    automations: list[Registered]
    left_out: Mapping[str, str]


def deploy(
    configs: Sequence[Path] = (),
    *,
    take_over: bool = False,
    dry_run: bool = False,
    notify: str | None = None,
    notify_on: str | None = None,
) -> Deployed:
    """Register the flows of these configs, or of all of the project, with the automations that they need.

    `notify` names a notification block as TYPE/NAME, which receives messages from then on, and `notify_on`
    lists their kinds (`automations.NOTICES`); what is not given stays as it is. UsageError for a mistake in a
    named config, for a deployment of another folder without `take_over`, and when no Prefect server can be
    reached.
    """
    project = of_project(configs)
    kinds = None if notify_on is None else automations.kinds_of(notify_on)
    advice = "start one with `tarmac up`, or name one in PREFECT_API_URL"
    if server.address() is None:
        raise UsageError(f"PREFECT_API_URL is not set: deployments need a Prefect server; {advice}")
    with server.connected(advice) as client:
        found = _ours(client, project.offers, take_over)
        offers = [offer for offer, _ in found]
        gone = _gone(client, offers, project.left_out)
        block = None if notify is None else automations.block_of(client, notify)
        notices, silenced = automations.notifications(client, block, kinds)
        if not dry_run:
            _ensure_pool(client)
        changes = [_register(client, offer, before, dry_run) for offer, before in found]
        ids = {offer.full_name: identity for offer, (_, identity) in zip(offers, changes, strict=True)}
        acts = [automations.put(client, one, dry_run) for one in _automations(offers, ids) + notices]
        for name in silenced:
            acts += automations.remove(client, name, dry_run)
        trained = {offer.name for offer in offers if offer.trains_after is not None}
        for name in {name.partition("/")[2] for name in [*ids, *gone]} - trained:
            acts += automations.remove(client, automations.train_name(name), dry_run)
        removed = [_remove(client, name, one, dry_run) for name, one in gone.items()]
    return Deployed([change for change, _ in changes] + removed, acts, project.left_out)


def _ours(
    client: SyncPrefectClient, offers: Sequence[Offer], take_over: bool
) -> list[tuple[Offer, DeploymentResponse | None]]:
    """Return the offers, by the names that this folder may give them, each with the server's deployment.

    If another folder has the project's name, the queue's name replaces it. UsageError if another folder has a
    deployment of the same name as a config here.
    """
    found = [(offer, _read(client, offer.full_name)) for offer in offers]
    owners = [(offer, _folder(before)) for offer, before in found if before is not None]
    strangers = [(offer, owner) for offer, owner in owners if owner != str(Path.cwd())]
    if take_over or not strangers:
        return found
    for offer, owner in strangers:
        if not offer.is_of_project:
            whose = f"belongs to {owner}" if owner is not None else "was not registered by Tarmac"
            raise UsageError(f"{offer.full_name} {whose}; rename the config, or take it with --take-over")
    renamed = [replace(one, name=folder.queue_name()) if one.is_of_project else one for one in offers]
    return [(offer, _read(client, offer.full_name)) for offer in renamed]


def _folder(deployment: DeploymentResponse) -> str | None:
    """Return the working directory of its runs."""
    steps = [inputs for step in deployment.pull_steps or [] for name, inputs in step.items() if name in STEPS]
    return str(steps[-1]["directory"]) if steps else None


def _gone(
    client: SyncPrefectClient, offers: Sequence[Offer], left_out: Mapping[str, str]
) -> dict[str, DeploymentResponse]:
    """Return the deployments of this folder that it no longer offers, by name."""
    names = {entrypoint: flow for flow, entrypoint in FLOWS.items()}
    names |= {
        entrypoint.replace("tarmac", f"flows.{flow}"): flow for flow, entrypoint in FLOWS.items()
    }  # before
    offered = {offer.full_name for offer in offers}
    ours = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
    tagged: list[DeploymentResponse] = []
    while page := client.read_deployments(deployment_filter=ours, limit=PAGE, offset=len(tagged)):
        tagged += page
    found: dict[str, DeploymentResponse] = {}
    for deployment in tagged:
        if deployment.entrypoint not in names or _folder(deployment) != str(Path.cwd()):
            continue
        name = f"{names[deployment.entrypoint]}/{deployment.name}"
        if name not in offered and not _is_offered(name, deployment, left_out):
            found[name] = deployment
    return found


def _is_offered(name: str, deployment: DeploymentResponse, left_out: Mapping[str, str]) -> bool:
    """Whether its config still offers it; one that has a mistake now may do so again."""
    config = deployment.parameters.get("config")
    if config is None:
        return False
    path = Path(config)
    if not path.exists() or config in left_out:
        return path.exists()
    try:
        return name in {offer.full_name for offer in of_config(load_config(path), path)}
    except UsageError:
        return True


def _read(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def _ensure_pool(client: SyncPrefectClient) -> None:
    """Make sure of a work pool, by default one whose workers start each run as a process of their own
    machine."""
    try:
        client.read_work_pool(pool())
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=pool(), type="process", base_job_template=template))


def _register(
    client: SyncPrefectClient, offer: Offer, before: DeploymentResponse | None, dry_run: bool
) -> tuple[Change, UUID]:
    wanted = _wanted(offer, before)
    fields = _differences(offer, wanted, before)
    state: State = "new" if before is None else "changed" if fields else "unchanged"
    identity = UNKNOWN if before is None else before.id
    if before is None and not dry_run:
        flow_id = client.create_flow_from_name(offer.flow)
        identity = client.create_deployment(flow_id=flow_id, name=offer.name, **wanted)
    elif before is not None and fields and not dry_run:
        client.update_deployment(before.id, DeploymentUpdate.model_validate(wanted))
    if not dry_run:
        _schedule(client, offer, identity, before)
    schedule = None if offer.cron is None else f"{offer.cron.cron} {offer.cron.timezone}"
    url = "" if identity == UNKNOWN else url_for("deployment", obj_id=identity) or ""
    return Change(offer.full_name, state, fields, schedule, url), identity


def _wanted(offer: Offer, before: DeploymentResponse | None) -> dict[str, Any]:
    """Return the deployment's fields that we set, by their names in the server's API, with what an operator
    has added to them."""
    tags = [] if before is None else before.tags
    variables = {} if before is None else before.job_variables
    return {
        "description": offer.description,
        "entrypoint": offer.entrypoint,
        "version": offer.version,
        "tags": list(dict.fromkeys([*tags, *offer.tags])),
        "parameters": offer.parameters,
        "parameter_openapi_schema": form(offer),
        "enforce_parameter_schema": True,
        "work_pool_name": pool(),
        "work_queue_name": folder.queue_name(),
        "job_variables": {
            **variables,
            **JOB_VARIABLES,
            "env": {**(variables.get("env") or {}), **JOB_VARIABLES["env"]},
        },
        "pull_steps": [{folder.ENTER: {"directory": str(Path.cwd())}}],
        **({} if offer.limit is None else {"concurrency_limit": offer.limit}),
    }


def form(offer: Offer) -> dict[str, Any]:
    """Return the schema of the flow's parameters. Unlike Prefect's own, it is closed, so that the server
    refuses an unknown one; and its choice of configs has the deployment's own."""
    flow: Flow[..., Any] = load_flow_from_entrypoint(offer.entrypoint, use_placeholder_flow=False)
    schema = parameter_schema(flow).model_dump(mode="json", exclude_unset=True)
    config = schema["properties"].get("config", {})
    if "enum" in config:
        config["enum"] = sorted({*config["enum"], offer.parameters["config"]})
    return {**schema, "additionalProperties": False}


def _differences(
    offer: Offer, wanted: Mapping[str, Any], before: DeploymentResponse | None
) -> dict[str, tuple[Any, Any]]:
    """Return the old and the new value of each field that differs; none for a new deployment."""
    if before is None:
        return {}
    ours = _ours_of(before)
    new = {**wanted, "schedule": _shown(offer.cron)}
    old = {name: getattr(before, name) for name in wanted}
    if "concurrency_limit" in wanted:  # which the server calls otherwise in its answer
        limit = before.global_concurrency_limit
        old["concurrency_limit"] = None if limit is None else limit.limit
    old["schedule"] = None if ours is None else _shown(ours.schedule)
    return {key: (_at(old, key), _at(new, key)) for key in differing_keys(old, new)}


def _shown(schedule: Any) -> str | None:
    return None if schedule is None else f"{schedule.cron} {schedule.timezone}"


def _at(values: Any, dotted: str) -> Any:
    """Return the value at a dotted key, whose parts may have dots themselves; None if there is none."""
    if dotted in values:
        return values[dotted]
    for key, value in values.items():
        if dotted.startswith(f"{key}.") and isinstance(value, dict):
            return _at(value, dotted.removeprefix(f"{key}."))
    return None


def _schedule(
    client: SyncPrefectClient, offer: Offer, deployment: UUID, before: DeploymentResponse | None
) -> None:
    """Give the deployment the offered schedule. A paused one stays paused, and schedules that somebody has
    made on the page stay as they are."""
    ours = None if before is None else _ours_of(before)
    if offer.cron is None:
        if ours is not None:
            client.delete_deployment_schedule(deployment, ours.id)
    elif ours is None:
        made = DeploymentScheduleCreate(schedule=offer.cron, slug=SCHEDULE_SLUG, active=True)
        client.create_deployment_schedules(deployment, [made])
    elif _shown(ours.schedule) != _shown(offer.cron):
        client.update_deployment_schedule(deployment, ours.id, schedule=offer.cron)


def _ours_of(deployment: DeploymentResponse) -> DeploymentSchedule | None:
    """Return the schedule of its config, if it has one."""
    return next((one for one in deployment.schedules if one.slug == SCHEDULE_SLUG), None)


def _remove(client: SyncPrefectClient, name: str, found: DeploymentResponse, dry_run: bool) -> Change:
    if not dry_run:
        client.delete_resource_owned_automations(f"prefect.deployment.{found.id}")
        client.delete_deployment(found.id)
    return Change(name, "removed")


def _automations(offers: Sequence[Offer], ids: Mapping[str, UUID]) -> list[AutomationCore]:
    """Return the automations that the server is to have, besides those that send messages."""
    wanted = automations.standing()
    for offer in offers:
        identity = ids[offer.full_name]
        if offer.flow == "verify":
            wanted.append(automations.verify_rebuilt(offer.name, identity))
        if offer.trains_after is not None:
            wanted.append(automations.train_rebuilt(offer.name, offer.trains_after, identity))
    return wanted
