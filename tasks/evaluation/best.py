"""Choose the best checkpoint of a run: by the metric that `evaluate.best` names, else by validation loss.

The choice depends on files alone, `eval_results/` and the checkpoints' `meta.json`, so a resumed run chooses
as if it had never stopped. Until the metric has a result, the validation loss decides; whatever shows the
choice also shows that (`BestCheckpoint.awaited`). Each metric of `evaluate.best_by` chooses a link of its
own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.core.files import link_atomic, read_json
from tasks.core.schema import Config
from tasks.core.schema.judging import BestMetric
from tasks.core.units import number
from tasks.runs.checkpoints import (
    Checkpoint,
    CheckpointListing,
    CheckpointMeta,
    by_val_loss,
    list_checkpoints,
    read_meta,
)
from tasks.runs.folder import RunFolder

VALIDATION_LOSS = "validation loss"
Mode = Literal["max", "min"]


@dataclass(frozen=True)
class BestCheckpoint:
    """A checkpoint with the metric by which it is the best, and the value of that."""

    step: int
    metric: str
    value: float | None
    """None where the file that held it is gone."""
    awaited: str = ""
    """The metric that `evaluate.best` names, while it has no result."""

    def __str__(self) -> str:
        """Format it like `step 400 by mmstar_average 0.412`."""
        value = "" if self.value is None else f" {number(self.value)}"
        awaited = f", until {self.awaited} has a result" if self.awaited else ""
        return f"step {self.step:,} by {self.metric}{value}{awaited}"


def choose(run: RunFolder, config: Config) -> Checkpoint | None:
    """Return the best existing checkpoint; None before any was measured."""
    return next(iter(ranked(run, config)), None)


def ranked(run: RunFolder, config: Config) -> list[Checkpoint]:
    """Return the existing checkpoints that were measured, the best first, and the earlier of two equals."""
    asked = config.evaluate.best if config.evaluate is not None else None
    return (by_metric(run, config, asked) if asked is not None else []) or by_val_loss(run)


def by_metric(run: RunFolder, config: Config, asked: BestMetric) -> list[Checkpoint]:
    """Return the existing checkpoints for which a metric has a result, in the same order."""
    sign = -1.0 if (asked.mode or direction_of(config, asked.metric)) == "max" else 1.0
    judged = [
        (sign * value, checkpoint.step, checkpoint)
        for checkpoint in list_checkpoints(run)
        if (value := figure_of(run, checkpoint.step, asked.metric)) is not None
    ]
    return [entry[2] for entry in sorted(judged, key=lambda entry: entry[:2])]


def links_of(run: RunFolder, config: Config) -> list[tuple[Path, list[Checkpoint]]]:
    """Return the link of each metric of `evaluate.best_by`, and the checkpoints by it, the best first."""
    asked = config.evaluate.best_by if config.evaluate is not None else []
    return [(run.best_by(one.metric), by_metric(run, config, one)) for one in asked]


class Pointer:
    """Keeps `checkpoints/best` pointing at the best checkpoint, for the run's agent, which polls often."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        self._run = run
        self._config = config
        self._checkpoints = CheckpointListing(run)
        self._observed: tuple[int, list[tuple[int, CheckpointMeta | None]]] | None = None
        """The number of evaluations at the last choice, and the newest checkpoint with its meta data, into
        which the validation loss is written later."""

    def follow(self, evaluated: int) -> None:
        """Choose again where the number of evaluations has changed, or the newest checkpoint."""
        observed = (evaluated, [(one.step, read_meta(one)) for one in self._checkpoints()[-1:]])
        if observed == self._observed:
            return
        self._observed = observed
        if (better := _better(self._run, self._config)) is not None:
            link_atomic(self._run.best, better.path.name)
        for link, checkpoints in links_of(self._run, self._config):
            if checkpoints and (link.is_symlink() or not link.exists()):
                link_atomic(link, checkpoints[0].path.name)


def is_due(run: RunFolder, config: Config) -> bool:
    """Whether a metric of the evaluations chooses another checkpoint than `checkpoints/best` points at."""
    is_asked = config.evaluate is not None and config.evaluate.best is not None
    return is_asked and _better(run, config) is not None


def _better(run: RunFolder, config: Config) -> Checkpoint | None:
    """Return the best checkpoint where `checkpoints/best` has to be pointed at it; None where it points
    there, or where a copy of the run made a folder of the link."""
    is_link = run.best.is_symlink() or not run.best.exists()
    chosen = choose(run, config)
    return chosen if chosen is not None and is_link and _pointed_at(run) != chosen.path.name else None


def standing(run: RunFolder, config: Config) -> BestCheckpoint | None:
    """Return the checkpoint that `checkpoints/best` points at; None where it points at none."""
    name = _pointed_at(run)
    if not name.startswith("step_") or not (run.checkpoints / name).is_dir():
        return None
    checkpoint = Checkpoint(int(name.removeprefix("step_")), run.checkpoints / name)
    asked = config.evaluate.best if config.evaluate is not None else None
    value = None if asked is None else figure_of(run, checkpoint.step, asked.metric)
    if asked is not None and value is not None:
        return BestCheckpoint(checkpoint.step, asked.metric, value)
    meta = read_meta(checkpoint)
    loss = None if meta is None else meta.val_loss
    return BestCheckpoint(checkpoint.step, VALIDATION_LOSS, loss, "" if asked is None else asked.metric)


def direction_of(config: Config, metric: str) -> Mode:
    """Whether the highest or the lowest value of a metric is the best one; of a key of `metrics.jsonl`, that
    is the lowest of a loss."""
    from tasks.evaluation.evaluators import is_better_low  # late, because it loads numpy into the agent

    assert config.evaluate is not None
    is_low = metric.endswith("loss") if "/" in metric else is_better_low(config.evaluate.tasks, metric)
    return "min" if is_low else "max"


def _pointed_at(run: RunFolder) -> str:
    return run.best.readlink().name if run.best.is_symlink() else ""


def figure_of(run: RunFolder, step: int, metric: str) -> float | None:
    """Return the value of a metric in `eval_results/step_N.json`; None where there is none yet, or it is not
    finite."""
    try:
        results: Any = read_json(run.eval_result(step))["results"]
        value = results.get(metric)
    except (FileNotFoundError, ValueError, LookupError, AttributeError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
