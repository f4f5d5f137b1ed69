"""The command that gathers runs, by hand: `gather`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import RUNS, AsJson, RunsFolder
from flows.commands.output import print_json, say
from tasks.core import screen

if TYPE_CHECKING:
    from tasks.supervision.tracking.gather_runs import GatherOutcome

RunOrRuns = Annotated[
    str, Parameter(help="A run's folder, the start of its id or name, or a folder of runs.")
]


def gather(
    run: RunOrRuns,
    /,
    *more: RunOrRuns,
    sync: Annotated[bool, Parameter(help="Then upload the offline files of each run to wandb.")] = False,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Write the results of runs into their trackers, now or late, from any machine that sees their folders.

    Nothing is written twice. The exit code is 1 where something is left to do.

    For example:
      tarmac gather 2e94 --sync
      tarmac gather runs/ --sync
    """
    from tasks.supervision.tracking.gather_runs import chosen_runs, gather_late, require_tracking, sum_of

    chosen = chosen_runs(runs, (run, *more))
    if len(chosen) == 1:
        require_tracking(chosen[0])
    outcomes = []
    for one in chosen:
        outcome = gather_late(one, sync)
        outcomes.append(outcome)
        if not as_json:
            _show(outcome)
    is_done = not any(outcome.left for outcome in outcomes)
    if as_json:
        print_json({"ok": is_done, "findings": [], "runs": [_row(outcome) for outcome in outcomes]})
    elif len(outcomes) > 1:
        say(sum_of(outcomes))
    return 0 if is_done else 1


def _show(outcome: GatherOutcome) -> None:
    for line in outcome.skipped:
        screen.warn(f"{outcome.run.name}: not gathered: {line}")
    say(outcome.line)
    if outcome.left or outcome.hint:
        say(f"    {outcome.left or outcome.hint}")


def _row(outcome: GatherOutcome) -> dict[str, Any]:
    from tasks.supervision.tracking import gathering

    run = outcome.run
    return {
        "run": run.name,
        "state": outcome.state,
        "reason": outcome.reason,
        "evaluations": outcome.evaluations,
        "wandb": str(run.wandb),
        "tensorboard": str(run.tensorboard),
        "url": gathering.url(run),
        "uploaded": outcome.is_uploaded,
        "skipped": outcome.skipped,
        "left": outcome.left,
    }
