"""The Slurm job that an agent is: whether the run waits for it, whether it comes again, and who follows it.

**Coming again.** Slurm ends a job by a signal to all of its processes, whatever the cause: a time limit, a
preemption, somebody's requeue or scancel. Only Slurm knows whether the job comes again, so the agent asks it
once the training has written its checkpoint. Outside Slurm no job comes again.

**Succession.** The training's job must not hold its GPUs while its evaluations run or wait for nodes. So the
agent of a training that has ended submits a successor, an agent in a smaller job, and leaves. Where the
evaluations are Slurm jobs, that job takes one core and no GPU; where they run in it, it takes one GPU. Where
evaluations wait in the queue even for that core, as on a cluster of one node, the successor steps aside: it
submits the next one for later and leaves too; an evaluation that ends wakes that one. So no job waits for
itself, and nothing lives on the submitting host. The price is that the run queues once more.

**Revival.** An agent that is killed can ask for nothing. So a reviver waits beside each agent's job, a job of
one core that Slurm starts when the agent's has failed, and removes when it has ended well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from tasks.core.engines.slurm_queue import Queue, SlurmJob, fate_of_own_job, own_job
from tasks.core.errors import TarmacError
from tasks.core.lock import HEARTBEAT_S, STALE_S, Held, Lease
from tasks.core.schema import Config
from tasks.runs import jobs, record
from tasks.runs.folder import RunFolder
from tasks.runs.gpus import usable_gpus
from tasks.runs.jobs import Job, job_in
from tasks.runs.record import UNDER_WAY, RunRecord

AGENT = "tasks.supervision.agent:main"
REVIVER = "tasks.supervision.launch:revive_in_slurm"
REVIVER_S = 600
"""The time limit of the job that starts a killed agent again."""
CODE = Path(__file__).resolve().parents[2]
LEASE_WAIT_S = 30.0
SLURM_LEASE_WAIT_S = STALE_S + 3 * HEARTBEAT_S
"""The same for a job that Slurm has queued again after the loss of its node, whose lease goes stale first."""
ENDED_BY_SLURM_S = 300.0
"""How long Slurm may take to end a job that it has agreed to queue again."""
WARNING, END = "SIGUSR2", "SIGTERM"
"""Before the time limit, or a preemption with a grace time; and when the job ends."""
PATIENCE_S = 60.0
"""How long evaluations may wait in the queue before the job that waits for them steps aside."""
ASIDE_S, LONGEST_ASIDE_S = 60, 600
"""For how long it does that, at first and at most."""
RETRY_S, LONGEST_RETRY_S = 60.0, 600.0
"""The pause before a successor that Slurm did not accept is submitted again, at first and at most."""
LOSSES = 3
"""How often a job comes again after the loss of a node without a new checkpoint."""
logger = logging.getLogger(__name__)


@dataclass
class Allocation:
    """`job` is None outside Slurm. `returns` records whether the job comes again: `if asked` when Slurm has
    to be asked to queue it again, `anyway` when Slurm has done so."""

    job: SlurmJob | None = field(default_factory=own_job)
    follows: str | None = None
    """The id of the job that submitted this one to succeed it, and may not have recorded that yet."""
    returns: Literal["no", "if asked", "anyway"] = "no"

    def take(self, lease: Lease, run: RunFolder) -> str | None:
        """Take the run's lease, waiting for whoever starts or leaves the run; None, or why it was not taken.

        A Slurm job that the record does not name is not wanted: it is one that Slurm queued again after the
        run was cancelled or started anew.
        """
        deadline = time.monotonic() + (LEASE_WAIT_S if self.job is None else SLURM_LEASE_WAIT_S)
        while True:
            try:
                lease.acquire()
                break
            except Held as held:
                state = record.load_record(run)
                is_at_work = state.has_agent(held.holder)
                if time.monotonic() > deadline or (is_at_work and not self._is_wanted(state)):
                    return str(held)
            time.sleep(0.1)
        state = record.load_record(run)
        if self._is_wanted(state):
            return None
        lease.release()
        return f"{run.name} is {state.state} and does not wait for {self.job}"

    def _is_wanted(self, state: RunRecord) -> bool:
        """Whether the run waits for this Slurm job; a job of this machine comes only once."""
        known = None if state.job is None else state.job["id"]
        return self.job is None or known in {self.job.id, self.follows} - {None}

    def why_again(
        self, sent: str | None, *, came_further: bool = False, has_failed: bool = False
    ) -> str | None:
        """Explain why the job comes again after the signal that was `sent` to it; None where it does not.

        At its time limit it does only where the training `came_further` in it, or it would do so for ever.
        Slurm is not asked to queue again what `has_failed`.
        """
        if self.job is None or sent not in (WARNING, END):
            return None
        fate = fate_of_own_job()
        is_at_limit = fate == "runs" and sent == WARNING
        if fate == "ends" or (is_at_limit and not came_further) or (has_failed and fate != "requeued"):
            return None
        self.returns = "anyway" if fate == "requeued" else "if asked"
        if fate == "requeued":
            return "Slurm queued its job again"
        if fate == "preempted":
            return "Slurm preempts its job"
        return "its time limit came" if sent == WARNING else "its job was sent SIGTERM"

    def why_again_without(self, lost: Sequence[str], *, came_further: bool) -> str | None:
        """Explain why the job comes again on other nodes than those that were `lost`; None where none was,
        or where it has tried so often without coming further that the nodes are not the reason."""
        if self.job is None or not lost:
            return None
        if not came_further and int(os.environ.get("SLURM_RESTART_COUNT", "0")) >= LOSSES:
            return None
        self.job.leave_out(lost)
        self.returns = "if asked"
        return f"its node {' and '.join(lost)} was lost"

    def return_to_the_queue(self, run: RunFolder) -> NoReturn:
        """End this process so that the job comes again; where Slurm does not allow that, the next start
        resumes.

        An end of its own would leave a result, and a job that begins again would be taken for one that has
        ended by itself.
        """
        assert self.job is not None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        refusal = self.job.requeue() if self.returns == "if asked" else ""
        if refusal and fate_of_own_job() != "requeued":
            self._give_up(run, refusal)
        elif self.returns == "if asked" and not refusal:
            time.sleep(ENDED_BY_SLURM_S)
        logging.shutdown()
        os._exit(0)

    @staticmethod
    def _give_up(run: RunFolder, refusal: str) -> None:
        lease = Lease(run.lease)
        lease.wait(LEASE_WAIT_S, poll_s=0.1)
        try:
            state = record.load_record(run)
            changes: dict[str, Any] = {"job": None}
            if state.state in UNDER_WAY:
                words = f"but Slurm does not queue it again ({refusal}); start the run again: it resumes"
                changes |= {"state": "cancelled", "reason": f"{state.reason}, {words}"}
            record.save_record(run, state.having(**changes))
        finally:
            lease.release()


class Succession:
    """Decides when an agent hands over to a successor, and submits that."""

    def __init__(self, run: RunFolder, config: Config, aside_s: int | None) -> None:
        """`aside_s` is for how long this agent is to step aside, None where it is no successor itself."""
        self._run = run
        self._config = config
        self._engines = config.engine
        self._aside_s = aside_s
        self._retry_s = RETRY_S
        self._next_try = 0.0
        self.is_time_over = False
        """Whether this job, which is a successor's, has come to its time limit."""
        self.refusal = ""
        """Why Slurm did not accept a successor, so that this job is held for the evaluations."""

    @property
    def is_successor(self) -> bool:
        return self._aside_s is not None

    def is_due(self, longest_wait_s: float) -> bool:
        """Whether to hand over now: a training's job at once, a successor's where it may be in the way or its
        time is over. A job whose evaluations run in it, on its only GPU or on none, needs all that it has."""
        in_slurm = self._engines.train.kind == "slurm" and own_job() is not None
        if not in_slurm or time.monotonic() < self._next_try:
            return False
        if self._engines.evaluate.kind != "slurm":
            return self.is_time_over or (not self.is_successor and len(usable_gpus()) > 1)
        return not self.is_successor or self.is_time_over or longest_wait_s >= PATIENCE_S

    def submit(self, number: int) -> Job | None:
        """Return the successor's job, whose log lies in the attempt `number`; None where Slurm refuses it."""
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
                job = jobs.submit_to_slurm(
                    AGENT, arguments, place, wanted, key="engine.slurm", name="successor", code=CODE
                )
            except TarmacError as error:
                refusals.append(str(error))
            else:
                submit_reviver(self._run, self._config, job, place, CODE)
                return job
        self.refusal = refusals[0]
        logger.warning("no successor: %s; trying again in %.0f s", "; ".join(refusals), self._retry_s)
        self._next_try = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        return None


