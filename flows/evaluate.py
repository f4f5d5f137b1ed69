"""The flows that complete the evaluations of a run, and evaluate checkpoints of any trainer."""

from __future__ import annotations

from pathlib import Path

from flows.lifecycle import concerns, tarmac_flow, works_on
from flows.parameters import Named, Overrides, configured
from flows.stages import Stages, evaluate_run, follow_on
from tasks.dataset.version.versions import resolve
from tasks.runs.folder import find
from tasks.runs.followed import Followed


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


@tarmac_flow("follow")
def follow_flow(config: Path, followed: Followed, overrides: Overrides | None = None) -> Stages:
    """Evaluate a checkpoint of any trainer, or each that appears in a folder, by a config.

    Args:
        config: The config file, whose model, dataset and evaluate block are used.
        followed: The checkpoint, or the folder in which others appear.
        overrides: Values for this run only; a field that is left empty keeps the config's value.
    """
    settings = configured(config, overrides)
    concerns(settings)
    return follow_on(settings, resolve(settings.dataset.output), followed)
