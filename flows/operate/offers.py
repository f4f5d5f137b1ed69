"""What a project offers on a Prefect server: the deployments of its configs, and three for the whole project.

Each config gives `build/NAME`, with its schedule, and `pipeline/NAME` where it trains; each project gives
`verify/PROJECT`, `evaluate/PROJECT` and `doctor/PROJECT`, by the name of its folder. `tarmac deploy`
registers them, and the same values are written as the prefect.yaml that `prefect deploy` reads. Flows are
named by module path, so that they run from any folder and from an installed wheel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.schedules import CronSchedule

from flows.operate import folder
from flows.operate.automations import TAKE_UP
from flows.operate.environment import DEFAULTS
from flows.parameters import choices, configured
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.events import TAG

POOL = "tarmac"
FLOWS = {
    "build": "flows.build.build_flow",
    "pipeline": "flows.pipeline.pipeline",
    "verify": "flows.verify.verify_flow",
    "evaluate": "flows.evaluate.evaluate_flow",
    "doctor": "flows.doctor.doctor_flow",
}
"""The entrypoint of each flow that is deployed."""
SCHEDULE_SLUG = "config"

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
            )
        },
        # A tasks.py in the project's folder is not taken for Tarmac's.
        "PYTHONSAFEPATH": "1",
        # The environment that the worker runs in stays as it is.
        "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES": "false",
    },
}

HEAD = """\
# What this project offers on a Prefect server, for `prefect deploy`. It is generated; to write it again:
#   tarmac deploy --write deploy/prefect.yaml
# Register it from the project's folder, whose relative paths the flows use:
#   prefect --no-prompt deploy --all --prefect-file deploy/prefect.yaml
# `tarmac deploy` registers the same without this file, and the automations and closed forms besides.
"""


@dataclass(frozen=True)
class Offer:
    """One deployment. `trains_after` is the folder of the dataset whose rebuilding starts it."""

    flow: str
    name: str
    description: str
    parameters: dict[str, Any]
    cron: CronSchedule | None = None
    trains_after: Path | None = None

    @property
    def full_name(self) -> str:
        """The name as commands and pages have it, such as `build/digits-clip`."""
        return f"{self.flow}/{self.name}"

    @property
    def entrypoint(self) -> str:
        return FLOWS[self.flow]

    @property
    def is_of_project(self) -> bool:
        """Whether it is offered once per project, and not for a config."""
        return "config" not in self.parameters

    @property
    def tags(self) -> list[str]:
        return [TAG, TAKE_UP]


@dataclass(frozen=True)
class Project:
    """The deployments of a project's configs; `left_out` says why other configs give none."""

    offers: tuple[Offer, ...]
    left_out: dict[str, str]


def of_project(named: Sequence[Path] = ()) -> Project:
    """The deployments of the configs that are named, or else of every one in `configs`.

    UsageError where a named config cannot be deployed; one that is not named is left out with the reason.
    """
    offers: list[Offer] = []
    left_out: dict[str, str] = {}
    owners: dict[str, Path] = {}
    for path in named or [Path(choice) for choice in choices()]:
        try:
            config = configured(path, None)
            if (other := owners.get(config.name)) is not None:
                raise UsageError(f"{path}: name: {other} is called {config.name} too; rename one")
            offers += of_config(config, path)
            owners[config.name] = path
        except UsageError as error:
            if named:
                raise
            left_out[str(path)] = str(error)
    return Project((*offers, *_of_all()), left_out)


def _of_all() -> list[Offer]:
    """What is offered once per project."""
    described = {
        "verify": "Checks a dataset, one of its versions, or anybody's WebDataset tars for damage.",
        "evaluate": "Does the evaluations of a run that have no result yet.",
        "doctor": "Says why a run hangs or is slow, with evidence; it is not disturbed.",
    }
    return [Offer(flow, folder.project_name(), text, {}) for flow, text in described.items()]


def of_config(config: Config, path: Path) -> list[Offer]:
    """The deployments of one config; UsageError for a schedule that Prefect cannot read."""
    schedule = config.schedule
    trains_after = schedule is not None and schedule.then == "train"
    parameters = {"config": from_here(path)}
    built = Offer(
        "build",
        config.name,
        f"Brings the dataset {config.dataset.output} up to date: only what changed is redone.\n\n"
        f"Config: `{from_here(path)}`",
        parameters,
        cron=_cron(config, path),
    )
    if config.train is None:
        return [built]
    trained = Offer(
        "pipeline",
        config.name,
        "From raw data to a report of evaluated checkpoints. The same values again resume the same run.\n\n"
        f"Config: `{from_here(path)}`",
        # An empty form of overrides: with none, Prefect's page hides its fields behind a switch.
        {**parameters, "overrides": {}},
        trains_after=Path(os.path.abspath(config.dataset.output)) if trains_after else None,
    )
    return [built, trained]


def _cron(config: Config, path: Path) -> CronSchedule | None:
    if config.schedule is None:
        return None
    cron, timezone = config.schedule.cron, config.schedule.timezone
    try:
        return CronSchedule(cron=cron, timezone=timezone)
    except ValueError:
        raise UsageError(
            f"{path}: schedule.cron: {cron!r} ({timezone}) is no schedule;"
            ' it takes five fields such as "0 2 * * *"'
        ) from None


def from_here(path: Path) -> str:
    """The path as the runs see it, whose working directory is this one: relative where it lies in it."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)


def prefect_file(offers: Sequence[Offer]) -> str:
    """The text of a prefect.yaml with these deployments, which is the same in every folder: what depends on
    the folder comes from a build step."""
    step = "folder"
    queue = f"{{{{ {step}.queue }}}}"
    pool = {
        "name": POOL,
        "work_queue_name": queue,
        "job_variables": JOB_VARIABLES,
    }  # one, which YAML refers to
    deployments = [
        {
            "name": f"{{{{ {step}.project }}}}" if offer.is_of_project else offer.name,
            "entrypoint": offer.entrypoint,
            "description": offer.description,
            "tags": offer.tags,
            "parameters": offer.parameters,
            "schedules": _schedules(offer),
            "work_pool": pool,
        }
        for offer in offers
    ]
    steps = {
        "build": [{folder.NAMES: {"id": step}}],
        "pull": [{folder.ENTER: {"directory": f"{{{{ {step}.path }}}}"}}],
    }
    whole = {"name": TAG, **steps, "deployments": deployments}
    return HEAD + yaml.dump(whole, Dumper=_Readable, sort_keys=False, width=110)


def _schedules(offer: Offer) -> list[dict[str, str]]:
    if offer.cron is None:
        return []
    return [{"cron": offer.cron.cron, "timezone": offer.cron.timezone or "UTC", "slug": SCHEDULE_SLUG}]


class _Readable(yaml.SafeDumper):
    """Writes a text of several lines as a block."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _block)
