"""Rehearses a preemption: proves before a long training that one which is preempted goes on as if it had not
been.

The training is made twice for a few steps, in a folder of its own: once undisturbed, and once with the very
signal that ends a job. Both must write the same weights and losses. How long the preempted one took to obey,
with its checkpoint, is measured on the real disk at the real size.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file
from tasks.core.schema import Config
from tasks.runs import metrics, stop
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import agent_is_alive
from tasks.runs.plan import plan, resolve
from tasks.supervision import launch
from tasks.supervision.status import RunStatus, look_at_run

FOLDER = "rehearsals"
STEPS = (20, 100, 500, 2500)
"""How many steps are tried. The signal has to come between two of them."""
POLL_S = 0.05
MODEL = "model.safetensors"
FIGURES = ("train/loss", "train/lr", "train/grad_norm", "val/loss")
"""Keys of the rows that must be the same; others are times."""
Shown = Callable[[str, RunStatus], None]


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal showed. `difference` is empty where the preempted training went on bit for bit.

    `obeyed_s` is how long it took from the signal until it had ended with its checkpoint, of the `grace_s`
    that it has.
    """

    steps: int
    preempted_at: int
    obeyed_s: float
    grace_s: float
    difference: str
    folder: Path

    @property
    def is_exact(self) -> bool:
        return not self.difference


def rehearse(config: Config, version: Path, shown: Shown) -> Rehearsal:
    """Train for a few steps, preempted halfway and undisturbed, and compare the two; the folder is removed
    where they are equal. A training that is too quick to be caught halfway gets more steps.

    `shown` gets what is being done, and every new status. DataError where one of the trainings fails.
    """
    if config.train is None:
        raise UsageError("train: is required and missing")
    folder = resolve(config, version).runs / FOLDER / time.strftime("%Y%m%d-%H%M%S")
    for steps in STEPS:
        preempted = plan(_short(config, steps, folder / f"preempted-{steps}"), version)
        reached, obeyed_s = _preempt(preempted, steps // 2, functools.partial(shown, "preempted"))
        if reached < steps:
            break
    else:
        raise DataError(f"{folder}: {steps:,} steps were over before the training could be preempted")
    launch.start_or_adopt(preempted)
    launch.wait_for_training(preempted, functools.partial(shown, "resumed"))
    undisturbed = plan(_short(config, steps, folder / "undisturbed"), version)
    launch.start_or_adopt(undisturbed)
    launch.wait_for_training(undisturbed, functools.partial(shown, "undisturbed"))
    difference = _difference(undisturbed, preempted, steps)
    for run in (undisturbed, preempted):
        launch.follow(run, lambda status: not status.agent_is_alive)
    if not difference:
        shutil.rmtree(folder)
    return Rehearsal(steps, reached, obeyed_s, stop.grace_s(preempted), difference, folder)


def _short(config: Config, steps: int, runs: Path) -> Config:
    """The same training of a few steps, without evaluations and trackers, which keep no bit of it."""
    assert config.train is not None
    train = config.train.model_copy(
        update={"steps": steps, "epochs": None, "checkpoint_every": steps, "keep": None, "log_every": 1}
    )
    track = config.track.model_copy(update={"mode": "disabled"})
    return config.model_copy(update={"runs": runs, "train": train, "evaluate": None, "track": track})


def _preempt(run: RunFolder, at_step: int, shown: Callable[[RunStatus], None]) -> tuple[int, float]:
    """Start the training and end its job at `at_step` as a preemption does; returns the step of its
    checkpoint, and the seconds until that was there."""
    launch.start_or_adopt(run)
    launch.follow(run, lambda status: metrics.last_step(run.metrics) > 0 or status.training_is_over, shown)
    while metrics.last_step(run.metrics) < at_step and agent_is_alive(run):
        time.sleep(POLL_S)
    status = look_at_run(run)
    attempt, job = status.record.attempts[-1], status.record.attempts[-1].slurm
    began = time.monotonic()
    if status.training_is_over:
        if status.state != "succeeded":
            launch.wait_for_training(run)
        return status.steps, 0.0
    if job is None:
        os.kill(attempt.pid, signal.SIGUSR2)
    elif refusal := job.requeue():
        raise DataError(f"{run.name}: Slurm does not queue its job again: {refusal}")
    number = len(status.record.attempts)
    ended = launch.follow(run, lambda status: _has_stopped(status, number), shown)
    seconds = time.monotonic() - began
    if not ended.checkpoints:
        raise DataError(f"{run.name}: the preempted training left no checkpoint: {ended.reason}")
    if job is None:
        launch.follow(run, lambda status: not status.agent_is_alive, shown)
    else:
        job.begin_now()
    return max(ended.checkpoints), seconds


def _has_stopped(status: RunStatus, attempts: int) -> bool:
    return status.record.attempts[attempts - 1].outcome is not None


def _difference(first: RunFolder, second: RunFolder, step: int) -> str:
    """Return what differs between two trainings, the earliest figure first; empty where nothing does."""
    one, other = (_figures(run) for run in (first, second))
    for uid in sorted(one, key=lambda uid: int(uid.split(":")[1])):
        if one[uid] != other.get(uid):
            return f"{uid}: {one[uid]} undisturbed, {other.get(uid)} preempted"
    weights = [run.checkpoint(step) / MODEL for run in (first, second)]
    return "" if len({blake3_file(path) for path in weights}) == 1 else f"the weights of step {step:,}"


def _figures(run: RunFolder) -> Mapping[str, Mapping[str, Any]]:
    rows, _ = metrics.read_metrics(run.metrics)
    kept = ({key: value for key, value in row.items() if key in FIGURES} for row in rows)
    return {row["uid"]: figures for row, figures in zip(rows, kept, strict=True) if figures}
