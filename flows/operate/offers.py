"""The deployments that a project offers on a Prefect server: those of its configs, and three for the project.

Each config gives `build/NAME`, with its schedule, and `pipeline/NAME` if it trains; each project gives
`verify/PROJECT`, `evaluate/PROJECT` and `doctor/PROJECT`, by the name of its folder. `tarmac deploy`
registers them, or writes the same values as the prefect.yaml that `prefect deploy` reads. Flows are named by
module path, so that they run from any folder and from an installed wheel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.schedules import CronSchedule
from prefect.settings import get_current_settings

from flows.operate import folder
from flows.operate.automations import TAKE_UP
from flows.operate.environment import DEFAULTS
from flows.parameters import choices, configured
from tasks.core.errors import UsageError
from tasks.core.files import blake3_file
from tasks.core.process import USERS
from tasks.core.schema import Config
from tasks.events import TAG

POOL = "tarmac"
"""The work pool, unless PREFECT_DEFAULT_WORK_POOL_NAME names another."""
TAGS = [TAG, TAKE_UP]
"""The tags of every deployment."""
FLOWS = {
    "build": "tarmac.build_flow",
    "pipeline": "tarmac.pipeline",
    "verify": "tarmac.verify_flow",
    "evaluate": "tarmac.evaluate_flow",
    "doctor": "tarmac.doctor_flow",
}
"""The entrypoint of each flow that is deployed."""
SCHEDULE_SLUG = "config"

JOB_VARIABLES: dict[str, Any] = {
    # With true, a flow dies at its next log line once its worker is gone.
    "stream_output": False,
    "env": {
        **{name: value for name, value in DEFAULTS.items() if "_SERVER_" not in name},
        # A tasks.py in the project's folder is not taken for Tarmac's.
        "PYTHONSAFEPATH": "1",
        USERS + "PYTHONSAFEPATH": "",  # what a program of the user's is given
        # The environment that the worker runs in stays as it is.
        "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES": "false",
    },
}

HEAD = """\
# What this project offers on a Prefect server, for `prefect deploy`. It is generated; to write it again:
#   tarmac deploy --write deploy/prefect.yaml
# Register it from the project's folder, whose relative paths the flows use:
#   prefect --no-prompt deploy --all --prefect-file deploy/prefect.yaml
# `tarmac deploy` registers the same without this file, with the automations and closed forms besides.
"""


@dataclass(frozen=True)
class Offer:
    """One deployment. `trains_after` is the folder of the dataset whose rebuild starts it, `limit` how many
    of its runs may run at once, and `digest` that of its config's text; None where there is no such thing."""

    flow: str
    name: str
    description: str
    parameters: dict[str, Any]
    cron: CronSchedule | None = None
    trains_after: Path | None = None
    limit: int | None = None
    digest: str | None = None

    @property
    def tags(self) -> list[str]:
        """Tags by which a page filters; those of a config include its name."""
        return [*TAGS] if self.is_of_project else [*TAGS, self.name]

    @property
    def version(self) -> str:
        """Tarmac's version, and for a config a mark that changes with its text."""
        return version("tarmac") + ("" if self.digest is None else f"-{self.digest[:8]}")

    @property
    def full_name(self) -> str:
        """The name in commands and on pages, such as `build/digits-clip`."""
        return f"{self.flow}/{self.name}"

    @property
    def entrypoint(self) -> str:
        return FLOWS[self.flow]

    @property
    def is_of_project(self) -> bool:
        """Whether it is offered once per project, and not for a config."""
        return "config" not in self.parameters


@dataclass(frozen=True)
class Project:
    """The deployments of a project's configs; `left_out` gives the reason for each config without any."""

    offers: tuple[Offer, ...]
    left_out: dict[str, str]


def pool() -> str:
    """Return the work pool whose workers run what is deployed."""
    return get_current_settings().deployments.default_work_pool_name or POOL


def of_project(named: Sequence[Path] = ()) -> Project:
    """Return the deployments of the named configs, or else of every one in `configs`.

    UsageError if a named config cannot be deployed; one that is not named is left out with the reason.
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
            first, *mistakes = str(error).split("\n  ")  # a list has a line per config
            left_out[str(path)] = f"{first}: {'; '.join(mistakes)}" if mistakes else first
    per_project = {
        "verify": "Checks a dataset, one of its versions, or anybody's WebDataset tars for damage.",
        "evaluate": "Completes the evaluations of a run that have no result yet.",
        "doctor": "Explains why a run hangs or is slow, with evidence; the run is not disturbed.",
    }
    offers += [Offer(flow, folder.project_name(), text, {}) for flow, text in per_project.items()]
    return Project(tuple(offers), left_out)


def of_config(config: Config, path: Path) -> list[Offer]:
    """Return the deployments of one config; UsageError for a schedule that Prefect cannot read."""
    schedule, output, given = config.schedule, config.dataset.output, from_here(path)
    cron: CronSchedule | None = None
    if schedule is not None:
        try:
            cron = CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
        except ValueError:
            raise UsageError(
                f"{path}: schedule.cron: {schedule.cron!r} ({schedule.timezone}) is no schedule;"
                ' it takes five fields such as "0 2 * * *"'
            ) from None
    what = f"Brings the dataset {output} up to date: only what changed is redone."
    text = f"{what}\n\nConfig: `{given}`"
    common: Any = {"limit": schedule.limit if schedule else None, "digest": blake3_file(path)}
    built = Offer("build", config.name, text, {"config": given}, cron=cron, **common)
    if config.train is None:
        return [built]
    what = "From raw data to a report of evaluated checkpoints. The same values again resume the same run."
    trained = Offer(
        "pipeline",
        config.name,
        f"{what}\n\nConfig: `{given}`",
        # An empty form of overrides: with none, Prefect's page hides its fields behind a switch.
        {"config": given, "overrides": {}},
        trains_after=Path(os.path.abspath(output)) if schedule and schedule.then == "train" else None,
        **common,
    )
    return [built, trained]


def from_here(path: Path) -> str:
    """Return the path for the runs, whose working directory is this one: relative if it lies in it."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)


def prefect_file(offers: Sequence[Offer]) -> str:
    """Return the text of a prefect.yaml with these deployments. It is the same in every folder: what depends
    on the folder comes from a build step."""
    # One dict, to which YAML refers from every deployment.
    shared = {"name": pool(), "work_queue_name": "{{ folder.queue }}", "job_variables": JOB_VARIABLES}
    deployments = [
        {
            "name": "{{ folder.project }}" if offer.is_of_project else offer.name,
            "entrypoint": offer.entrypoint,
            "description": offer.description,
            "tags": offer.tags,
            "parameters": offer.parameters,
            "schedules": _schedules(offer),
            **({} if offer.limit is None else {"concurrency_limit": offer.limit}),
            "work_pool": shared,
        }
        for offer in offers
    ]
    steps = {
        "build": [{folder.NAMES: {"id": "folder"}}],
        "pull": [{folder.ENTER: {"directory": "{{ folder.path }}"}}],
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
