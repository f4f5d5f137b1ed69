"""Registers what a project offers with a Prefect server; what `tarmac deploy` does.

What the server has is compared first and left alone where it is the same, while Prefect's own registration
writes it anew each time and drops the runs that were planned. The folder that it is called in becomes the
working directory of the runs, and owns its deployments: those of another folder are not taken over by
accident, and those whose config is gone are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.urls import url_for
from prefect.workers.process import ProcessWorker

from flows.operate import automations, server
from flows.operate.automations import Registered, State
from flows.operate.offers import (
    FLOWS,
    JOB_VARIABLES,
    POOL,
    SCHEDULE_SLUG,
    Offer,
    of_all,
    of_config,
    of_project,
)
from tasks.core.config import differing_keys, load
from tasks.core.errors import UsageError
from tasks.pulse import TAG

WORKING_DIRECTORY = "prefect.deployments.steps.set_working_directory"
UNKNOWN = UUID(int=0)
"""Of a deployment that a dry run does not make."""
PAGE = 200
"""Deployments that the server lists at once."""


@dataclass(frozen=True)
class Change:
    """What registering does to one deployment; `fields` has the old and the new value of each that differs,
    by dotted name."""

    name: str
    state: State
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    schedule: str | None = None
    url: str = ""


@dataclass(frozen=True)
class Deployed:
    """What registering has done, or would do; `left_out` says why something was not registered."""

    deployments: list[Change]
    automations: list[Registered]
    left_out: Mapping[str, str]


def deploy(
    configs: Sequence[Path] = (),
    *,
    take_over: bool = False,
    dry_run: bool = False,
    notify: str | None = None,
) -> Deployed:
    """Register the flows of these configs, or of all of the project, with the automations that they need.

    `notify` names a notification block as TYPE/NAME, which failures are sent to from then on. UsageError on
    a mistake in a named config, for a deployment of another folder without `take_over`, and when no Prefect
    server can be reached.
    """
    project = of_project(configs)
    advice = "start one with `tarmac up`, or name one in PREFECT_API_URL"
    if server.address() is None:
        raise UsageError(f"PREFECT_API_URL is not set: deployments need a Prefect server; {advice}")
    with server.asked(advice) as client:
        before = {offer.full_name: _read(client, offer.full_name) for offer in project.offers}
        offers, kept = _ours(project.offers, before, take_over)
        gone = _gone(client, offers, project.left_out)
        block = None if notify is None else automations.block_of(client, notify)
        if not dry_run:
            _ensure_pool(client)
        changes = [_register(client, offer, before[offer.full_name], dry_run) for offer in offers]
        removed = [_remove(client, name, found, dry_run) for name, found in gone.items()]
        ids = {offer.full_name: identity for offer, (_, identity) in zip(offers, changes, strict=True)}
        acts = [automations.put(client, one, dry_run) for one in _automations(client, offers, ids, block)]
        trained = {offer.name for offer in offers if offer.trains_after is not None}
        for name in {name.partition("/")[2] for name in [*ids, *gone]} - trained:
            acts += automations.remove(client, automations.train_name(name), dry_run)
    return Deployed([change for change, _ in changes] + removed, acts, {**project.left_out, **kept})


def _ours(
    offers: Sequence[Offer], before: Mapping[str, DeploymentResponse | None], take_over: bool
) -> tuple[list[Offer], dict[str, str]]:
    """The offers that this folder may register, and why not the others. What another project has registered
    for all serves this one, too; UsageError where it has a deployment of the same name as a config here."""
    ours, kept = [], {}
    everybodys = {offer.full_name for offer in of_all()}
    for offer in offers:
        found = before[offer.full_name]
        folder = None if found is None else _folder(found)
        if found is None or take_over or folder == str(Path.cwd()):
            ours.append(offer)
            continue
        whose = f"belongs to {folder}" if folder is not None else "was not registered by Tarmac"
        if offer.full_name not in everybodys:
            raise UsageError(f"{offer.full_name} {whose}; rename the config, or take it with --take-over")
        kept[offer.full_name] = f"{whose}, and does for this folder, too; --take-over takes it"
    return ours, kept


def _folder(deployment: DeploymentResponse) -> str | None:
    """The working directory of its runs."""
    steps = [step[WORKING_DIRECTORY] for step in deployment.pull_steps or [] if WORKING_DIRECTORY in step]
    return str(steps[-1]["directory"]) if steps else None


def _gone(
    client: SyncPrefectClient, offers: Sequence[Offer], left_out: Mapping[str, str]
) -> dict[str, DeploymentResponse]:
    """The deployments of this folder that none of its configs offers any more, by name."""
    names = {entrypoint: flow for flow, entrypoint in FLOWS.items()}
    offered = {offer.full_name for offer in offers}
    found: dict[str, DeploymentResponse] = {}
    for deployment in _tagged(client):
        if deployment.entrypoint not in names or _folder(deployment) != str(Path.cwd()):
            continue
        name = f"{names[deployment.entrypoint]}/{deployment.name}"
        if name not in offered and not _is_offered(name, deployment, left_out):
            found[name] = deployment
    return found


def _is_offered(name: str, deployment: DeploymentResponse, left_out: Mapping[str, str]) -> bool:
    """Whether its config still offers it; a config with a mistake in it may do so again."""
    config = deployment.parameters.get("config")
    if config is None:
        return name in {offer.full_name for offer in of_all()}
    path = Path(config)
    if not path.exists() or config in left_out:
        return path.exists()
    try:
        return name in {offer.full_name for offer in of_config(load(path), path)}
    except UsageError:
        return True


def _tagged(client: SyncPrefectClient) -> list[DeploymentResponse]:
    chosen = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    found: list[DeploymentResponse] = []
    while page := client.read_deployments(deployment_filter=chosen, limit=PAGE, offset=len(found)):
        found += page
    return found


def _read(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def _ensure_pool(client: SyncPrefectClient) -> None:
    """A work pool whose workers start each run as a process of their own machine."""
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def _register(
    client: SyncPrefectClient, offer: Offer, before: DeploymentResponse | None, dry_run: bool
) -> tuple[Change, UUID]:
    wanted = _wanted(offer)
    fields = _differences(offer, wanted, before)
    state: State = "new" if before is None else "changed" if fields else "unchanged"
    identity = UNKNOWN if before is None else before.id
    if state != "unchanged" and not dry_run:
        identity = client.create_deployment(
            flow_id=client.create_flow_from_name(offer.flow),
            name=offer.name,
            schedules=_schedules(offer, before),
            concurrency_limit=None,
            **wanted,
        )
    schedule = None if offer.cron is None else f"{offer.cron.cron} {offer.cron.timezone}"
    url = "" if identity == UNKNOWN else url_for("deployment", obj_id=identity) or ""
    return Change(offer.full_name, state, fields, schedule, url), identity


def _wanted(offer: Offer) -> dict[str, Any]:
    """The deployment's fields but for its schedules, as the server's API names them."""
    return {
        "description": offer.description,
        "entrypoint": offer.entrypoint,
        "tags": offer.tags,
        "parameters": offer.parameters,
        "parameter_openapi_schema": form(offer),
        "enforce_parameter_schema": True,
        "work_pool_name": POOL,
        "job_variables": JOB_VARIABLES,
        "pull_steps": [{WORKING_DIRECTORY: {"directory": str(Path.cwd())}}],
    }


def form(offer: Offer) -> dict[str, Any]:
    """The schema of the flow's parameters. It is closed, so that the server refuses an unknown one, which
    Prefect's own registration leaves open; and its choice of configs has the deployment's own."""
    flow: Flow[..., Any] = load_flow_from_entrypoint(offer.entrypoint, use_placeholder_flow=False)
    schema = parameter_schema(flow).model_dump(mode="json", exclude_unset=True)
    config = schema["properties"].get("config", {})
    if "enum" in config:
        config["enum"] = sorted({*config["enum"], offer.parameters["config"]})
    return {**schema, "additionalProperties": False}


def _differences(
    offer: Offer, wanted: Mapping[str, Any], before: DeploymentResponse | None
) -> dict[str, tuple[Any, Any]]:
    """The old and the new value of all that differs; everything of a deployment that is new."""
    new = {**wanted, "schedule": _shown(offer.cron), "concurrency_limit": None}
    if before is None:
        return {}
    limit = before.global_concurrency_limit
    ours = [entry.schedule for entry in before.schedules if entry.slug == SCHEDULE_SLUG]
    old = {name: getattr(before, name) for name in wanted}
    old |= {
        "schedule": _shown(ours[0]) if ours else None,
        "concurrency_limit": None if limit is None else limit.limit,
    }
    return {key: (_at(old, key), _at(new, key)) for key in differing_keys(old, new)}


def _shown(schedule: Any) -> str | None:
    return None if schedule is None else f"{schedule.cron} {schedule.timezone}"


def _at(values: Any, dotted: str) -> Any:
    """The value at a dotted key, whose parts may have dots themselves; None where there is none."""
    if dotted in values:
        return values[dotted]
    for key, value in values.items():
        if dotted.startswith(f"{key}.") and isinstance(value, dict):
            return _at(value, dotted.removeprefix(f"{key}."))
    return None


def _schedules(offer: Offer, before: DeploymentResponse | None) -> list[DeploymentScheduleCreate]:
    """The offered schedule, and those that somebody has made on the page; what is paused there stays so."""
    there = before.schedules if before is not None else []
    kept = [
        DeploymentScheduleCreate(
            schedule=entry.schedule, active=entry.active, slug=entry.slug, parameters=entry.parameters
        )
        for entry in there
        if entry.slug != SCHEDULE_SLUG
    ]
    if offer.cron is None:
        return kept
    is_active = all(entry.active for entry in there if entry.slug == SCHEDULE_SLUG)
    return [DeploymentScheduleCreate(schedule=offer.cron, slug=SCHEDULE_SLUG, active=is_active), *kept]


def _remove(client: SyncPrefectClient, name: str, found: DeploymentResponse, dry_run: bool) -> Change:
    if not dry_run:
        client.delete_deployment(found.id)
    return Change(name, "removed")


def _automations(
    client: SyncPrefectClient,
    offers: Sequence[Offer],
    ids: Mapping[str, UUID],
    block: UUID | None,
) -> list[AutomationCore]:
    """The automations that there are to be."""
    wanted = [*automations.standing()]
    if (failure := automations.failure(client, block)) is not None:
        wanted.append(failure)
    for offer in offers:
        identity = ids[offer.full_name]
        if offer.flow == "verify":
            wanted.append(automations.verify_rebuilt(identity))
        if offer.trains_after is not None:
            wanted.append(automations.train_rebuilt(offer.name, offer.trains_after, identity))
    return wanted
