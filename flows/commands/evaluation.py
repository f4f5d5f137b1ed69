"""The command `evaluate`: of a run, of a checkpoint of any trainer, and of a folder in which they appear.

Each works in a run folder, where an agent has the evaluations done as jobs. So whoever waits here may leave.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import RUNS, AsJson, Changes
from flows.commands.output import print_result, say
from flows.commands.training import is_reported, show_run
from tasks.core import screen
from tasks.core.errors import DataError, UsageError
from tasks.core.units import counted, near, number

if TYPE_CHECKING:
    from flows.stages import Stages
    from tasks.core.schema import Config
    from tasks.evaluation.results import EvaluationResult
    from tasks.runs.folder import RunFolder
    from tasks.runs.followed import Followed
    from tasks.supervision.status import RunStatus

SHOWN = 20
"""At most this many checkpoints are listed."""
LOAD = "tasks.evaluation.origins:require_loadable"


def evaluate(
    subject: Annotated[
        str, Parameter(help="A run, or a checkpoint of any trainer; with --follow the CONFIG.")
    ],
    config: Annotated[Path | None, Parameter(help="The config that describes a checkpoint's model.")] = None,
    /,
    *,
    follow: Annotated[
        Path | None, Parameter(help="Evaluate every checkpoint that appears in this folder of any trainer.")
    ] = None,
    until_step: Annotated[
        int | None, Parameter(help="With --follow: end once the checkpoint of this number is evaluated.")
    ] = None,
    step: Annotated[
        int | None, Parameter(help="Of a run: repeat those of this step, besides what is missing.")
    ] = None,
    task: Annotated[
        str | None, Parameter(help="Of a run: repeat this evaluation, besides what is missing.")
    ] = None,
    changes: Changes = None,
    runs: Annotated[
        Path | None, Parameter(help="Of a run: the folder of the run folders (default: runs).")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Complete a run's evaluations, or evaluate a checkpoint of any trainer, or all that appear in a folder.

    A CONFIG gives recipe, model, data and evaluations. The same command again
    repeats nothing, and goes on with what is new.

    For example:
      tarmac evaluate 2e94
      tarmac evaluate 2e94 --step 400 --task zero_shot
      tarmac evaluate logs/mine/checkpoints/epoch_3.pt configs/digits-clip.yaml
      tarmac evaluate --follow logs/mine configs/digits-clip.yaml
    """
    if follow is None and config is None:
        _refuse({"--until-step": until_step, "--set": changes}, "has no effect on a run; give a CONFIG, too")
        return _evaluate_run(subject, step, task, runs or RUNS, as_json)
    _refuse(
        {"--step": step, "--task": task, "--runs": runs}, "has an effect on a run only, not with a CONFIG"
    )
    if follow is None:
        _refuse({"--until-step": until_step}, "has an effect only with --follow")
    elif config is not None:
        raise UsageError("--follow: takes the folder, and then one CONFIG alone")
    given = (Path(subject) if config is None else config, Path(subject) if follow is None else follow)
    return evaluate_others(*given, follow is not None, until_step, changes or [], as_json)


def _refuse(options: dict[str, Any], why: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option}: {why}")


