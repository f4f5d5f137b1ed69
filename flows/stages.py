"""The chains of stages that the flows share: make a dataset, train a run, evaluate a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.approval import approve
from flows.lifecycle import concerns, works_on
from tasks import control, events
from tasks.assess import Assessed, assess, require_trainable
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
from tasks.runs.followed import Followed
from tasks.runs.plan import locate, plan
from tasks.stage import StageResult
from tasks.supervision.beforehand import require_startable
from tasks.supervision.evaluating.following import reopen
from tasks.supervision.launch import Goal
from tasks.supervision.status import config_of
from tasks.train import train
from tasks.tune import tune
from tasks.verify import verify

Stages = list[StageResult[Any]]
logger = logging.getLogger(__name__)


def make_dataset(
    config: Config, flow: str, *, rehash: bool = False, accept_loss: bool = False, waits: bool = True
) -> tuple[Path, Stages]:
    """Build, verify and publish in the flow of this name; returns the version that is current then.

    Where a person has to accept a loss, Prefect's page asks, if there is one. Once a new version is current,
    an event reports it.
    """
    try:
        built = build(config, rehash=rehash, accept_loss=accept_loss, waits=waits)
    except NeedsApproval as loss:
        approve(loss)
        built = build(config, rehash=rehash, accept_loss=True, waits=waits)
    version = built.details.version
    stages: Stages = [built, verify(config, version), assess(config, version), publish(config, version)]
    events.emit_rebuilt(config, built.details, flow)
    return version, stages


def require_sound(stages: Stages) -> None:
    """DataError if a stage that assessed the samples has found an error."""
    for stage in stages:
        if isinstance(stage.details, Assessed):
            require_trainable(stage.details.findings)


def train_on(config: Config, version: Path, *, fresh: bool = False) -> Stages:
    """Tune, train, evaluate, report and gather the run of a config on a version.

    UsageError and DataError for a config that the version does not fit.
    """
    require_startable(config, version, fresh=fresh)
    return _train(config, plan(config, version, fresh=fresh))


def go_on(run: RunFolder, given: Callable[[], Config]) -> Stages:
    """Tune, train, evaluate, report and gather a run that this flow run has begun before, on the version that
    it was begun on; a warning names what has changed since.

    `given` returns the present config, which is followed in what does not shape the weights.
    """
    own = config_of(run)
    concerns(own)
    version = version_path(record.load_record(run).data[0])
    config: Config | None = None
    changes: list[str] = []
    try:
        config = given()
        if locate(config, version).path.resolve() != run.path.resolve():
            config = None
            changes.append("the config, or what is left out of the data, has changed since")
    except TarmacError as error:
        config = None
        changes.append(first_line(error))
    changes += _changes_of_data(version, config or own)
    line = f"{run.name} goes on with version {version.name}"
    if changes:
        screen.warn(f"{line} ({'; '.join(changes)}: run again for a new run)")
    else:
        logger.info(line)
    return _train(own, run) if config is None else train_on(config, version)


def _changes_of_data(version: Path, config: Config) -> list[str]:
    """Return why a build of the config would not make this version again, if it would not."""
    target = "tasks.dataset.building.freshness:is_up_to_date"
    arguments = {"config": config.model_dump(mode="json")}
    private = config.dataset.private
    try:
        made = child.call(target, arguments, is_private=private, on_idle=control.raise_if_withdrawn)
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


def follow_on(config: Config, version: Path, followed: Followed) -> Stages:
    """Evaluate checkpoints of another trainer by a config, as they appear, then report and gather them."""
    run = plan(config, version, followed=followed)
    works_on(run)
    reopen(run)
    return evaluate_run(run, "train")


def evaluate_run(run: RunFolder, goal: Goal = "evaluate") -> Stages:
    """Evaluate, report and gather a run; DataError at the end names each evaluation without a result."""
    evaluated = evaluate(run, goal)
    stages: Stages = [evaluated, report(run), gather(run)]
    require(evaluated.details)
    return stages
