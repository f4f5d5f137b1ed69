"""The flow that examines a run that hangs or is slow: `tarmac doctor` for a person who looks at a page."""

from __future__ import annotations

from pathlib import Path

from flows.lifecycle import examines, tarmac_flow
from flows.parameters import Named
from flows.stages import Stages
from tasks.doctor import examine
from tasks.runs.folder import find


@tarmac_flow("doctor")
def doctor_flow(run: Named, runs: Path = Path("runs")) -> Stages:
    """Explain why a run hangs or is slow, with evidence; it is observed for five seconds and not disturbed.

    Args:
        run: The beginning of the run's id or name, or its folder.
        runs: The folder of the run folders, from the project's folder.
    """
    folder = find(runs, run)
    examines(folder)
    return [examine(folder)]