def _evaluate_run(run: str, step: int | None, task: str | None, runs: Path, as_json: bool) -> int:
    """Complete a run's evaluations, and write its report again."""
    from flows.operate import start
    from tasks.runs.folder import find
    from tasks.runs.plan import command_to_resume
    from tasks.supervision import launch
    from tasks.supervision.status import look_at_run

    folder = find(runs, run)
    status, show = look_at_run(folder), show_followed if folder.followed.exists() else show_run
    asked = status.evaluations
    if not asked and status.followed is not None:
        raise UsageError(
            f"evaluate: {folder.name} has taken no checkpoint of {near(status.followed.path)} yet; "
            f"follow it: {command_to_resume(folder)}"
        )
    if not asked:
        raise UsageError(
            f"evaluate: the config of {folder.name} asks for none; add an evaluate block and run it again"
        )
    chosen = [one for one in asked if step in (None, one.step) and task in (None, one.task)]
    if not chosen:
        there = ", ".join(f"step {one.step} {one.task}" for one in asked)
        raise UsageError(f"--step, --task: {folder.name} has no such evaluation; it has {there}")
    is_again = step is not None or task is not None
    again = [one for one in chosen if is_again and one.step in status.checkpoints]
    if is_again and not again:
        there = ", ".join(f"{one:,}" for one in status.checkpoints) or "none"
        raise UsageError(
            f"--step, --task: {folder.name} has no checkpoint to evaluate again for it (it has: {there}); "
            "its results stay"
        )
    began = time.monotonic()
    is_idle = not again and not status.agent_is_alive
    if is_idle and launch.is_done(status, "evaluate") and is_reported(folder):
        if not as_json:
            summary = f"up to date: {counted(len(asked), 'evaluation')}, each with its result"
            screen.finished("evaluate", summary, time.monotonic() - began)
        return show(folder, [], began, as_json)
    stages = start.evaluation(folder, [(one.step, one.task) for one in again])
    return show(folder, stages, began, as_json)


def _require_evaluating(config: Path, settings: Config) -> None:
    """Raise UsageError where a config does not say how checkpoints of others are evaluated, or has a rule on
    what only a training of its own writes."""
    from tasks.supervision.evaluating.stop_rules import is_of_rows

    if settings.train is None:
        raise UsageError(
            f"{config}: train: is required and missing; its recipe and model load the checkpoint"
        )
    if settings.evaluate is None:
        raise UsageError(
            f"{config}: evaluate: is required and missing; give tasks, as in "
            f"evaluate: {{every: {settings.train.checkpoint_every}, tasks: [validation_loss]}}"
        )
    for rule in settings.evaluate.stop_when:
        if is_of_rows(rule.metric):
            raise UsageError(
                f"{config}: evaluate.stop_when: metric {rule.metric} is of a training of Tarmac's own; "
                "name one of evaluate.tasks, or take the rule out"
            )


def evaluate_others(
    config: Path, path: Path, is_folder: bool, until_step: int | None, changes: list[str], as_json: bool
) -> int:
    """Evaluate the checkpoint at a path, or those that appear there."""
    from flows.operate import start
    from flows.parameters import Overrides, configured
    from tasks.core.files import require_writable
    from tasks.evaluation.fit import require_fit
    from tasks.runs.data import current_of
    from tasks.runs.plan import locate
    from tasks.supervision.evaluating.following import followed_at

    overrides = Overrides(set=changes)
    settings = configured(config, overrides)
    _require_evaluating(config, settings)
    followed = followed_at(path, is_folder, until_step)
    require_writable(settings.runs, "runs")
    if (version := current_of(settings.dataset.output)) is None:
        raise UsageError(
            f"dataset.output: {settings.dataset.output} holds no version of a dataset; "
            f"build it first: tarmac build {config}"
        )
    require_fit(settings, version)
    began = time.monotonic()
    run = locate(settings, version, followed)
    if _is_finished(run, settings, version, followed):
        if not as_json:
            screen.finished(
                "evaluate", "up to date: each checkpoint with its results", time.monotonic() - began
            )
        return show_followed(run, [], began, as_json)
    _require_loadable(settings, run, followed)
    try:
        stages = start.flow(
            "flows.evaluate:follow_flow", settings.runs, config=config, followed=followed, overrides=overrides
        )
    except DataError:
        if not _is_over(run):
            raise
        show_followed(run, [], began, as_json)  # the others have their scores
        if as_json:
            return 1
        raise
    return show_followed(run, stages, began, as_json)


def _is_over(run: RunFolder) -> bool:
    """Whether all that could be evaluated is, and the report is written."""
    from tasks.supervision.status import look_at_run

    status = look_at_run(run) if run.record.exists() else None
    return status is not None and status.state == "succeeded" and status.agent_has_left and is_reported(run)


