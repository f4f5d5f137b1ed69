"""The Slurm job that an agent is: whether the run waits for it, whether it comes again after a signal, and
how it goes back to the queue.

Slurm ends a job by a signal to all of its processes, whatever the cause: a time limit, a preemption,
somebody's requeue or scancel. Only Slurm knows whether the job comes again, so it is asked, once the training
has written its checkpoint. Outside Slurm no job comes again.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from tasks.core.engines.slurm_queue import SlurmJob, fate_of_own_job, own_job
from tasks.core.lock import HEARTBEAT_S, STALE_S, Held, Lease
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.record import UNDER_WAY, RunRecord

LEASE_WAIT_S = 30.0
SLURM_LEASE_WAIT_S = STALE_S + 3 * HEARTBEAT_S
"""The same of a job that Slurm has queued again after the loss of its node, whose lease goes stale first."""
ENDED_BY_SLURM_S = 300.0
"""How long Slurm may take to end a job that it has agreed to queue again."""
WARNING, END = "SIGUSR2", "SIGTERM"
"""Before the time limit, or a preemption with a grace time; and when the job ends."""
logger = logging.getLogger(__name__)


@dataclass
class Allocation:
    """`job` is None outside Slurm. `returns` says whether the job comes again: `if asked` when Slurm is asked
    to queue it again, `anyway` when Slurm has done so."""

    job: SlurmJob | None = field(default_factory=own_job)
    follows: str | None = None
    """The id of the job that submitted this one to succeed it, and may not have recorded that yet."""
    returns: Literal["no", "if asked", "anyway"] = "no"

    def take(self, lease: Lease, run: RunFolder) -> str | None:
        """Take the run's lease, waiting for whoever starts or leaves the run; None, or why it cannot be had.

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
        """Why the job comes again after the signal that was `sent` to it; None where it does not.

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

    def return_to_the_queue(self, run: RunFolder) -> NoReturn:
        """End this process so that the job comes again; where Slurm refuses that, the next start resumes.

        An end of its own would leave a result, by which a job is taken to have said goodbye that begins
        again.
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
