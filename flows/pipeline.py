"""The whole pipeline: raw files to a report of evaluated checkpoints."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.parameters import Overrides, configured
from tasks.build import build, publish
from tasks.evaluate import evaluate, require
from tasks.evaluation.fit import require_fit
from tasks.gather import gather
from tasks.report import report
from tasks.runs.plan import plan
from tasks.stage import StageResult
from tasks.train import train
from tasks.tune import tune
from tasks.verify import verify


@flow(name="pipeline", result_serializer="json")
def pipeline(config: Path, overrides: Overrides | None = None, fresh: bool = False) -> list[StageResult]:
    """Build, tune, train, evaluate, gather and report a config; what is up to date is left as it is.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; what is left empty stays as the config says.
        fresh: Start anew; the run that is there moves to runs/archive.
    """
    settings = configured(config, overrides)
    built = build(settings)
    version = Path(built["details"]["version"])
    prepared = [built, verify(settings, version), publish(settings, version)]
    require_fit(settings, version)
    run = plan(settings, version, fresh=fresh)
    trained = [tune(settings, version, run), train(run)]
    evaluated = evaluate(run)
    results = [*prepared, *trained, evaluated, report(run), gather(run)]
    require(evaluated)
    return results
