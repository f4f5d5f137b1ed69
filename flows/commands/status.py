"""The command `status`: all runs, datasets and GPUs at a glance, once or until Ctrl-C.

Whoever looks also starts an agent again that was killed, where its run allows that.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import RUNS, AsJson, RunsFolder
from flows.commands.output import print_result, say
from flows.staleness import stale_datasets
from tasks.core import screen
from tasks.core.errors import TarmacError, UsageError
from tasks.core.units import counted, duration, number, percent, shorten, size

if TYPE_CHECKING:
    from tasks.core.findings import Finding
    from tasks.supervision.overview import DatasetOverview
    from tasks.supervision.status import RunStatus

SHOWN = 5
"""At most this many waiting evaluations are listed for a run."""
EVERY_S = 2.0
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""What a terminal clears its screen and what it has scrolled away by."""


def status(
    *,
    watch: Annotated[
        bool, Parameter(help="Show it anew every two seconds, until Ctrl-C; with --json one object per line.")
    ] = False,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """List all runs: those that need you, those at work, and the rest; datasets, builds and GPUs.

    A run whose agent was killed is started again, from its own machine or,
    under Slurm, from any that reaches it: at most three times in a row
    without a new checkpoint, unless train.on_crash is stop. A dataset older
    than schedule.fresh_within needs you, too. The exit code is always 0,
    because listing is not judging.

    For example:
      tarmac status
      tarmac status --watch
      tarmac status --runs /scratch/ada/runs --json
    """
    if runs.is_file() or (not runs.exists() and runs != RUNS):
        raise UsageError(f"--runs: there is no folder {runs}")
    if not watch:
        return _show(runs, as_json)
    shown = ""
    try:
        while True:
            seen = _Overview.look(runs)
            screen.end_passing()
            if as_json:
                print_result(**seen.to_json())
            elif sys.stdout.isatty():
                say(f"{CLEAR}{seen}")
            elif str(seen) != shown:
                shown = str(seen)
                say(shown)
            sys.stdout.flush()
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return 0


def _show(runs: Path, as_json: bool) -> int:
    seen = _Overview.look(runs)
    return print_result(**seen.to_json()) if as_json else say(str(seen))


@dataclass(frozen=True)
class _Overview:
    """One look at everything; `revived` says by run what was done about an agent that was killed."""

    folder: Path
    runs: Sequence[RunStatus]
    unreadable: dict[str, str]
    revived: dict[str, str]
    datasets: Sequence[DatasetOverview]
    stale: Sequence[Finding]
    gpus: dict[str, str]

    @classmethod
    def look(cls, runs: Path) -> _Overview:
        from tasks.runs.folder import list_runs
        from tasks.runs.gpus import gpu_holders
        from tasks.supervision.overview import list_datasets

        if not list_runs(runs):  # then nothing needs the import of what reads a run
            return cls(runs, (), {}, {}, list_datasets(runs, ()), stale_datasets(), {})
        from tasks.supervision.status import list_status

        found, unreadable = list_status(runs)
        if revived := _revive(found):
            found, unreadable = list_status(runs)
        datasets = list_datasets(runs, [one.record for one in found])
        return cls(runs, found, dict(unreadable), revived, datasets, stale_datasets(), gpu_holders())

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": [asdict(one) for one in self.stale],
            "runs": [_row(one, self.revived.get(one.run.name)) for one in self.runs],
            "unreadable": self.unreadable,
            "datasets": [one.to_json() for one in self.datasets],
            "gpus": self.gpus,
        }

    def __str__(self) -> str:
        needing = [one for one in self.runs if _needs_you(one)]
        working = [one for one in self.runs if one not in needing and one.agent_is_alive]
        resting = [one for one in self.runs if one not in needing and one not in working]
        sections = {
            "NEEDS YOU": [
                *(line for one in needing for line in _need_lines(one)),
                *(f"✗ {name}  {why}" for name, why in self.unreadable.items()),
                *(line for one in self.stale for line in (one.line, f"    {one.command}")),
            ],
            "RUNNING": [line for one in working for line in self._working_lines(one)],
            "RESTING": [line for one in resting for line in _state_lines(one)],
            "DATASETS": [line for one in self.datasets for line in _dataset_lines(one)],
            "GPUS": [f"  {name}  {holder}" for name, holder in self.gpus.items()],
        }
        lines = [] if self.runs or self.unreadable else [f"no runs in {self.folder}"]
        lines += [line for title, section in sections.items() if section for line in (title, *section)]
        return "\n".join(lines)

    def _working_lines(self, one: RunStatus) -> Iterator[str]:
        yield from _state_lines(one)
        if revived := self.revived.get(one.run.name):
            yield f"  ! {revived}"


