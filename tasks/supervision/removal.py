"""Removes a run for good: its folder with checkpoints and results, and what it pins.

Nothing that somebody still needs is removed: a run that is alive, or whose checkpoint another run starts
from. The folder is renamed first, so that a removal which is killed leaves no half of a run; the next one
finishes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.core import config as configs
from tasks.core.errors import TarmacError
from tasks.core.lock import drop_stale_pins, holder_of
from tasks.evaluation import results
from tasks.runs import record
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.data import dataset_of, version_path
from tasks.runs.folder import RunFolder, list_runs
from tasks.runs.jobs import agent_is_alive
from tasks.runs.plan import move_away
from tasks.supervision import stopping

DRAFT = ".removed-"


@dataclass(frozen=True)
class RunSize:
    """What a run's folder holds."""

    bytes: int
    checkpoints: int
    results: int


def size_of(run: RunFolder) -> RunSize:
    """Return what a removal of the run would take away; a file with several links counts as a whole."""
    size = 0
    for folder, _, names in os.walk(run.path):
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return RunSize(size, len(list_checkpoints(run)), len(results.files_of(run)))


def require_removable(run: RunFolder) -> None:
    """Raise TarmacError, with the fix, for a run that somebody works on or reads."""
    leases = [run.gatherer_lease, *run.evaluations.glob("step_*/.*.lease")]
    holders = [holder for lease in leases if (holder := holder_of(lease)) is not None]
    if agent_is_alive(run) or stopping.living(run) or any(holder.is_alive() for holder in holders):
        raise TarmacError(f"{run.name} is at work; end it first: tarmac cancel {run.handle}")
    readers = [other.name for other in _readers(run)]
    if readers:
        raise TarmacError(
            f"{run.name} is what {', '.join(readers)} starts from (train.model.pretrained); "
            "remove that first, or export the checkpoint and name the export"
        )


def remove_run(run: RunFolder) -> None:
    """Remove a run's folder and its pins; TarmacError as `require_removable`."""
    require_removable(run)
    data = record.load_record(run).data
    target = run.path.with_name(f"{DRAFT}{run.path.name}")
    shutil.rmtree(target, ignore_errors=True)
    move_away(run, target)
    for ref in data:
        if (dataset := dataset_of(version_path(ref))) is not None:
            drop_stale_pins(dataset)
    for draft in [target, *run.path.parent.glob(f"{DRAFT}*")]:  # also what a killed removal has left
        shutil.rmtree(draft, ignore_errors=True)


def _readers(run: RunFolder) -> Iterator[RunFolder]:
    """The other runs beside it whose training starts from a checkpoint of it, and is not over."""
    own = run.path.resolve()
    for other in list_runs(run.path.parent):
        try:
            is_over = record.load_record(other).state == "succeeded"
            train = configs.reload(other.config).train
        except TarmacError:
            continue
        given = None if train is None else train.model.get("pretrained")
        if not is_over and isinstance(given, str) and own in Path(given).resolve().parents:
            yield other
