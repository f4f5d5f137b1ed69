"""Gathers runs by hand, from any machine that sees their folders; one that fails stops no other.

Who gathers is decided by the gatherer's lease. A gatherer that lives, on whichever machine, keeps the run;
one that is dead gives way to one on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tasks.core.errors import TarmacError, UsageError
from tasks.core.units import counted
from tasks.runs.folder import RunFolder, find, list_runs
from tasks.runs.jobs import agent_is_alive
from tasks.supervision.status import config_of
from tasks.supervision.tracking import gathering

Gathering = Literal["gathered", "going_on", "disabled", "failed"]


@dataclass
class GatherOutcome:
    """What became of one run. `left` says what is to be done about it, and is empty where nothing is."""

    run: RunFolder
    state: Gathering = "gathered"
    evaluations: int = 0
    uploaded: int = 0
    """How many files were uploaded now."""
    is_uploaded: bool = False
    """Whether a server has all that was gathered."""
    hint: str = ""
    """The command that uploads what is kept here by intent."""
    reason: str = ""
    left: str = ""
    skipped: list[str] = field(default_factory=list)
    """A line for each file and each row that is not gathered."""

    @property
    def line(self) -> str:
        """The outcome on one line."""
        evaluations = counted(self.evaluations, "evaluation")
        if self.state == "failed":
            return f"✗ {self.run.name}  {self.reason}"
        if self.state == "disabled":
            return f"  {self.run.name}  tracking is disabled (track.mode)"
        if self.state == "going_on":
            return f"  {self.run.name}  goes on, and its own gatherer is at work: {evaluations} so far"
        uploaded = f", {counted(self.uploaded, 'file')} uploaded" if self.uploaded else ""
        return f"✓ {self.run.name}  gathered {evaluations} and the metrics{uploaded}: {self.run.path}"


def chosen_runs(runs: Path, names: Iterable[str]) -> list[RunFolder]:
    """Return the runs that are named by id, name or folder, and those in folders of runs, each once.

    UsageError for a name that fits none, or several.
    """
    found: dict[Path, RunFolder] = {}
    for name in names:
        is_folder = bool(name) and Path(name).is_dir() and not (Path(name) / "run.json").exists()
        inside = list_runs(Path(name)) if is_folder else []
        for run in inside or [_named(runs, name, is_folder)]:
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def _named(runs: Path, name: str, is_folder: bool) -> RunFolder:
    try:
        return find(runs, name)
    except UsageError:
        if is_folder:
            raise UsageError(f"RUN: {name} is neither a run nor a folder of runs") from None
        raise


def gather_late(run: RunFolder, sync: bool) -> GatherOutcome:
    """Gather a run and, where asked to, upload it; whatever fails is the outcome's reason."""
    outcome = GatherOutcome(run)
    try:
        _gather(outcome, sync)
    except (TarmacError, OSError) as error:
        outcome.reason = str(error)
    except (LookupError, TypeError, ValueError) as error:
        outcome.reason = f"its files are damaged ({type(error).__name__}: {error})"
    if outcome.reason:
        outcome.state = "failed"
        outcome.left = outcome.left or "once that is mended: " + _command(run, sync)
    return outcome


def _gather(outcome: GatherOutcome, sync: bool) -> None:
    run = outcome.run
    track = config_of(run).track
    if track.mode == "disabled":
        outcome.state = "disabled"
        return
    if agent_is_alive(run):
        gathering.accompany(run)
        outcome.state = "going_on"
        outcome.left = f"upload it once it has ended: {_command(run, sync)}" if sync else ""
    else:
        gathering.complete(run)
        outcome.uploaded = gathering.sync(run) if sync and track.has_wandb else 0
        upload = gathering.upload(run)
        outcome.is_uploaded = track.has_wandb and upload is None
        outcome.left, outcome.hint = (upload or "", "") if track.mode == "online" else ("", upload or "")
    outcome.evaluations = len(gathering.results_of(run))
    outcome.skipped = gathering.faults(run)


def _command(run: RunFolder, sync: bool) -> str:
    return f"tarmac gather {run.handle}{' --sync' if sync else ''}"


def sum_of(outcomes: list[GatherOutcome]) -> str:
    """Return how many runs came to which end, on one line."""
    words: dict[Gathering, str] = {
        "gathered": "gathered",
        "going_on": "going on",
        "disabled": "not tracked",
        "failed": "failed",
    }
    counts = {word: sum(one.state == state for one in outcomes) for state, word in words.items()}
    parts = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    left = sum(bool(one.left) for one in outcomes)
    return f"{counted(len(outcomes), 'run')}: {parts}{f'; {left} with something left' if left else ''}"


def require_tracking(run: RunFolder) -> None:
    """Raise UsageError when the run's tracking is disabled."""
    if config_of(run).track.mode == "disabled":
        raise UsageError("track.mode: is disabled; set it to offline or online and start the run again")
