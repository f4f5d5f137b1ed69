"""The commands on one run that is there: `logs`, `cancel`, `resume`, `report` and `forget`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.arguments import RUNS, AsJson, RunName, RunsFolder
from flows.commands.output import note, print_result, say
from tasks.core import screen
from tasks.core.errors import TarmacError, UsageError
from tasks.core.units import counted, duration, near, size

if TYPE_CHECKING:
    from tasks.supervision.status import RunStatus
    from tasks.supervision.stopping import Stopped


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
        patience = f"what has not ended after {duration(stopping.patience(folder))} is ended by force"
        how = " at its next step, with a checkpoint" if before.followed is None else ""
        note(f"{folder.name} is asked to stop{how}; {patience}")
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
    elif after.followed is not None:
        done = f"{after.evaluations_done} of {counted(len(after.evaluations), 'evaluation')} done"
        why = f": {after.reason}" if after.state == "failed" else ""
        yield f"{after.run.name} is {after.state}, {done}{why}"
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


def logs(
    run: RunName,
    /,
    *,
    follow: Annotated[
        bool, Parameter(("--follow", "-f"), help="Go on with what is printed, until the run is over.")
    ] = False,
    rank: Annotated[int | None, Parameter(help="The log of this rank.")] = None,
    evaluation: Annotated[
        str | None, Parameter(metavar="STEP/TASK", help="The log of an evaluation, as in 400/zero_shot.")
    ] = None,
    lines: Annotated[
        int, Parameter(("--lines", "-n"), help="How many of the last lines (default: 100).")
    ] = 100,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Print the last lines of a run's newest log, and follow it.

    Unless an option says otherwise, it is the log of the rank that failed
    first, else of rank 0; before the ranks have one, it is the agent's.
    With --follow, it goes on over restarts and new attempts.

    For example:
      tarmac logs 2e94 -f
      tarmac logs 2e94 --evaluation 400/zero_shot
    """
    from tasks.runs.folder import find
    from tasks.supervision import logs as log_files
    from tasks.supervision.status import look_at_run

    if follow and as_json:
        raise UsageError("--follow, --json: choose one; with --json the last lines are one object")
    if rank is not None and evaluation is not None:
        raise UsageError("--rank, --evaluation: choose one")
    folder = find(runs, run)
    asked = None if evaluation is None else _step_and_task(evaluation)
    log = log_files.log_of(folder, rank, asked)
    found = log_files.last_lines(log, max(lines, 0))
    if as_json:
        return print_result(run=folder.name, log=str(log), lines=found)
    note(f"==> {near(log)}")
    if found:
        say("\n".join(found))
    if not follow:
        return 0

    screen.end_passing()

    def is_over() -> bool:
        status = look_at_run(folder)
        return not status.agent_is_alive

    try:
        for part in log_files.follow_log(lambda: log_files.log_of(folder, rank, asked), is_over, log):
            if part.begins:
                note(f"==> {near(part.path)}")
            sys.stdout.write(part.content.decode("utf-8", "replace"))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 0
    status = look_at_run(folder)
    note(f"==> {folder.name} is {status.state}{f': {status.reason}' if status.reason else ''}")
    return 0


def _step_and_task(evaluation: str) -> tuple[int, str]:
    step, _, task = evaluation.partition("/")
    if not step.isdecimal() or not task:
        raise UsageError(f"--evaluation: {evaluation!r} is no STEP/TASK, such as 400/zero_shot")
    return int(step), task


def resume(run: RunName, /, *, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """Go on with a run, from any folder and without its config file.

    It follows the run's own config, on the data that the run began with, and
    reports what has changed since: code, packages, data.

    For example:
      tarmac resume 2e94
    """
    from flows.commands.evaluation import evaluate_others
    from flows.commands.training import train
    from tasks.core.lock import Lease
    from tasks.runs import provenance, record
    from tasks.runs.folder import find
    from tasks.runs.followed import read_followed
    from tasks.runs.plan import changes_to_resume
    from tasks.supervision.status import look_at_run

    folder = find(runs, run)
    status = look_at_run(folder)
    if status.record.attempts:
        last = status.record.attempts[-1]
        now = (provenance.code_digest(), provenance.versions())
        if changed := provenance.differences(last.code_digest, last.versions, *now):
            screen.warn(f"changed since its last attempt: {', '.join(changed)}")
    changes = changes_to_resume(folder)
    if any(change.startswith("dataset.output=") for change in changes):
        versions = ", ".join(ref.version for ref in status.record.data)
        screen.warn(f"its data has a newer version; the run goes on with its own, {versions}")
    if status.record.stopped_early:
        with Lease(folder.lease):
            record.save_record(folder, record.load_record(folder).having(stopped_early=False))
    if (followed := read_followed(folder)) is not None:
        given = (followed.path, followed.is_folder, followed.until_step)
        return evaluate_others(folder.config, *given, changes, as_json)
    return train(folder.config, changes=changes, as_json=as_json)


def report(run: RunName, /, *, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """Write a run's report again.

    For example:
      tarmac report 2e94
    """
    from tasks.reporting.report import write_report
    from tasks.runs.folder import find

    page = write_report(find(runs, run))
    return print_result(report=str(page)) if as_json else say(str(page))


def forget(
    run: RunName,
    /,
    *,
    dismiss: Annotated[
        bool, Parameter(help="Remove nothing: only take it off the list of what needs you.")
    ] = False,
    yes: Annotated[
        bool,
        Parameter(
            ("--yes", "-y"), help="Remove it without asking; required with --json and without a terminal."
        ),
    ] = False,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Remove a run with its checkpoints and results, or dismiss its failure.

    A run that is at work is refused, and so is one whose checkpoint another
    run starts from. Dataset versions that only it used may then be pruned.

    For example:
      tarmac forget 2e94
      tarmac forget 2e94 --dismiss
    """
    from tasks.core.files import write_json
    from tasks.runs.folder import find
    from tasks.supervision import removal
    from tasks.supervision.status import look_at_run

    folder = find(runs, run)
    if dismiss:
        status = look_at_run(folder)
        if status.agent_is_alive:
            raise TarmacError(f"{folder.name} is at work: there is nothing to dismiss yet")
        write_json(folder.dismissed, {"attempts": len(status.record.attempts)})
        if as_json:
            return print_result(run=folder.name, dismissed=True)
        return say(f"{folder.name} needs nobody any more; its next attempt may")
    removal.require_removable(folder)
    found = removal.size_of(folder)
    what = (
        f"{counted(found.checkpoints, 'checkpoint')}, {counted(found.results, 'result')}, {size(found.bytes)}"
    )
    if not yes and (as_json or not _agrees(f"{folder.path}: {what}. Remove it for good?")):
        raise TarmacError(f"{folder.name} stays ({what}); tarmac forget {folder.handle} --yes removes it")
    removal.remove_run(folder)
    if as_json:
        return print_result(run=folder.name, removed=True, bytes=found.bytes)
    return say(f"✓ removed {folder.name}: {what}")


def _agrees(question: str) -> bool:
    """Whether a person at a terminal answers yes; False where nobody can be asked."""
    if not sys.stdin.isatty():
        return False
    screen.end_passing()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