def _revive(found: Sequence[RunStatus]) -> dict[str, str]:
    """Start agents again that were killed; returns a sentence for each run about which something was done."""
    from tasks.supervision.launch import revive, was_killed

    done = {}
    for one in found:
        with suppress(TarmacError, OSError):  # then the list shows that its agent is gone
            if was_killed(one) and (sentence := revive(one.run)):
                done[one.run.name] = sentence
    return done


def _needs_you(one: RunStatus) -> bool:
    return one.condition.needs_person and not one.is_dismissed


def _state_lines(one: RunStatus) -> Iterator[str]:
    from tasks.supervision.evaluating.following import quiet_warning

    mark = "✓" if one.is_complete else " "
    replaced = f"{counted(one.replaced, 'replacement')} of bad samples" if one.replaced else ""
    stopped = f", evaluations cancelled: {one.stopped}" if one.stopped is not None else ""
    dismissed = ", dismissed" if one.is_dismissed else ""
    facts = [
        one.condition.where(),
        "" if one.loss is None else f"loss {one.loss:.3f}",
        *_pace(one),
        _evaluations(one),
        "" if one.best is None else f"best {one.best}",
        replaced,
    ]
    yield f"{mark} {one.run.name}  {one.condition.word}{stopped}{dismissed}  {'  '.join(filter(None, facts))}"
    if one.reason and (one.state in ("queued", "running") or one.agent_is_alive):
        yield f"    {one.reason}"
    if one.silence:
        yield f"  ! {one.silence}"
    for waiting in one.evaluations_waiting[:SHOWN]:
        yield f"    step {waiting.step:,} {waiting.task}: {waiting.waiting}"
    if (further := len(one.evaluations_waiting) - SHOWN) > 0:
        yield f"    {counted(further, 'further evaluation')} {'waits' if further == 1 else 'wait'}"
    for finding in one.doubts:
        yield f"  {finding.line}"
    if one.doubts:
        yield f"    what to do about it: tarmac doctor --run {one.run.handle}"
    if one.quiet_s:
        yield f"  ! {quiet_warning(one.run, one.quiet_s)}"
    if one.silent_s and one.phase is not None:
        silent = f"it has logged nothing for {duration(one.silent_s)}, in phase {one.phase.phase}"
        yield f"  ! {silent}; log {one.log}"


def _pace(one: RunStatus) -> Iterator[str]:
    """Yield how fast a training goes, what it waits for, when it ends, and its goodput."""
    if one.is_training and (step_s := one.figure("train/step_s")) is not None:
        yield f"{number(step_s)} s/step"
        if (data := one.figure("train/data_wait")) is not None:
            yield f"data {percent(data, 0)}"
    if (left_s := one.left_s) is not None:
        yield f"{duration(left_s)} left"
    if (goodput := one.goodput) is not None:
        yield f"goodput {percent(goodput.share(), 0)}"


def _evaluations(one: RunStatus) -> str:
    """Return the number of evaluations that are done, and of those in another state than that or pending."""
    if not one.evaluations:
        return ""
    counts = Counter(each.state for each in one.evaluations if not each.is_done)
    others = [
        f"{counts[state]} {state}" for state in ("running", "submitted", "failed", "lost") if counts[state]
    ]
    return ", ".join([f"{one.evaluations_done} of {len(one.evaluations)} evaluations", *others])


