"""Training and evaluation on a dataset that is built."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.parameters import Overrides, configured
from tasks.dataset.versions import resolve
from tasks.evaluate import evaluate, require
from tasks.evaluation.fit import require_fit
from tasks.gather import gather
from tasks.report import report
from tasks.runs.plan import plan
from tasks.stage import StageResult
from tasks.train import train
from tasks.tune import tune


@flow(name="train", result_serializer="json")
def train_flow(config: Path, overrides: Overrides | None = None, fresh: bool = False) -> list[StageResult]:
    """Tune, train, evaluate, gather and report a config on its dataset's current version.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; what is left empty stays as the config says.
        fresh: Start anew; the run that is there moves to runs/archive.
    """
    settings = configured(config, overrides)
    version = resolve(settings.dataset.output)
    require_fit(settings, version)
    run = plan(settings, version, fresh=fresh)
    trained = [tune(settings, version, run), train(run)]
    evaluated = evaluate(run)
    results = [*trained, evaluated, report(run), gather(run)]
    require(evaluated)
    return results
