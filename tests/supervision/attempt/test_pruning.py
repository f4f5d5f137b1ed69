"""What `train.keep` removes, and what it never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.core.files import link_atomic, write_json
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
from tasks.supervision.attempt.pruning import GONE, Pruner
from tasks.supervision.status import look_at_run
from tests.supervision.fakes import make_config, make_run, save

STEPS = range(10, 101, 10)


def kept(run: RunFolder) -> list[int]:
    return [one.step for one in list_checkpoints(run)]


def a_run(tmp_path: Path, keep: dict[str, Any] | None, **evaluate: Any) -> tuple[RunFolder, Pruner]:
    """Ten checkpoints, of which that of step 20 has the lowest validation loss, and 30 and 10 the next."""
    config = make_config(tmp_path, train={"keep": keep, "steps": 100}, **evaluate)
    run = RunFolder(tmp_path / "run")
    for step in STEPS:
        save(run, step, b"weights")
    return run, Pruner(run, config)


@pytest.mark.parametrize(
    ("keep", "open_steps", "expected"),
    [
        (None, (), list(STEPS)),
        ({}, (), [20, 90, 100]),
        ({"latest": 1, "best": 2}, (), [10, 20, 100]),
        ({"latest": 1, "every": 40}, (), [20, 40, 80, 100]),
        ({"latest": 1}, (50, 60), [20, 50, 60, 100]),
    ],
)
def test_the_newest_the_best_and_what_is_open_stay(
    keep: dict[str, Any] | None, open_steps: tuple[int, ...], expected: list[int], tmp_path: Path
) -> None:
    run, pruner = a_run(tmp_path, keep)
    pruner.prune(open_steps)
    pruner.prune(open_steps)
    assert kept(run) == expected
    if keep is not None:
        pruner.prune(())
        assert set(kept(run)) <= set(expected), "their evaluations are final"
    assert not list(run.checkpoints.glob(f"{GONE}*"))


def test_the_best_is_that_of_the_metric_that_is_asked_for(tmp_path: Path) -> None:
    best = {"every": 10, "tasks": ["zero_shot"], "best": "zero_shot_top1"}
    run, pruner = a_run(tmp_path, {"latest": 1, "best": 2}, evaluate=best)
    for step in (30, 40, 50):
        write_json(
            run.eval_result(step), {"global_step": step, "results": {"zero_shot_top1": 1 - step / 100}}
        )
    link_atomic(run.best, run.checkpoint(50).name)
    pruner.prune(())
    assert kept(run) == [30, 40, 50, 100], "and what a link still points at"


def test_a_kill_while_removing_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    run, pruner = a_run(tmp_path, {"latest": 1})
    run.checkpoint(10).rename(run.checkpoints / f"{GONE}step_00000010")
    (run.checkpoints / f"{GONE}step_00000010/meta.json").unlink()
    pruner.prune(())
    assert kept(run) == [20, 100] and not list(run.checkpoints.glob(f"{GONE}*"))


def test_an_agent_prunes_as_it_trains_and_everything_is_evaluated(tmp_path: Path) -> None:
    run = make_run(tmp_path, train={"keep": {"latest": 1}}, evaluate={"every": 10, "tasks": ["zero_shot"]})
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    launch.wait_for_evaluations(run)
    status = look_at_run(run)
    assert status.is_complete, (status.state, status.reason)
    assert [run.eval_result(step).exists() for step in (10, 20, 30, 40)] == [True] * 4
    assert kept(run) == [20, 40]
    again = launch.start_or_adopt(run)
    assert again.adopted or look_at_run(run).is_complete, "nothing is trained or judged anew"
    assert kept(run) == [20, 40]
