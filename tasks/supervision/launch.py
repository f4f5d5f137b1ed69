"""Starts a run's agent or adopts the one that lives, and waits for a run by reading its folder.

Whoever waits may be killed; the run goes on, and the next call adopts it. Nobody waits for ever: when no
process works on a run that is not over, the waiting ends with the reason and the last lines of the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.core.errors import DataError
from tasks.core.files import write_atomic
from tasks.core.lock import HEARTBEAT_S, STALE_S, Held, Holder, Lease
from tasks.runs import jobs, provenance, record
from tasks.runs.folder import RunFolder
from tasks.runs.job import Job
from tasks.runs.record import OVER, RunRecord
from tasks.supervision.evaluation_jobs import has_requests
from tasks.supervision.status import RunStatus, agent_is_alive, config_of, look

AGENT = "tasks.supervision.agent:main"
POLL_S = 0.25
HANDOVER_S = STALE_S + 3 * HEARTBEAT_S
"""How long an agent that is leaving, or another starter, may keep the lease; one of a host that is gone keeps
it until it is stale."""
PATIENCE_S = 5.0
"""A longer wait for the lease is told."""
LAST_LINES = 12
Goal = Literal["train", "evaluate"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """What `start_or_adopt` did. `job` is None when nothing was left to do, or the agent's job is not known.

    `changes` names the code and package versions that differ from the run's last attempt.
    """

    adopted: bool
    is_up_to_date: bool
    job: Job | None
    changes: tuple[str, ...] = ()


def start_or_adopt(run: RunFolder, goal: Goal = "train") -> Started:
    """Have an agent at work on the run, the live one or a new one; do nothing when all is done.

    An agent that is leaving after a failure or a stop is waited for and followed by a new one. TarmacError
    when it does not leave within HANDOVER_S.
    """
    began, is_told = time.monotonic(), False
    while True:
        try:
            with Lease(run.lease):
                return _start(run, goal)
        except Held as held:
            status = look(run)
            if _is_at_work(status, goal, held.holder):
                return Started(True, False, _job_of(run, status.record))
            if status.state in ("failed", "cancelled") and goal == "train" and not run.stop.exists():
                _ask_to_leave(run, "a new start of the run takes over")
            waited_s = time.monotonic() - began
            if waited_s > HANDOVER_S:
                raise
            if waited_s > PATIENCE_S and not is_told:
                logger.warning("%s; waiting for it to leave, %.0f s at most", held, HANDOVER_S)
                is_told = True
        time.sleep(POLL_S)


def follow(
    run: RunFolder,
    until: Callable[[RunStatus], bool],
    on_progress: Callable[[RunStatus], None] = lambda status: None,
) -> RunStatus:
    """Wait until `until` holds, showing every look to `on_progress`.

    DataError when nobody works on the run any more and `until` still does not hold.
    """
    while True:
        status = look(run)
        on_progress(status)
        if until(status):
            return status
        if not status.agent_is_alive:
            raise DataError(_gone(status))
        time.sleep(POLL_S)


def wait_for_training(
    run: RunFolder, on_progress: Callable[[RunStatus], None] = lambda status: None
) -> RunStatus:
    """Wait until the training has succeeded; DataError with reason and log when it did not."""
    status = follow(run, lambda status: status.training_is_over, on_progress)
    if status.state != "succeeded":
        why = "" if config_of(run).dataset.private else f": {status.reason}"
        raise DataError(f"{run.name}: {status.state}{why}\n{_end_of(status, status.log, status.reason)}")
    return status


def wait_for_evaluations(
    run: RunFolder, on_progress: Callable[[RunStatus], None] = lambda status: None
) -> RunStatus:
    """Wait until the agent has left, all evaluations being final; look at `evaluations_missing` then."""
    return follow(run, lambda status: status.agent_has_left, on_progress)


def cancel(run: RunFolder, reason: str = "cancelled by the user") -> bool:
    """Ask the run to stop at its next step, writing a checkpoint; True when somebody is there to obey.

    A run that nobody works on is marked cancelled unless it is over.
    """
    _ask_to_leave(run, reason)
    if agent_is_alive(run):
        return True
    with Lease(run.lease):
        state = record.load(run)
        if state.state not in OVER:
            record.save(run, state.having(state="cancelled", reason=reason, job=None))
        run.stop.unlink(missing_ok=True)
    return False


def _start(run: RunFolder, goal: Goal) -> Started:
    """Submit an agent, holding the lease until its job is written down; the agent waits for the lease."""
    status = look(run)
    state = status.record
    job = _job_of(run, state)
    if job is not None and job.is_alive():
        return Started(True, False, job)
    done = status.is_complete if goal == "train" else status.evaluations_done == len(status.evaluations)
    done = done and not has_requests(run)
    if done:
        return Started(False, True, None)
    run.stop.unlink(missing_ok=True)
    number = len(state.attempts) + 1
    limit_s = config_of(run).engine.train.time
    gpus = min(jobs.gpus_here(), 1)
    place = run.logs(number)
    submitted = jobs.submit(AGENT, [str(run.path)], place, time_limit_s=limit_s, gpus=gpus, name="agent")
    trains = goal == "train" and state.state != "succeeded"
    changes = {"state": "queued", "reason": ""} if trains else {}
    record.save(run, state.having(job=submitted.to_json(run.path), goal=goal, **changes))
    return Started(False, False, submitted, tuple(_changes(state)))


def _is_at_work(status: RunStatus, goal: Goal, holder: Holder | None) -> bool:
    """Whether the holder of the lease is an agent that does what is wanted, and not about to leave."""
    attempts = status.record.attempts
    if not attempts or attempts[-1].ended is not None or holder is None or not holder.is_alive():
        return False
    if not attempts[-1].is_of(holder.identity):
        return False
    if status.run.stop.exists():
        return False
    return goal == "evaluate" or status.state in ("running", "stalled", "succeeded")


def _ask_to_leave(run: RunFolder, reason: str) -> None:
    write_atomic(run.stop, reason + "\n")


def _job_of(run: RunFolder, state: RunRecord) -> Job | None:
    return None if state.job is None else Job.from_json(state.job, run.path)


def _changes(state: RunRecord) -> list[str]:
    if not state.attempts:
        return []
    last = state.attempts[-1]
    return provenance.differences(
        last.code_digest, last.versions, provenance.code_digest(), provenance.versions()
    )


def _gone(status: RunStatus) -> str:
    job = _job_of(status.run, status.record)
    logs = [status.log] if job is None or job.log == status.log else [job.log, status.log]
    return (
        f"{status.run.name}: its agent is gone, and it stands at step {status.step} of {status.steps} "
        f"({status.state}). Start it again: it resumes.\n" + "\n".join(_end_of(status, log) for log in logs)
    )


def _end_of(status: RunStatus, log: Path, said: str = "") -> str:
    """The last lines of a log, but for the one that `said` ends with, and where it lies; of private data,
    whose keys they may quote, only where."""
    if config_of(status.run).dataset.private:
        return f"  log: {log} (not quoted here, because the dataset is private)"
    if not log.exists():
        return f"  log: {log} (not there)"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    if lines and said.endswith(f"({lines[-1].strip()})"):
        lines.pop()
    return "\n".join([*(f"  {line}" for line in lines), f"  log: {log}"])
