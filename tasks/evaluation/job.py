"""One evaluation of one checkpoint, as a job of its own: it reads the run's folder and writes its result
there.

The run's agent decides whether an evaluation is needed; this module runs it whenever it is called.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch

from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.evaluation import evaluators, results
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.evaluation.results import EvaluationResult
from tasks.runs import provenance, record
from tasks.runs.data import data_of
from tasks.runs.folder import RunFolder
from tasks.runs.followed import read_origin


def evaluate_checkpoint(run_folder: Path, step: int, task: str, question: str = "") -> None:
    """Evaluate the checkpoint of `step` by the config's task named `task` and write its result.

    The result repeats `question`, so that an agent recognises the answer to its question. On a CPU it uses
    one thread, for the sake of the training beside it. Raises UsageError and DataError as the evaluator does.
    """
    began = time.monotonic()
    torch.set_num_threads(1)
    run = RunFolder(run_folder)
    config = configs.reload(run.config)
    tasks = {spec.name: spec for spec in evaluators.tasks_of(config)}
    if task not in tasks:
        raise UsageError(f"evaluate.tasks: has no task named {task!r}, but: {', '.join(tasks) or 'none'}")
    evaluator = evaluators.load_evaluator(tasks[task])
    other = evaluator.dataset
    outcome = evaluator.evaluate(LoadedCheckpoint.open(run, config, step, other))
    if (origin := read_origin(run.checkpoint(step))) is not None:
        outcome = replace(outcome, notes=(*outcome.notes, f"checkpoint {origin.path}"))
    if other is not None:  # whose keys may be those of other samples in the run's own dataset
        outcome = replace(outcome, predictions=(), notes=(*outcome.notes, f"evaluated on {other}"))
    result = EvaluationResult(
        task=task,
        step=step,
        checkpoint=str(run.checkpoint(step).relative_to(run.path)),
        **{name: value for name, value in vars(outcome).items() if name in EvaluationResult.model_fields},
        seconds=round(time.monotonic() - began, 3),
        versions={**provenance.versions(), "evaluator": results.VERSION},
        question=question,
    )
    by_sample = outcome.by_sample
    if by_sample is not None and not by_sample.data:
        ref = (record.load_record(run).data if other is None else data_of(other))[0]
        by_sample = replace(by_sample, data=f"{ref.version} {result.split}")
    results.write_result(
        run,
        result,
        () if config.dataset.private else outcome.predictions,
        outcome.files,
        None if by_sample is None else by_sample.to_bytes(),
    )
