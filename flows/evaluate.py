"""The flow that completes the evaluations of a run."""

from __future__ import annotations

from pathlib import Path

from flows.lifecycle import tarmac_flow, works_on
from flows.parameters import Named
from flows.stages import Stages, evaluate_run
from tasks.runs.folder import find


@tarmac_flow("evaluate")
def evaluate_flow(run: Named, runs: Path = Path("runs")) -> Stages:
    """Complete the evaluations of a run, gather them and write the report again.

    Args:
        run: The beginning of the run's id or name, or its folder.
        runs: The folder of the run folders, from the project's folder.
    """
    folder = find(runs, run)
    works_on(folder)
    return evaluate_run(folder)
