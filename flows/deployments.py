"""Registers flows with a Prefect server; what `tarmac deploy` does.

What the server has is compared first and left alone where it is the same, while Prefect's own registration
writes it anew each time and drops the runs that were planned. The folder that it is called in becomes the
working directory of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import MissingFlowError, ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.urls import url_for
from prefect.workers.process import ProcessWorker

from flows import server
from flows.offers import PIPELINE, Offer, from_configs, from_file
from tasks.core import screen
from tasks.core.errors import UsageError

FILE = Path("deploy/prefect.yaml")


@dataclass(frozen=True)
class Deployed:
    """A deployment as the server has it now."""

    name: str
    flow: str
    schedule: str | None
    url: str
    state: Literal["new", "changed", "unchanged"]


def deploy(configs: Sequence[Path]) -> list[Deployed]:
    """Register each config's flows, or those of deploy/prefect.yaml when none is given.

    UsageError on a mistake in the files, and when no Prefect server can be reached.
    """
    offers = from_configs(configs) if configs else from_file(FILE)
    advice = "start one with `prefect server start` and set PREFECT_API_URL=http://127.0.0.1:4200/api"
    if server.address() is None:
        raise UsageError(f"PREFECT_API_URL is not set: deployments need a Prefect server; {advice}")
    with server.asked(advice) as client:
        for pool in dict.fromkeys(offer.work_pool.name for offer in offers):
            _ensure_pool(client, pool)
        trained = {offer.name for offer in offers if offer.entrypoint == PIPELINE}
        for name in {offer.name for offer in offers if configs} - trained:
            _put_to_rest(client, f"pipeline/{name}")
        return [_register(client, offer) for offer in offers]


def _put_to_rest(client: SyncPrefectClient, name: str) -> None:
    """Take its schedule from a pipeline whose config trains no more, and say that it is still there."""
    found = _read(client, name)
    if found is None:
        return
    for schedule in found.schedules:
        client.delete_deployment_schedule(found.id, schedule.id)
    idle = " without its schedule" if found.schedules else ""
    screen.warn(
        f"{name} is still there{idle}, although its config trains no more; to remove it: "
        f"prefect deployment delete {name}"
    )


def _ensure_pool(client: SyncPrefectClient, name: str) -> None:
    """A work pool whose workers start each run as a process of their own machine."""
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))


def _flow(offer: Offer) -> Flow[..., Any]:
    try:
        return load_flow_from_entrypoint(offer.entrypoint, use_placeholder_flow=False)
    except (MissingFlowError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and not offer.entrypoint.startswith(f"{error.name}."):
            raise  # the flow is there, but something that it imports is not
        raise UsageError(f"{offer.name}: entrypoint: there is no flow {offer.entrypoint}") from None


def _register(client: SyncPrefectClient, offer: Offer) -> Deployed:
    flow = _flow(offer)
    name = f"{flow.name}/{offer.name}"
    wanted: dict[str, Any] = {
        "description": offer.description,
        "entrypoint": offer.entrypoint,
        "tags": offer.tags,
        "parameters": offer.parameters,
        "parameter_openapi_schema": parameter_schema(flow).model_dump(mode="json", exclude_unset=True),
        "work_pool_name": offer.work_pool.name,
        "job_variables": offer.work_pool.job_variables,
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(Path.cwd())}}],
    }
    before = _read(client, name)
    state: Literal["new", "changed", "unchanged"] = "new" if before is None else "changed"
    if before is not None and _is_same(offer, wanted, before):
        identity, state = before.id, "unchanged"
    else:
        identity = client.create_deployment(
            flow_id=client.create_flow_from_name(flow.name),
            name=offer.name,
            schedules=_schedules(offer, before),
            concurrency_limit=offer.concurrency_limit.limit,
            concurrency_options=ConcurrencyOptions(
                collision_strategy=ConcurrencyLimitStrategy(offer.concurrency_limit.collision_strategy)
            ),
            **wanted,
        )
    return Deployed(
        name=name,
        flow=flow.name,
        schedule=", ".join(f"{entry.cron} {entry.timezone}" for entry in offer.schedules) or None,
        url=url_for("deployment", obj_id=identity) or "",
        state=state,
    )


def _read(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def _is_same(offer: Offer, wanted: dict[str, Any], before: DeploymentResponse) -> bool:
    """Whether the server's deployment is the offered one; a schedule that is paused there still counts."""
    limit, options = before.global_concurrency_limit, before.concurrency_options
    return (
        all(getattr(before, field) == value for field, value in wanted.items())
        and limit is not None
        and options is not None
        and limit.limit == offer.concurrency_limit.limit
        and options.collision_strategy == offer.concurrency_limit.collision_strategy
        and {entry.slug: entry.schedule for entry in before.schedules}
        == {entry.slug: entry.as_cron() for entry in offer.schedules}
    )


def _schedules(offer: Offer, before: DeploymentResponse | None) -> list[DeploymentScheduleCreate]:
    """The offered schedules, which replace the server's; one that somebody paused there stays paused."""
    active = {entry.slug: entry.active for entry in before.schedules} if before is not None else {}
    return [
        DeploymentScheduleCreate(
            schedule=entry.as_cron(), slug=entry.slug, active=active.get(entry.slug, True)
        )
        for entry in offer.schedules
    ]