def _need_lines(one: RunStatus) -> Iterator[str]:
    condition, handle = one.condition, one.run.handle
    where = (
        f"{one.run.name}  {condition.state} at step {condition.where(' of ')}: {shorten(condition.reason)}"
    )
    if condition.state == "stalled":
        yield f"✗ {where}"
        yield f"    {condition.next_command} | tarmac cancel {handle}"
    elif condition.state == "failed":
        yield f"✗ {where}"
        yield f"    log {one.log}"
        mended = "start it again" if condition.is_abandoned else "once that is mended"
        yield f"    {mended}, it resumes: {condition.next_command}"
        yield f"    or take it off this list: tarmac forget {handle} --dismiss"
    elif condition.next_command is not None:
        yield f"  {where}"
        yield f"    it resumes: {condition.next_command}"
    for missing in condition.lost:
        yield f"✗ {one.run.name}  evaluation without a result: {shorten(str(missing))}"
        yield f"    {missing.command(one.run)}"


def _dataset_lines(one: DatasetOverview) -> Iterator[str]:
    from tasks.core.units import near

    if one.problem:
        yield f"✗ {near(one.path)}  {shorten(one.problem)}"
    elif one.version is None:
        yield f"  {near(one.path)}  no version yet"
    else:
        facts = f"{counted(one.samples, 'sample')}  {size(one.bytes)}  {counted(one.versions, 'version')}"
        yield f"  {near(one.path)}  version {one.version}  {facts}"
    if one.left_off:
        yield f"  ! {one.left_off}; it goes on by: tarmac build {_config_of(one.path)}"
    if one.builder is None:
        return
    progress = one.progress
    if progress is None:
        yield f"    in use by {one.builder}"
        return
    from tasks.core.pace import how_far

    left = "" if progress.left_s is None else f", {duration(progress.left_s)} left"
    yield f"    building: {how_far(progress.done, progress.total, progress.note)}{left}, by {one.builder}"


def _config_of(dataset: Path) -> str:
    """Return the config among the project's that builds the dataset, quoted; CONFIG where none does."""
    from flows.parameters import choices
    from tasks.core.config import reload

    for path in choices():
        with suppress(TarmacError):
            if reload(Path(path)).dataset.output.absolute() == dataset.absolute():
                return shlex.quote(path)
    return "CONFIG"


def _row(one: RunStatus, revived: str | None) -> dict[str, Any]:
    condition, goodput = one.condition, one.goodput
    return {
        "run": one.run.name,
        "id": one.run.id,
        "state": condition.state,
        "reason": condition.reason if one.is_abandoned else one.reason,
        "needs_you": _needs_you(one),
        "next": condition.commands,
        "dismissed": one.is_dismissed,
        "revived": revived,
        "evaluations_cancelled": one.stopped,
        "step": one.step,
        "steps": one.steps,
        "left_s": one.left_s,
        "loss": one.loss,
        "goodput": None if goodput is None else goodput.to_json(),
        "best": None if one.best is None else asdict(one.best),
        "replaced": one.replaced,
        "phase": one.phase.phase if one.phase is not None else None,
        "silent_s": round(one.silent_s, 1),
        "follows": None if one.followed is None else str(one.followed.path),
        "quiet_s": one.quiet_s,
        "doubts": [finding.code for finding in one.doubts],
        "evaluations": len(one.evaluations),
        "evaluations_done": one.evaluations_done,
        "evaluations_lost": [{"step": lost.step, "task": lost.task} for lost in condition.lost],
        "evaluations_by_state": dict(Counter(each.state for each in one.evaluations)),
        "evaluations_waiting": [
            {"step": waiting.step, "task": waiting.task, "reason": waiting.waiting}
            for waiting in one.evaluations_waiting
        ],
        "agent_is_alive": one.agent_is_alive,
        "slurm_silence": one.silence or None,
    }