def _is_finished(run: RunFolder, settings: Config, version: Path, followed: Followed) -> bool:
    """Whether the run has nothing to do any more, by its folder and the followed one alone."""
    from tasks.core.config import dump
    from tasks.runs.followed import read_followed
    from tasks.runs.plan import resolve_for
    from tasks.supervision.evaluating.following import has_news
    from tasks.supervision.status import look_at_run

    if not run.record.exists() or not run.config.exists() or read_followed(run) != followed:
        return False
    if run.config.read_text(encoding="utf-8") != dump(resolve_for(run, settings, version, followed)):
        return False
    return look_at_run(run).is_complete and not has_news(run) and is_reported(run)


def _require_loadable(settings: Config, run: RunFolder, followed: Followed) -> None:
    """Raise an error at once for a checkpoint that no evaluation could load, in a process of its own. Of a
    folder this tries the newest one that is whole, before the first evaluation."""
    from tasks.core import child
    from tasks.runs.followed import origins_of
    from tasks.trainers.saved import lack_of, saved_in

    assert settings.train is not None
    path = followed.path
    if followed.is_folder:
        whole = [one.path for one in saved_in(path) if not lack_of(one.path)]
        if origins_of(run) or not whole:
            return
        path = whole[-1]
    arguments = {"train": settings.train.model_dump(mode="json"), "path": str(path)}
    with screen.running("load"):
        child.call(LOAD, arguments)


def show_followed(run: RunFolder, stages: Stages, began: float, as_json: bool) -> int:
    """Print the scores of each checkpoint, and the paths of a run that follows another trainer.

    Returns 0, or 1 where an evaluation has no result.
    """
    from tasks.runs.followed import origins_of, read_news
    from tasks.runs.metrics import finite
    from tasks.supervision.status import config_of, look_at_run
    from tasks.supervision.tracking import gathering

    status, scores = look_at_run(run), list(_scores(run))
    left_out, missing = read_news(run).left_out, status.evaluations_missing
    code, is_private = (1 if missing else 0), config_of(run).dataset.private
    if as_json:
        print_result(
            ok=not missing,
            run=run.id,
            folder=str(run.path),
            report=str(run.report),
            state=status.state,
            checkpoints=[
                {"step": step, "path": str(origin.path), "counts": origin.unit}
                for step, origin in origins_of(run).items()
            ],
            scores=[{"step": one.step, "task": one.task, "metrics": finite(one.metrics)} for one in scores],
            missing=[
                {
                    "step": one.step,
                    "task": one.task,
                    "state": one.state,
                    "reason": "" if is_private or one.entry is None else one.entry.reason,
                }
                for one in missing
            ],
            left_out=left_out,
            stages=[stage.to_json() for stage in stages],
            seconds=round(time.monotonic() - began, 2),
        )
        return code
    lines = ["", *_score_lines(run, status)]
    lines += [f"! {name} is left out: {why}" for name, why in left_out.items()]
    lines.append(f"  report  {near(run.report)}")
    if upload := gathering.upload(run):
        lines.append(f"  wandb   {upload}")
    say("\n".join(lines))
    return code


def _score_lines(run: RunFolder, status: RunStatus) -> Iterator[str]:
    """Yield a row for each of the last checkpoints, with the first metric of each task."""
    from tasks.evaluation.results import full_name
    from tasks.runs.followed import origins_of

    found = {(one.step, one.task): one for one in _scores(run)}
    tasks = list(dict.fromkeys(one.task for one in status.evaluations))
    first = {task: next(iter(one.metrics)) for (_, task), one in found.items()}
    names = [full_name(task, first[task]) if task in first else task for task in tasks]
    origins = list(origins_of(run).items())
    if not origins:
        yield "No checkpoint was there to evaluate."
        return
    rows = [("step", "checkpoint", *names)]
    for step, origin in origins[-SHOWN:]:
        values = [
            number(one.metrics.get(first[task])) if (one := found.get((step, task))) is not None else "none"
            for task in tasks
        ]
        rows.append((f"{step:,}", origin.path.name, *values))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if len(origins) > SHOWN:
        yield f"{counted(len(origins), 'checkpoint')}, the last {SHOWN}:"
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _scores(run: RunFolder) -> Iterator[EvaluationResult]:
    from tasks.supervision.tracking import gathering

    return (one.result for one in gathering.results_of(run).values())
