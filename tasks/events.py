"""The events that Tarmac emits on Prefect's server, for its automations to act on.

Events are best effort: they are sent in the background, and a server that does not take one never delays the
work.

A pulse is the sign of life of a flow run, which the automation tarmac-zombies listens to. Prefect's own
heartbeat comes every 30 seconds at best, and lasts until the flow's process ends. A server that is away for a
minute then misses three of them and marks a healthy run as crashed once it is back; and a heartbeat after a
run was suspended has it marked a little later. A pulse is more frequent, is sent only to a server that
answers, and its last event announces that no more will come.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID, uuid5

from prefect.assets import Asset, AssetProperties
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.settings import get_current_settings

if TYPE_CHECKING:
    from tasks.core.schema import Config
    from tasks.dataset.building.conversion.result import BuildResult
    from tasks.runs.folder import RunFolder
    from tasks.supervision.status import RunStatus

PULSE = "tarmac.flow-run.pulse"
STOPPED = "tarmac.flow-run.stopped"
"""No further pulse is to be expected; the flow run's state gives the reason."""
INTERVAL_S = 7.0
TAG = "tarmac"
"""The tag that every flow run of Tarmac has."""
REBUILT = "tarmac.dataset.rebuilt"
STALE = "tarmac.dataset.stale"
DATASET = "tarmac.dataset."
"""This and a config's name make the resource of its dataset."""
RUN = "tarmac.run."
"""This and a run's id make its resource; this and a RunEvent make an event of it."""
RunEvent = Literal["stalled", "goes-on", "trained", "evaluated", "fell-short", "failed"]
AssetKind = Literal["dataset", "checkpoint", "evaluation"]
UPSTREAM = {"dataset": "raw", "checkpoint": "dataset", "evaluation": "checkpoint"}
"""What each asset of a config is made of."""
SAME = UUID("8f0cb7d2-6b6a-4c0e-9a39-6a4a0b7a3f5d")
"""The namespace of the ids of a run's events."""


def emit_pulse(event: str, flow_run_id: UUID) -> None:
    """Emit PULSE or STOPPED for a flow run."""
    emit_event(
        event,
        resource={"prefect.resource.id": f"prefect.flow-run.{flow_run_id}"},
        related=[{"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}],
    )


def emit_rebuilt(config: Config, built: BuildResult, flow: str) -> None:
    """Report that a rebuild by `flow` has made a new version of a dataset current, if it has.

    The event's resource names the project's folder, that of the dataset and the flow that has built it; its
    payload names the version, the version's folder and how many samples came, went and were replaced.
    """
    if built.version.name == built.previous:
        return
    emit_event(
        REBUILT,
        resource={
            "prefect.resource.id": f"{DATASET}{config.name}",
            "prefect.resource.name": config.name,
            "tarmac.folder": os.getcwd(),
            "tarmac.dataset": os.path.abspath(config.dataset.output),
            "tarmac.flow": flow,
        },
        payload={
            "version": built.version.name,
            "folder": os.path.abspath(built.version),
            "gained": built.gained,
            "lost": built.lost,
            "replaced": built.replaced,
        },
    )


def emit_stale(config: str, dataset: str, cause: str) -> None:
    """Report that the dataset of a config is older than the config wants."""
    emit_event(
        STALE,
        resource={
            "prefect.resource.id": f"{DATASET}{config}",
            "prefect.resource.name": config,
            "tarmac.folder": os.getcwd(),
            "tarmac.dataset": os.path.abspath(dataset),
        },
        payload={"config": config, "cause": cause},
    )


def emit_run(event: RunEvent, run: RunFolder, config: str, cause: str, **facts: Any) -> None:
    """Report what has happened to a run of the config of this name, in one sentence; `facts` are further
    fields of the payload. Two flow runs that watch one run report the same event, which has one id."""
    if get_current_settings().api.url is None:  # Prefect would start a server to emit it to
        return
    name = f"{RUN}{event}"
    emit_event(
        name,
        resource={
            "prefect.resource.id": f"{RUN}{run.id}",
            "prefect.resource.name": run.name,
            "tarmac.config": config,
            "tarmac.folder": os.getcwd(),
        },
        payload={"run": run.name, "id": run.id, "config": config, "cause": cause, **facts},
        id=uuid5(SAME, f"{run.path.resolve()} {name} {cause} {sorted(facts.items())}"),
    )


def emit_asset(kind: AssetKind, config: str, description: str, once: str = "", **facts: Any) -> None:
    """Report that this asset of a config, such as `tarmac://checkpoint/digits-clip`, was made anew, in the
    events that Prefect emits for a function under its `@materialize`; `facts` are its metadata. Reports with
    the same `once` are one event."""
    if get_current_settings().api.url is None:
        return
    named = AssetProperties(name=f"{kind} of {config}", description=description)
    asset = Asset(key=f"tarmac://{kind}/{config}", properties=named)
    made_of = Asset(key=f"tarmac://{UPSTREAM[kind]}/{config}")
    emit_event("prefect.asset.referenced", resource=AssetContext.asset_as_resource(made_of), related=[])
    emit_event(
        "prefect.asset.materialization.succeeded",
        resource=AssetContext.asset_as_resource(asset),
        related=[AssetContext.asset_as_related(made_of), AssetContext.related_materialized_by(TAG)],
        payload=facts,
        id=uuid5(SAME, f"{asset.key} {once}") if once else None,
    )


def emit_checkpoint(status: RunStatus) -> None:
    """Report the checkpoint that `checkpoints/best` points at as an asset of the config, if there is one;
    once in an attempt, however often this is called."""
    if (best := status.best) is not None:
        name, where = status.record.name, str(status.run.best.resolve())
        once = f"{where} {len(status.record.attempts)}"
        emit_asset("checkpoint", name, str(best), once, run=status.run.name, step=best.step, folder=where)
