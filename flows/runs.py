"""The commands on runs that are there: `status`, `cancel`, `gather` and `report`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.arguments import AsJson, RunName, RunsFolder
from flows.output import print_result, say
from tasks.core.errors import TarmacError, UsageError
from tasks.core.units import counted, duration

if TYPE_CHECKING:
    from tasks.supervision.status import EvaluationStatus, RunStatus

RUNS = Path("runs")
"""Where runs lie unless another folder is given; before the first run it does not exist."""


def status(*, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """List all runs: those that need you, those at work, and the rest.

    The exit code is always 0, because looking is not judging.
    """
    from tasks.runs.folder import list_runs

    if runs.is_file() or (not runs.exists() and runs != RUNS):
        raise UsageError(f"--runs: there is no folder {runs}")
    if not list_runs(runs):  # and nothing to import what reads a run for
        return print_result(runs=[], unreadable={}) if as_json else say(f"no runs in {runs}")
    from tasks.supervision.status import list_status

    found, unreadable = list_status(runs)
    if as_json:
        return print_result(runs=[_row(one) for one in found], unreadable=dict(unreadable))
    needing = [one for one in found if one.is_abandoned or one.state == "failed" or _lost(one)]
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
    yield f"{mark} {one.run.name}  {one.state}  {one.step:,}/{one.steps:,}{loss}{done}{replaced}"
    if one.silent_s and one.phase is not None:
        silent = f"it has said nothing for {duration(one.silent_s)}, in phase {one.phase.phase}"
        yield f"  ! {silent}; log {one.log}"


def _need_lines(one: RunStatus) -> Iterator[str]:
    if one.is_abandoned:
        yield (
            f"✗ {one.run.name}  was {one.state}, but its agent is gone at step {one.step:,} of {one.steps:,}"
        )
        yield "    start it again, it resumes: tarmac run CONFIG"
    elif one.state == "failed":
        yield f"✗ {one.run.name}  failed at step {one.step:,} of {one.steps:,}: {one.reason}"
        yield f"    log {one.log}"
    for missing in _lost(one):
        reason = missing.entry.reason if missing.entry is not None else "never started"
        yield f"✗ {one.run.name}  evaluation without a result: step {missing.step} {missing.task}: {reason}"
        yield f"    tarmac evaluate {one.run.handle} --step {missing.step} --task {missing.task}"


def _lost(one: RunStatus) -> list[EvaluationStatus]:
    """Evaluations without a result that had their chance: tries used up, or the training succeeded."""
    return [
        missing
        for missing in one.evaluations_missing
        if missing.entry is not None or one.state == "succeeded"
    ]


def _row(one: RunStatus) -> dict[str, Any]:
    return {
        "run": one.run.name,
        "id": one.run.id,
        "state": one.state,
        "reason": one.reason,
        "step": one.step,
        "steps": one.steps,
        "loss": one.loss,
        "replaced": one.replaced,
        "phase": one.phase.phase if one.phase is not None else None,
        "silent_s": round(one.silent_s, 1),
        "evaluations": len(one.evaluations),
        "evaluations_done": one.evaluations_done,
        "agent_is_alive": one.agent_is_alive,
    }


def cancel(run: RunName, /, *, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """Stop a run at its next step, with a checkpoint.

    tarmac run with the same config resumes it.
    """
    from tasks.core.lock import holder_of
    from tasks.runs.folder import find
    from tasks.runs.record import OVER
    from tasks.supervision import launch
    from tasks.supervision.status import look

    folder = find(runs, run)
    holder = holder_of(folder.lease)
    state = look(folder).state
    if state == "planned" and holder is not None and holder.is_alive():
        raise TarmacError(f"{folder.name} is still being prepared by {holder}; end that command with Ctrl-C")
    obeys = launch.cancel(folder)
    if as_json:
        return print_result(run=folder.name, stopping=obeys)
    if not obeys:
        return say(f"{folder.name} is not running")
    if state in OVER:
        return say(f"{folder.name} stops evaluating; tarmac evaluate {folder.handle} does what is missing")
    return say(f"{folder.name} stops at its next step, with a checkpoint")


def gather(
    run: RunName,
    /,
    *,
    sync: Annotated[bool, Parameter(help="Then upload the run's offline files to wandb.")] = False,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Write a run's results into its wandb run, now or late.

    What is there already is not written twice.

    For example:
      tarmac gather 2e94 --sync
    """
    from tasks.runs.folder import find
    from tasks.supervision import gathering
    from tasks.supervision.status import agent_is_alive

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
    if as_json:
        return print_result(
            run=folder.name,
            wandb=str(folder.wandb),
            going_on=is_going_on,
            uploaded=upload is None and not is_going_on,
        )
    if is_going_on:
        return say(
            f"{folder.name} goes on, and its own gatherer is at work: {evaluations} so far, {folder.wandb}"
        )
    say(f"✓ gathered {evaluations} and the metrics: {folder.wandb}")
    return 0 if upload is None else say(f"  {upload}")


def report(run: RunName, /, *, runs: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """Write a run's report again."""
    from tasks.reporting.report import write_report
    from tasks.runs.folder import find

    page = write_report(find(runs, run))
    return print_result(report=str(page)) if as_json else say(str(page))
