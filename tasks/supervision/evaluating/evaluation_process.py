"""The job's own side of an evaluation, on this machine or in Slurm.

It takes a lease on the result that it will write: however many jobs a crash has left behind for one
evaluation, one of them writes.
"""

from __future__ import annotations

from pathlib import Path

from tasks.core.config import reload
from tasks.core.errors import TarmacError
from tasks.core.lock import Lease
from tasks.evaluation import results
from tasks.runs.folder import RunFolder
from tasks.runs.gpus import GpusInUse, take_gpu_to_evaluate, visible_gpus
from tasks.supervision.allocation import wake


def run_job(run_folder: str, step: str, task: str, question: str) -> None:
    """The job: evaluate one checkpoint, unless another job has answered the question meanwhile."""
    run = RunFolder(Path(run_folder))
    hold_gpu(run)
    lease = Lease(run.evaluation_lease(int(step), task))
    lease.wait()
    try:
        found = results.read_result(run.evaluation(int(step), task))
        if found is not None and found.question == question:
            return
        run_evaluation(run.path, int(step), task, question)
    finally:
        lease.release()
        wake(run)


def hold_gpu(run: RunFolder) -> None:
    """Hold this job's GPU to its end, so that no training starts on it; TarmacError where one has done so
    that the evaluation is not to run beside."""
    visible = visible_gpus()
    found = take_gpu_to_evaluate(visible, run.name, is_kept=True) if visible else None
    evaluate = reload(run.config).evaluate if isinstance(found, GpusInUse) else None
    if evaluate is not None and evaluate.when != "beside":
        raise TarmacError(f"{found} (evaluate.when: {evaluate.when})")


def run_evaluation(run: Path, step: int, task: str, question: str) -> None:
    """Evaluate the checkpoint in this process; tests put a function without torch in the place of
    this one."""
    from tasks.evaluation.job import evaluate_checkpoint  # late, because it loads torch

    evaluate_checkpoint(run, step, task, question)