def submit_reviver(run: RunFolder, config: Config, agent: Job, place: Path, code: Path) -> None:
    """Have Slurm start the agent again where its job fails, as by a lack of memory; best effort."""
    if config.train is None or config.train.on_crash != "restart" or agent.slurm is None:
        return
    after = {"dependency": f"afternotok:{agent.id}", "kill-on-invalid-dep": "yes"}
    for engine in config.engine.for_small_job():
        wanted = engine.model_copy(update={"time": REVIVER_S, "extra": {**(engine.extra or {}), **after}})
        try:
            jobs.submit_to_slurm(
                REVIVER,
                [str(run.path), agent.id],
                place,
                wanted,
                key="engine.slurm",
                name="reviver",
                code=code,
                queue=_reviver_of(agent.slurm),
            )
            return
        except TarmacError as error:
            logger.warning("no job that would start the agent again: %s", error)


def cancel_reviver(agent: SlurmJob) -> None:
    """Take the job out of the queue that would start this agent again."""
    Queue(_reviver_of(agent)).give_up()


def _reviver_of(agent: SlurmJob) -> str:
    """The name of an agent's reviver in the queue."""
    return f"{agent.name}-reviver"


def cancel_leftovers(run: RunFolder) -> None:
    """Cancel jobs of earlier agents that Slurm has queued again though they have ended, as a controller does
    that was killed before it had written down their start."""
    mine = own_job()
    for attempt in record.load_record(run).attempts:
        if attempt.slurm is not None and attempt.slurm != mine and attempt.slurm.waiting:
            logger.warning("%s is in the queue again though it has ended; cancelling it", attempt.slurm)
            attempt.slurm.give_up()


def wake(run: RunFolder) -> None:
    """Begin a successor that has stepped aside, as an evaluation has ended; on an error it begins later."""
    with contextlib.suppress(TarmacError, OSError):
        state = record.load_record(run)
        job = None if state.goal == "train" else job_in(run, state.job)
        if job is not None and job.slurm is not None and job.slurm.waiting:
            job.slurm.begin_now()
