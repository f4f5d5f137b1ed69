"""The chains of stages that the flows share: a dataset made, a run trained, a run evaluated."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.approval import approve
from flows.lifecycle import concerns, works_on
from tasks import control
from tasks.build import build, publish
from tasks.core import child, screen
from tasks.core.errors import NeedsApproval, TarmacError, Withdrawn, first_line
from tasks.core.schema import Config
from tasks.evaluate import evaluate, require
from tasks.gather import gather
from tasks.report import report
from tasks.runs import record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.plan import locate, plan
from tasks.stage import StageResult
from tasks.supervision.beforehand import require_startable
from tasks.supervision.status import config_of
from tasks.train import train
from tasks.tune import tune
from tasks.verify import verify

Stages = list[StageResult[Any]]
logger = logging.getLogger(__name__)


def make_dataset(
    config: Config, *, rehash: bool = False, accept_loss: bool = False, waits: bool = True
) -> tuple[Path, Stages]:
    """Build, verify and publish; the version that is current then.

    A loss that somebody has to accept is asked about on Prefect's page, where there is one.
    """
    try:
        built = build(config, rehash=rehash, accept_loss=accept_loss, waits=waits)
    except NeedsApproval as loss:
        approve(loss)
        built = build(config, rehash=rehash, accept_loss=True, waits=waits)
    version = built.details.version
    return version, [built, verify(config, version), publish(config, version)]


def train_on(config: Config, version: Path, *, fresh: bool = False) -> Stages:
    """Tune, train, evaluate, report and gather the run of a config on a version.

    UsageError and DataError for a config that the version does not fit.
    """
    require_startable(config, version, fresh=fresh)
    return _train(config, plan(config, version, fresh=fresh))


def go_on(run: RunFolder, given: Callable[[], Config]) -> Stages:
    """Tune, train, evaluate, report and gather a run that this flow run has begun before, on the version that
    it was begun on; a warning names what has changed since.

    `given` is the config as it is now, which is followed in what does not shape the weights.
    """
    own = config_of(run)
    concerns(own)
    version = version_path(record.load_record(run).data[0])
    config, changes = _followed(run, version, given)
    changes += _changes_of_data(version, config or own)
    tell = screen.warn if changes else logger.info
    since = f" ({'; '.join(changes)}: run again for a new run)" if changes else ""
    tell(f"{run.name} goes on with version {version.name}{since}")
    return _train(own, run) if config is None else train_on(config, version)


def _followed(run: RunFolder, version: Path, given: Callable[[], Config]) -> tuple[Config | None, list[str]]:
    """The config as it is now; None and why not where it is that of another run, or of none."""
    try:
        config = given()
        if locate(config, version).path.resolve() == run.path.resolve():
            return config, []
    except TarmacError as error:
        return None, [first_line(error)]
    return None, ["the config, or what is left out of the data, has changed since"]


def _changes_of_data(version: Path, config: Config) -> list[str]:
    """That a build of the config would not make this version again."""
    target = "tasks.dataset.building.freshness:is_up_to_date"
    arguments = {"config": config.model_dump(mode="json")}
    try:
        made = child.call(
            target, arguments, is_private=config.dataset.private, on_idle=control.raise_if_withdrawn
        )
    except Withdrawn:
        raise
    except TarmacError as error:
        return [first_line(error)]
    is_same = made is not None and Path(made).resolve() == version.resolve()
    return [] if is_same else ["the data has changed since"]


def _train(config: Config, run: RunFolder) -> Stages:
    works_on(run)
    tuned = tune(config, run)
    return [tuned, train(run, tuned.details.started), *evaluate_run(run)]


def evaluate_run(run: RunFolder) -> Stages:
    """Evaluate, report and gather a run; DataError afterwards that names each evaluation without a result."""
    evaluated = evaluate(run)
    stages: Stages = [evaluated, report(run), gather(run)]
    require(evaluated.details)
    return stages
