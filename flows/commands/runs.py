"""The commands on existing runs: `status`, `cancel`, `gather` and `report`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import AsJson, RunName, RunsFolder
from flows.commands.output import print_result, say
from tasks.core import screen
from tasks.core.errors import TarmacError, UsageError
from tasks.core.units import counted, duration, shorten

if TYPE_CHECKING:
    from tasks.supervision.status import EvaluationStatus, RunStatus
    from tasks.supervision.stopping import Stopped

SHOWN = 5
"""At most this many waiting evaluations are listed for a run."""
RESUME = "start it again, it resumes: "
RUNS = Path("runs")
"""The folder of runs unless another one is given; before the first run it does not exist."""


def status(*, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """List all runs: those that need you, those at work, and the rest.

    The exit code is always 0, because listing is not judging.

    For example:
      tarmac status
      tarmac status --runs /scratch/ada/runs --json
    """
    from tasks.runs.folder import list_runs

    if runs.is_file() or (not runs.exists() and runs != RUNS):
        raise UsageError(f"--runs: there is no folder {runs}")
    if not list_runs(runs):  # then nothing needs the import of what reads a run
        return print_result(runs=[], unreadable={}) if as_json else say(f"no runs in {runs}")
    from tasks.supervision.status import list_status

    found, unreadable = list_status(runs)
    if as_json:
        return print_result(runs=[_row(one) for one in found], unreadable=dict(unreadable))
    needing = [one for one in found if one.is_abandoned or one.state in ("failed", "stalled") or _lost(one)]
    working = [one for one in found if one not in needing and one.agent_is_alive]
    resting = [one for one in found if one not in needing and one not in working]
    sections = {
        "NEEDS YOU": [
            *(line for one in needing for line in _need_lines(one)),
            *(f"✗ {name}  {why}" for name, why in unreadable.items()),
        ],
        "RUNNING": [line for one in working for line in _state_lines(one)],
        "RESTING": [line for one in resting for line in _state_lines(one)],
    }
    lines = [line for title, section in sections.items() if section for line in (title, *section)]
    return say("\n".join(lines))


def _state_lines(one: RunStatus) -> Iterator[str]:
    loss = "" if one.loss is None else f"  loss {one.loss:.3f}"
    done = f"  {one.evaluations_done} of {len(one.evaluations)} evaluations" if one.evaluations else ""
    mark = "✓" if one.is_complete else " "
    replaced = f"  {counted(one.replaced, 'replacement')} of bad samples" if one.replaced else ""
    stopped = f", evaluations cancelled: {one.stopped}" if one.stopped is not None else ""
    best = "" if one.best is None else f"  best {one.best}"
    standing = f"{one.step:,}/{one.steps:,}{loss}{done}{best}{replaced}"
    yield f"{mark} {one.run.name}  {one.state}{stopped}  {standing}"
    if one.reason and (one.state in ("queued", "running") or one.agent_is_alive):
        yield f"    {one.reason}"
    for waiting in one.evaluations_waiting[:SHOWN]:
        yield f"    step {waiting.step:,} {waiting.task}: {waiting.waiting}"
    if (further := len(one.evaluations_waiting) - SHOWN) > 0:
        yield f"    {counted(further, 'further evaluation')} {'waits' if further == 1 else 'wait'}"
    for finding in one.doubts:
        yield f"  {finding.line}"
    if one.doubts:
        yield f"    what to do about it: tarmac doctor --run {one.run.handle}"
    if one.silent_s and one.phase is not None:
        silent = f"it has logged nothing for {duration(one.silent_s)}, in phase {one.phase.phase}"
        yield f"  ! {silent}; log {one.log}"


def _need_lines(one: RunStatus) -> Iterator[str]:
    from tasks.runs.plan import command_to_resume

    if one.is_abandoned:
        yield (
            f"✗ {one.run.name}  was {one.state}, but its agent is gone at step {one.step:,} of {one.steps:,}"
        )
        yield f"    {RESUME}{command_to_resume(one.run)}"
    elif one.state == "stalled":
        yield f"✗ {one.run.name}  {shorten(one.reason)}"
        yield f"    tarmac doctor --run {one.run.handle} | tarmac cancel {one.run.handle}"
    elif one.state == "failed":
        yield f"✗ {one.run.name}  failed at step {one.step:,} of {one.steps:,}: {shorten(one.reason)}"
        yield f"    log {one.log}"
        yield f"    once that is mended, it resumes: {command_to_resume(one.run)}"
    for missing in _lost(one):
        yield f"✗ {one.run.name}  evaluation without a result: {shorten(str(missing))}"
        yield f"    tarmac evaluate {one.run.handle} --step {missing.step} --task {missing.task}"


def _lost(one: RunStatus) -> list[EvaluationStatus]:
    """Return the evaluations without a result that had their chance: their tries are used up, or the training
    succeeded. An evaluation that a person cancelled with its run does not count."""
    by_person = one.state == "cancelled" and one.signal is None
    return [
        missing
        for missing in one.evaluations_missing
        if missing.state in ("failed", "lost")
        or (not by_person and one.stopped is None and (missing.entry is not None or one.state == "succeeded"))
    ]


def _row(one: RunStatus) -> dict[str, Any]:
    from tasks.runs.plan import command_to_resume

    gone = f"its agent is gone; {RESUME}{command_to_resume(one.run)}" if one.is_abandoned else None
    return {
        "run": one.run.name,
        "id": one.run.id,
        "state": "failed" if one.is_abandoned else one.state,
        "reason": gone or one.reason,
        "evaluations_cancelled": one.stopped,
        "step": one.step,
        "steps": one.steps,
        "loss": one.loss,
        "best": None if one.best is None else asdict(one.best),
        "replaced": one.replaced,
        "phase": one.phase.phase if one.phase is not None else None,
        "silent_s": round(one.silent_s, 1),
        "doubts": [finding.code for finding in one.doubts],
        "evaluations": len(one.evaluations),
        "evaluations_done": one.evaluations_done,
        "evaluations_waiting": [
            {"step": waiting.step, "task": waiting.task, "reason": waiting.waiting}
            for waiting in one.evaluations_waiting
        ],
        "agent_is_alive": one.agent_is_alive,
    }


def cancel(run: RunName, /, *, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """Stop a run at its next step, with a checkpoint, and end all its processes.

    It waits until no process of the run lives, kills those that do not obey,
    and lists what it ended. The last line is the command that resumes the run.

    For example:
      tarmac cancel 2e94
      tarmac cancel runs/digits-clip-2e94c1b07d55
    """
    from tasks.core.lock import holder_of
    from tasks.runs.folder import find
    from tasks.supervision import stopping
    from tasks.supervision.status import look_at_run

    folder = find(runs, run)
    holder = holder_of(folder.lease)
    before = look_at_run(folder)
    if before.state == "planned" and holder is not None and holder.is_alive():
        raise TarmacError(f"{folder.name} is still being prepared by {holder}; end that command with Ctrl-C")
    if before.agent_is_alive:
        patience = f"what has not ended after {duration(stopping.STOP_S)} is ended by force"
        sys.stderr.write(f"{folder.name} is asked to stop at its next step, with a checkpoint; {patience}\n")
    with screen.running("cancel"):
        stopped = stopping.end(folder, "cancelled by the user")
    after = look_at_run(folder)
    if as_json:
        print_result(
            run=folder.name,
            state=after.state,
            reason=after.reason,
            step=after.step,
            ended=[{**one.to_json(), "forced": one in stopped.forced} for one in stopped.ended],
            left=[one.to_json() for one in stopped.left],
            elsewhere=None if stopped.elsewhere is None else str(stopped.elsewhere),
        )
    else:
        say("\n".join(_cancel_lines(after, stopped)))
    return 1 if stopped.left or stopped.elsewhere is not None else 0


def _cancel_lines(after: RunStatus, stopped: Stopped) -> Iterator[str]:
    """Yield the run's state, which processes were ended or are left, and the command that resumes it."""
    from tasks.runs.plan import command_to_resume

    is_idle = not stopped.ended and not stopped.left and stopped.elsewhere is None
    if is_idle:
        yield f"{after.run.name} is not running: no process of it lives here"
    elif after.state == "succeeded":
        again = f"tarmac evaluate {after.run.handle} does what is missing"
        yield f"{after.run.name} stopped evaluating{'' if after.is_complete else f'; {again}'}"
    else:
        kept = f"checkpoint of step {max(after.checkpoints):,}" if after.checkpoints else "no checkpoint"
        where = f"step {after.step:,} of {after.steps:,}, {kept}"
        why = f": {after.reason}" if after.state == "failed" else ""
        yield f"{after.run.name} is {after.state} at {where}{why}"
    for one in stopped.ended:
        yield f"  ended  {one}{', by force' if one in stopped.forced else ''}"
    for one in stopped.left:
        yield f"  ✗ left {one}, which SIGKILL does not end: it waits for a disk or a device"
    if stopped.elsewhere is not None:
        yield f"  ✗ left {stopped.elsewhere}, which was asked to stop and cannot be seen from here"
    elif not stopped.left and not is_idle:
        yield "  left   none: no process of the run lives on this machine"
    if after.state in ("cancelled", "failed"):
        yield f"  again  {command_to_resume(after.run)}"


