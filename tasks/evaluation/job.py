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
from tasks.core.files import digest
from tasks.core.schema import Config, TaskSpec
from tasks.evaluation import evaluators, results
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.evaluation.journal import EvaluationJournal, JournaledSubject
from tasks.evaluation.results import EvaluationResult
from tasks.runs import provenance
from tasks.runs.checkpoints import Checkpoint, read_meta
from tasks.runs.data import data_of, quarantine_digest
from tasks.runs.folder import RunFolder
from tasks.runs.followed import read_origin


def evaluate_checkpoint(run_folder: Path, step: int, task: str, question: str = "") -> None:
    """Evaluate the checkpoint of `step` by the config's task named `task` and write its result.

    The result repeats `question`, so that an agent recognises the answer to its question. On a CPU it uses
    one thread, for the sake of the training beside it. What an earlier try of the same evaluation has
    computed is taken up. Raises UsageError and DataError as the evaluator does.
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
    subject = LoadedCheckpoint.open(run, config, step, other)
    identity = _identity(run, subject, config, tasks[task])
    journal = EvaluationJournal(run.evaluation_journal(step, task), identity)
    try:
        at_once = subject.feed.judged_at_once
        outcome = evaluator.evaluate(JournaledSubject(subject, journal, at_once))
    finally:
        journal.close()
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
        version = data_of(subject.feed.data.version)[0].version
        by_sample = replace(by_sample, data=f"{version} {result.split}")
    results.write_result(
        run,
        result,
        () if config.dataset.private else outcome.predictions,
        outcome.files,
        None if by_sample is None else by_sample.to_bytes(),
    )
    journal.remove()


def _identity(run: RunFolder, subject: LoadedCheckpoint, config: Config, task: TaskSpec) -> str:
    """Return a digest of all that shapes what the checkpoint computes: only where this is equal has an
    earlier try computed the same."""
    step, data = subject.place().step, subject.feed.data
    meta, origin = read_meta(Checkpoint(step, run.checkpoint(step))), read_origin(run.checkpoint(step))
    return digest(
        {
            "checkpoint": None if meta is None else meta.files,
            "origin": None if origin is None else origin.digest,
            "task": task.model_dump(mode="json"),
            "data": [data_of(data.version)[0].version, quarantine_digest(list(data.quarantined))],
            "train": None if config.train is None else config.train.model_dump(mode="json"),
            "batches": [subject.feed.judged_at_once, config.loader.on_bad],
            "device": torch.cuda.get_device_name() if subject.device.type == "cuda" else "cpu",
            "code": [provenance.code_digest(), provenance.versions()],
        }
    )
