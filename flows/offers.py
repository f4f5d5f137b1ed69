"""The deployments that a Prefect server can offer: those of a prefect.yaml, or those of a config.

Each names its flow by module path, so that it runs from any folder and from an installed wheel. Of the file
only the keys that deploy/prefect.yaml uses are understood; any other is an error that names `prefect deploy`,
which reads Prefect's whole format.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from prefect.client.schemas.schedules import CronSchedule
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.environment import DEFAULTS
from tasks.core.config import load
from tasks.core.errors import UsageError
from tasks.core.schema import Config

POOL = "tarmac"
BUILD = "flows.build.build_flow"
PIPELINE = "flows.pipeline.pipeline"

JOB_VARIABLES: dict[str, Any] = {
    # With true, a flow dies at its next log line once its worker is gone.
    "stream_output": False,
    "env": {
        **{
            name: DEFAULTS[name]
            for name in (
                "DO_NOT_TRACK",
                "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY",
                "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS",
                "PREFECT_RESULTS_DEFAULT_SERIALIZER",
            )
        },
        # A tasks.py in the project's folder is not taken for Tarmac's.
        "PYTHONSAFEPATH": "1",
        # The environment that the worker runs in stays as it is.
        "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES": "false",
        # Seconds; deploy/zombies.yaml counts on it.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    },
}


class Entry(BaseModel):
    """A block of prefect.yaml: a key that is not understood is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Schedule(Entry):
    """When a deployment runs by itself."""

    cron: str
    timezone: str = "UTC"
    slug: str

    def as_cron(self) -> CronSchedule:
        """Prefect's schedule; ValueError for a wrong expression or an unknown time zone."""
        return CronSchedule(cron=self.cron, timezone=self.timezone)


class Limit(Entry):
    """How many runs of a deployment there may be at once, and what happens to the next."""

    limit: int = Field(ge=1)
    collision_strategy: Literal["ENQUEUE", "CANCEL_NEW"]


class Pool(Entry):
    """Which workers run it, and how they start it."""

    name: str
    job_variables: dict[str, Any] = {}


class Offer(Entry):
    """One deployment, with the keys of prefect.yaml."""

    name: str = Field(pattern=r"^[^/%&<>]+$")
    entrypoint: str
    description: str
    tags: list[str] = []
    parameters: dict[str, Any] = {}
    schedules: list[Schedule] = []
    concurrency_limit: Limit
    work_pool: Pool


class PrefectFile(Entry):
    """A whole prefect.yaml; `definitions` only holds the anchors of its blocks."""

    name: str
    definitions: dict[str, Any] = {}
    deployments: list[Offer]


def from_file(path: Path) -> list[Offer]:
    """The deployments of a prefect.yaml; UsageError names the key that is wrong or not understood."""
    try:
        offers = PrefectFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).deployments
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); say what to register: tarmac deploy CONFIG…"
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: this is no valid YAML ({' '.join(str(error).split())})") from None
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in mistake["loc"])
        raise UsageError(
            f"{path}: {key}: {mistake['msg'].lower()}; mend it, or use: prefect deploy --prefect-file {path}"
        ) from None
    for offer in offers:
        _check_schedules(offer, f"{path}: {offer.name}: schedules.cron")
    return offers


def from_configs(paths: Sequence[Path]) -> list[Offer]:
    """A build for each config and, where it trains, a pipeline; UsageError names the wrong key."""
    named: dict[str, Path] = {}
    offers: list[Offer] = []
    for path in paths:
        config = load(path)
        if config.name in named:
            raise UsageError(f"{path}: name: {named[config.name]} is called {config.name} too; rename one")
        named[config.name] = path
        offers += of_config(config, path)
    return offers


def of_config(config: Config, path: Path) -> list[Offer]:
    """The deployments of one config; its schedule starts the pipeline with `then: train`, else the build.
    UsageError for a schedule that Prefect cannot read."""
    kinds = [
        (
            "build",
            BUILD,
            f"Brings the dataset {config.dataset.output} up to date: only what changed is redone.",
        )
    ]
    if config.train is not None:
        text = (
            "From raw data to a report of evaluated checkpoints. The same values again resume the same run."
        )
        kinds.append(("train", PIPELINE, text))
    schedule = config.schedule
    offers = [
        Offer(
            name=config.name,
            entrypoint=entrypoint,
            description=f"{description}\n\nConfig: `{path}`",
            tags=["tarmac", kind],
            # An empty form of overrides: with none, Prefect's page hides its fields behind a switch.
            parameters={"config": _from_here(path), **({"overrides": {}} if kind == "train" else {})},
            schedules=[Schedule(cron=schedule.cron, slug="config")]
            if schedule is not None and schedule.then == kind
            else [],
            concurrency_limit=Limit(limit=1, collision_strategy="ENQUEUE"),
            work_pool=Pool(name=POOL, job_variables=JOB_VARIABLES),
        )
        for kind, entrypoint, description in kinds
    ]
    for offer in offers:
        _check_schedules(offer, f"{path}: schedule.cron")
    return offers


def _from_here(path: Path) -> str:
    """The path as the runs see it, whose working directory is this one: relative where it lies in it."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)


def _check_schedules(offer: Offer, key: str) -> None:
    for schedule in offer.schedules:
        try:
            schedule.as_cron()
        except ValueError:
            raise UsageError(
                f"{key}: {schedule.cron!r} ({schedule.timezone}) is no schedule;"
                ' it takes five fields such as "0 2 * * *"'
            ) from None
