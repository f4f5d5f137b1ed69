"""Who keeps a run's evaluations once nothing trains: a job without GPUs that follows the training's.

Evaluations that are jobs of Slurm's wait for nodes, and the training's job, whose agent submits them, must
not hold these nodes meanwhile. So the agent of a training that has ended submits a successor, an agent in a
job of one core, and leaves. Where evaluations wait even for that core, as on a cluster of one node, the
successor steps aside: it submits the next one for later and leaves too; an evaluation that ends wakes that
one. So nothing waits for itself, and nothing lives on the submitting host. The price is a queue more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from tasks.core.engines.slurm_queue import own_job
from tasks.core.errors import TarmacError
from tasks.core.schema import Config
from tasks.runs import jobs, record
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import Job

MAIN = "tasks.supervision.agent:main"
PATIENCE_S = 60.0
"""How long evaluations may wait in the queue before the job that waits for them steps aside."""
ASIDE_S, LONGEST_ASIDE_S = 60, 600
"""For how long it does that, at first and at most."""
REFUSED_S, LONGEST_REFUSED_S = 60.0, 600.0
"""Before a refused submission of a successor is repeated, at first and at most."""
CODE = Path(__file__).resolve().parents[2]
logger = logging.getLogger(__name__)


class Succession:
    """Decides when an agent hands over to a successor, and submits that."""

    def __init__(self, run: RunFolder, config: Config, aside_s: int | None) -> None:
        """`aside_s` is for how long this agent is to step aside, None where it is no successor itself."""
        self._run = run
        self._engines = config.engine
        self._aside_s = aside_s
        self._refused_s = REFUSED_S
        self._next_try = 0.0
        self.is_time_over = False
        """Whether this job, which is a successor's, has come to its time limit."""
        self.refusal = ""
        """Why Slurm took no successor, so that the training's job is held for its evaluations."""

    @property
    def is_possible(self) -> bool:
        """Whether the evaluations go on without this job, which is Slurm's as they are."""
        kinds = (self._engines.train.kind, self._engines.evaluate.kind)
        return own_job() is not None and kinds == ("slurm", "slurm")

    @property
    def is_successor(self) -> bool:
        return self._aside_s is not None

    def is_due(self, longest_wait_s: float) -> bool:
        """Whether to hand over now: a training's job at once, a successor's where it may be in the way."""
        if not self.is_possible or time.monotonic() < self._next_try:
            return False
        return not self.is_successor or self.is_time_over or longest_wait_s >= PATIENCE_S

    def submit(self, number: int) -> Job | None:
        """The successor's job, whose log lies in the attempt `number`; None where Slurm refuses it."""
        aside_s = ASIDE_S if self._aside_s is None else min(2 * self._aside_s, LONGEST_ASIDE_S)
        begin_s = 0 if self._aside_s is None or self.is_time_over else self._aside_s
        mine = own_job()
        arguments = [str(self._run.path), str(aside_s), *([] if mine is None else [mine.id])]
        place = self._run.logs(number)
        refusals: list[str] = []
        for engine in self._engines.for_successor():
            extra = {**(engine.extra or {}), **({"begin": f"now+{begin_s}"} if begin_s else {})}
            wanted = engine.model_copy(update={"extra": extra or None})
            try:
                return jobs.submit_to_slurm(
                    MAIN, arguments, place, wanted, key="engine.slurm", name="successor", code=CODE
                )
            except TarmacError as error:
                refusals.append(str(error))
        self.refusal = refusals[0]
        logger.warning("no successor: %s; trying again in %.0f s", "; ".join(refusals), self._refused_s)
        self._next_try = time.monotonic() + self._refused_s
        self._refused_s = min(2 * self._refused_s, LONGEST_REFUSED_S)
        return None


def wake(run: RunFolder) -> None:
    """Have a successor that has stepped aside begin now, as an evaluation has ended; else it begins later."""
    with contextlib.suppress(TarmacError, OSError):
        state = record.load_record(run)
        job = None if state.job is None or state.goal == "train" else Job.from_json(state.job, run.path)
        if job is not None and job.slurm is not None and job.slurm.waiting:
            job.slurm.begin_now()