def gather(
    run: RunName,
    /,
    *,
    sync: Annotated[bool, Parameter(help="Then upload the run's offline files to wandb.")] = False,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Write a run's results into its wandb run, now or late.

    Nothing is written twice.

    For example:
      tarmac gather 2e94 --sync
    """
    from tasks.runs.folder import find
    from tasks.runs.jobs import agent_is_alive
    from tasks.supervision.tracking import gathering

    folder = find(runs, run)
    is_going_on = agent_is_alive(folder)
    if is_going_on and sync:
        raise TarmacError(f"{folder.name} goes on, and its gatherer with it; upload it once it has ended")
    if is_going_on:
        gathering.accompany(folder)
    else:
        gathering.complete(folder)
    if sync:
        gathering.sync(folder)
    evaluations = counted(len(gathering.results_of(folder)), "evaluation")
    upload = gathering.upload(folder)
    skipped = gathering.faults(folder)
    if as_json:
        return print_result(
            run=folder.name,
            wandb=str(folder.wandb),
            going_on=is_going_on,
            uploaded=upload is None and not is_going_on,
            skipped=skipped,
        )
    for line in skipped:
        screen.warn(f"not gathered: {line}")
    if is_going_on:
        return say(
            f"{folder.name} goes on, and its own gatherer is at work: {evaluations} so far, {folder.wandb}"
        )
    say(f"✓ gathered {evaluations} and the metrics: {folder.wandb}")
    return 0 if upload is None else say(f"  {upload}")


def report(run: RunName, /, *, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """Write a run's report again.

    For example:
      tarmac report 2e94
    """
    from tasks.reporting.report import write_report
    from tasks.runs.folder import find

    page = write_report(find(runs, run))
    return print_result(report=str(page)) if as_json else say(str(page))
