"""Whether a training that has ended did what it was for: judged by evidence, as an exit code proves nothing.

open_clip's trainer ends with 0 where the experiment exists already, and a loader that yields no batch ends
with 0 and a checkpoint of an untrained model.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterator, Sequence

from tasks.core.findings import Finding
from tasks.diagnosis.rhythm import Rhythm
from tasks.trainers.command import Command
from tasks.trainers.contract import Trainer


def checkpoints_since(trainer: Trainer, command: Command, began: float) -> list[str]:
    """The files of checkpoints that were written since a time in Unix seconds."""
    found = [file for pattern in trainer.checkpoints(command) for file in glob.glob(pattern)]
    return sorted(file for file in found if _changed(file) >= began - 1)


def _changed(file: str) -> float:
    try:
        return os.path.getmtime(file)
    except OSError:
        return 0.0


def judge_outcome(
    trainer: Trainer, command: Command, rhythm: Rhythm, lines: Sequence[str], began: float
) -> Iterator[Finding]:
    """What shows that a training did not do its work, although its exit code is 0."""
    said = next((line for line in lines if any(one.search(line) for one in trainer.failures)), None)
    if said is not None:
        remedy = "give another --name, or --resume latest"
        yield _finding("run.no_batches", f"it ended with exit code 0 and said: {said.strip()[:160]}", remedy)
        return
    if trainer.must_log_steps and not rhythm.steps:
        remedy = "tarmac preflight -- COMMAND says why no batch came"
        yield _finding("run.no_batches", "it ended with exit code 0 without a single step", remedy)
        return
    loss = rhythm.last.loss if rhythm.last is not None else None
    if loss is not None and not math.isfinite(loss):
        remedy = "lower the learning rate, or take bf16 or fp32; resume from before it"
        yield _finding("loss.nonfinite", f"its last loss is {loss}", remedy)
    if rhythm.steps and trainer.checkpoints(command) and not checkpoints_since(trainer, command, began):
        where = trainer.checkpoints(command)[0]
        yield _finding(
            "checkpoint.stalled", f"it wrote no checkpoint: {where}", "see its log about saving", "warning"
        )


def _finding(code: str, what: str, remedy: str, severity: str = "error") -> Finding:
    return Finding(code, "warning" if severity == "warning" else "error", remedy, evidence={"what": what})
