"""One evaluation of one checkpoint, as a job of its own: reads the run's folder and leaves its result there.

Whether it has to be done is for the run's agent to decide; this does it whenever it is called.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.core.schema import Config, TaskSpec
from tasks.evaluation import evaluators, results
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.evaluation.results import EvaluationResult
from tasks.runs import provenance
from tasks.runs.folder import RunFolder


def evaluate_checkpoint(run_folder: Path, step: int, task: str, question: str = "") -> None:
    """Evaluate the checkpoint of `step` by the config's task named `task` and write its result.

    The result repeats `question`, by which an agent knows the answer to what it asked. One thread on a CPU,
    for the training beside it. UsageError and DataError as the evaluator raises them.
    """
    began = time.monotonic()
    torch.set_num_threads(1)
    run = RunFolder(run_folder)
    config = configs.reload(run.config)
    evaluator = evaluators.load_evaluator(_named(config, task))
    outcome = evaluator.evaluate(LoadedCheckpoint.open(run, config, step))
    result = EvaluationResult(
        task=task,
        step=step,
        checkpoint=str(run.checkpoint(step).relative_to(run.path)),
        metrics=dict(outcome.metrics),
        intervals=dict(outcome.intervals),
        chance=dict(outcome.chance),
        split=outcome.split,
        samples=outcome.samples,
        notes=list(outcome.notes),
        seconds=round(time.monotonic() - began, 3),
        versions={**provenance.versions(), "evaluator": results.VERSION},
        question=question,
    )
    results.write_result(run, result, () if config.dataset.private else outcome.predictions, outcome.files)


def _named(config: Config, task: str) -> TaskSpec:
    specs = config.evaluate.tasks if config.evaluate is not None else []
    for spec in specs:
        if spec.name == task:
            return spec
    raise UsageError(
        f"evaluate.tasks: has no task named {task!r}, but: {', '.join(s.name for s in specs) or 'none'}"
    )
