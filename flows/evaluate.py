"""The evaluations of a run that is there."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from tasks.evaluate import evaluate, require
from tasks.gather import gather
from tasks.report import report
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult


@flow(name="evaluate", result_serializer="json")
def evaluate_flow(run: Path) -> list[StageResult]:
    """Complete the evaluations of the run in this folder, gather them and write the report again."""
    folder = RunFolder(run)
    evaluated = evaluate(folder)
    results = [evaluated, report(folder), gather(folder)]
    require(evaluated)
    return results
