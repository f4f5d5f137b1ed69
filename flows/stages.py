"""The chains of stages that the flows share: a dataset made, a run trained, a run evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.approval import approve
from flows.lifecycle import works_on
from tasks.build import build, publish
from tasks.core.errors import NeedsApproval
from tasks.core.schema import Config
from tasks.evaluate import evaluate, require
from tasks.evaluation.fit import require_fit
from tasks.gather import gather
from tasks.report import report
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tasks.stage import StageResult
from tasks.train import train
from tasks.tune import tune
from tasks.verify import verify

Stages = list[StageResult[Any]]


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
    require_fit(config, version)
    run = plan(config, version, fresh=fresh)
    works_on(run)
    tuned = tune(config, run)
    return [tuned, train(run, tuned.details.started), *evaluate_run(run)]


def evaluate_run(run: RunFolder) -> Stages:
    """Evaluate, report and gather a run; DataError afterwards that names each evaluation without a result."""
    evaluated = evaluate(run)
    stages: Stages = [evaluated, report(run), gather(run)]
    require(evaluated.details)
    return stages
