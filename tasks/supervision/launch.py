"""Starts a run's agent or adopts the one that lives, and waits for a run by reading its folder.

Whoever waits may be killed; the run goes on, and the next call adopts it. Nobody waits for ever: when no
process works on a run that is not over, the wait ends with the reason and the last lines of the log.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from tasks.core import screen
from tasks.core.child import LAST_LINES
from tasks.core.engines.slurm_queue import CANCELLED, SlurmJob, require_slurm
from tasks.core.errors import DataError, Withdrawn
from tasks.core.lock import HEARTBEAT_S, STALE_S, Held, Holder, Lease
from tasks.evaluation.best import is_due
from tasks.runs import jobs, provenance, record, stop
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.runs.gpus import gpus_here
from tasks.runs.jobs import Job, job_in
from tasks.runs.plan import command_to_resume
from tasks.runs.record import Attempt
from tasks.supervision.allocation import AGENT, submit_reviver
from tasks.supervision.evaluating.evaluation_jobs import has_requests
from tasks.supervision.ranks.success import tail_of
from tasks.supervision.status import RunStatus, config_of, look_at_run, pause_after

POLL_S = 0.25
ON_PROGRESS_S = 0.5
HANDOVER_S = STALE_S + 3 * HEARTBEAT_S
"""How long an agent that is leaving, or another starter, may keep the lease; one of a host that is gone keeps
it until it is stale."""
REVIVALS = 3
"""How often an agent that was killed is started again in a row."""
PATIENCE_S = 5.0
"""A longer wait for the lease is logged."""
Goal = Literal["train", "evaluate"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """The outcome of `start_or_adopt`.

    `job` is None when nothing was left to do, or the agent's job is not known.

    `by` is the flow run that started the agent, None where none did. `changes` names the code and package
    versions that differ from the run's last attempt.
    """

    adopted: bool
    is_up_to_date: bool
    job: Job | None
    by: str | None = None
    changes: tuple[str, ...] = ()


def start_or_adopt(
    run: RunFolder, goal: Goal = "train", on_wait: Callable[[], None] = lambda: None, by: str | None = None
) -> Started:
    """Have an agent at work on the run, the live one or a new one; do nothing when all is done.

    `by` is the flow run that starts it. An agent that is leaving after a failure or a stop is waited for,
    with calls of `on_wait`, and followed by a new one. TarmacError when it does not leave within HANDOVER_S.
    """
    began, is_logged = time.monotonic(), False
    while True:
        try:
            with Lease(run.lease):
                return _start(run, goal, by)
        except Held as held:
            status = look_at_run(run)
            if _is_at_work(status, goal, held.holder):
                return Started(True, False, job_in(run, status.record.job), status.record.started_by)
            is_over = status.state in ("failed", "cancelled")
            is_leaving = is_over and status.record.has_agent(held.holder)  # and is no starter
            if is_leaving and goal == "train" and not run.stop.exists():
                stop.order_stop(run, "agent", "a new start of the run takes over")
            waited_s = time.monotonic() - began
            if waited_s > HANDOVER_S:
                raise
            if waited_s > PATIENCE_S and not is_logged:
                logger.warning("%s; waiting for it to leave, %.0f s at most", held, HANDOVER_S)
                is_logged = True
        on_wait()
        time.sleep(POLL_S)


def revive(run: RunFolder) -> str:
    """Start the agent of a run again that was killed, where `train.on_crash` allows that; returns a sentence
    about it, empty where nothing was to be done or may be done.

    Whoever looks at a run may call it, on the machine of a local agent or wherever Slurm is. It is not
    repeated more than REVIVALS times in a row without a new checkpoint. A run whose job a person has
    cancelled in Slurm is recorded as cancelled, because Slurm will forget that.
    """
    status = look_at_run(run)
    if not was_killed(status):
        return ""
    cancelled = _job_that_was_cancelled(status)
    if cancelled is None and not _may_revive(status):
        return ""
    killed = f"its agent was killed at step {status.step:,} of {status.steps:,}"
    try:
        with Lease(run.lease):
            if record.load_record(run) != status.record or _is_ordered_to_stop(run):
                return ""  # somebody has cancelled or started it meanwhile
            if cancelled is not None:
                reason = f"{cancelled} of its agent was cancelled in Slurm"
                record.save_record(run, status.record.cancelled(reason))
                return ""
            _start(run, status.record.goal, status.record.started_by)
    except Held:
        return f"{killed}; somebody else looks after it"
    return f"{killed}; started again ({len(_lost_in_a_row(status))} of {REVIVALS})"


def _is_ordered_to_stop(run: RunFolder) -> bool:
    """Whether somebody wants it to stop; a rule orders that anew of the next agent."""
    order = stop.read_stop_order(run)
    return order is not None and order.who != "rule"


def _job_that_was_cancelled(status: RunStatus) -> SlurmJob | None:
    """The agent's job, if a person has cancelled it, who wants nothing of it to go on."""
    job = job_in(status.run, status.record.job)
    slurm = None if job is None else job.slurm
    return slurm if slurm is not None and slurm.ending == CANCELLED else None


def revive_in_slurm(run_folder: str, agent: str) -> None:
    """The job that Slurm starts when the job `agent` has failed: it starts the run's agent again, if that may
    be.

    It waits until the agent's lease is known to be left, which takes STALE_S for one of another host. It
    leaves when there is nothing to do, such as after an end that the agent itself has recorded, or where
    somebody else has started the run meanwhile.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    run = RunFolder(Path(run_folder))
    deadline = time.monotonic() + HANDOVER_S
    while _is_held_by(run, agent) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    job = record.load_record(run).job
    is_its_own = job is not None and job["id"] == agent
    logger.info("%s", (revive(run) if is_its_own else "") or "nothing is to be done")


def _is_held_by(run: RunFolder, agent: str) -> bool:
    """Whether the run still seems to have its agent, and waits for no other than the job `agent`."""
    job = record.load_record(run).job
    return job is not None and job["id"] == agent and jobs.agent_is_alive(run)


def was_killed(status: RunStatus) -> bool:
    """Whether the last agent ended without a word, and nobody has cancelled the run since, which takes the
    agent's job from the record."""
    attempts = status.record.attempts
    is_open = bool(attempts) and attempts[-1].ended is None and status.record.job is not None
    return not status.agent_is_alive and (status.is_abandoned or is_open)


def _may_revive(status: RunStatus) -> bool:
    train, attempts = config_of(status.run).train, status.record.attempts
    if train is None or train.on_crash != "restart" or _is_ordered_to_stop(status.run):
        return False
    job = job_in(status.run, status.record.job)
    is_in_slurm = job is not None and job.slurm is not None
    is_here = is_in_slurm or (bool(attempts) and attempts[-1].host == socket.gethostname())
    return is_here and len(_lost_in_a_row(status)) <= REVIVALS


def _lost_in_a_row(status: RunStatus) -> list[Attempt]:
    """The last attempts whose agents were killed without a new checkpoint."""
    kept = 0.0
    with suppress(OSError):  # one that is removed meanwhile
        kept = max((one.path.stat().st_mtime for one in list_checkpoints(status.run)), default=0.0)
    lost = takewhile(lambda one: one.outcome in (None, "lost"), reversed(status.record.attempts))
    return [one for one in lost if one.started > kept] or status.record.attempts[-1:]


def follow(
    run: RunFolder,
    until: Callable[[RunStatus], bool],
    on_progress: Callable[[RunStatus], None] = lambda status: None,
) -> RunStatus:
    """Wait until `until` holds and return the last status.

    `on_progress` gets every new status, and the last one again every ON_PROGRESS_S in between. An agent that
    was killed is started again, as `revive` does; DataError when nobody works on the run any more all the
    same and `until` still does not hold.
    """
    began = time.monotonic()
    while True:
        status = look_at_run(run)
        on_progress(status)
        if until(status):
            return status
        if not status.agent_is_alive:
            if revived := revive(run):
                screen.warn(f"{run.name}: {revived}")
            elif not (until(status := look_at_run(run)) or status.agent_is_alive):
                raise DataError(_gone(status))
        next_look = time.monotonic() + pause_after(time.monotonic() - began, POLL_S)
        while (left_s := next_look - time.monotonic()) > ON_PROGRESS_S:
            time.sleep(ON_PROGRESS_S)
            on_progress(status)
        time.sleep(max(left_s, 0.0))


def wait_for_training(
    run: RunFolder, on_progress: Callable[[RunStatus], None] = lambda status: None
) -> RunStatus:
    """Wait until the training has succeeded, or a rule of `evaluate.stop_when` has ended it.

    DataError with reason and log when it did not, Withdrawn when somebody cancelled it.
    """
    status = follow(run, lambda status: status.training_is_over, on_progress)
    why = "" if config_of(run).dataset.private else f": {status.reason}"
    if status.record.stopped_early:
        return status
    if status.state == "cancelled" and status.signal is None:
        raise Withdrawn("cancelled", f"{run.name}: cancelled{why}")
    if status.state != "succeeded":
        raise DataError(f"{run.name}: {status.state}{why}\n{_end_of(status, status.log, status.reason)}")
    return status


def wait_for_evaluations(
    run: RunFolder, on_progress: Callable[[RunStatus], None] = lambda status: None
) -> RunStatus:
    """Wait until the agent has left, when all evaluations are final; `evaluations_missing` lists what is
    lost.

    Withdrawn when they were cancelled.
    """
    status = follow(run, lambda status: status.agent_has_left, on_progress)
    if status.stopped is not None:
        raise Withdrawn("cancelled", f"{run.name}: its evaluations were cancelled: {status.stopped}")
    return status


def _start(run: RunFolder, goal: Goal, by: str | None) -> Started:
    """Submit an agent, holding the lease until its job is recorded; the agent waits for the lease."""
    status = look_at_run(run)
    state = status.record
    job = job_in(run, state.job)
    if job is not None and job.is_alive():
        if goal == "evaluate" or state.state not in ("failed", "cancelled"):
            return Started(True, False, job, state.started_by)
        job.end()  # it waits to keep the evaluations of a training that is to go on
    if is_done(status, goal):
        return Started(False, True, None)
    is_to_go_on = goal == "train" and state.state != "succeeded" and not state.stopped_early
    asked = time.time()
    submitted = _submit(run, len(state.attempts) + 1, is_to_go_on and status.followed is None)
    changed = {"job": submitted.to_json(run.path), "goal": goal, "started_by": by, "asked": asked}
    queued = {"state": "queued", "reason": ""} if is_to_go_on else {}
    record.save_record(run, state.having(**changed, **queued))
    changes: list[str] = []
    if state.attempts:
        last = state.attempts[-1]
        now = (provenance.code_digest(), provenance.versions())
        changes = provenance.differences(last.code_digest, last.versions, *now)
    return Started(False, False, submitted, by, tuple(changes))


def is_done(status: RunStatus, goal: Goal) -> bool:
    """Whether an agent would find nothing to do: every result is there, and the best checkpoint is chosen."""
    run = status.run
    done = status.is_complete if goal == "train" else status.evaluations_done == len(status.evaluations)
    return done and not has_requests(run) and not is_due(run, config_of(run))


def _submit(run: RunFolder, number: int, trains: bool) -> Job:
    """Submit the agent of attempt `number`: to Slurm where the config has the training there, with all that
    the training takes if it trains. Evaluations that are Slurm jobs of their own need no job for the agent.
    UsageError where there is no Slurm."""
    config = config_of(run)
    engines = config.engine
    train, evaluate = engines.for_train(), engines.for_evaluate()
    in_slurm = train.kind == "slurm" and (trains or evaluate.kind != "slurm")
    for key, kind in (("engine.train", train.kind if in_slurm else ""), ("engine.evaluate", evaluate.kind)):
        if kind == "slurm":
            require_slurm(key)
    run.stop.unlink(missing_ok=True)
    provenance.snapshot(run.code(number))
    arguments, place, code = [str(run.path)], run.logs(number), run.code(number)
    if in_slurm:
        wanted = train if trains else engines.for_successor()[0]
        job = jobs.submit_to_slurm(
            AGENT, arguments, place, wanted, key="engine.train", name="agent", code=code
        )
        submit_reviver(run, config, job, place, code)
        return job
    return jobs.submit(
        AGENT,
        arguments,
        place,
        time_limit_s=train.time if train.kind == "local" else None,
        gpus=gpus_here(),
        name="agent",
        code=code,
    )


def _is_at_work(status: RunStatus, goal: Goal, holder: Holder | None) -> bool:
    """Whether the holder of the lease is an agent that does what is wanted, and not about to leave."""
    if holder is None or not status.record.has_agent(holder) or not holder.is_alive():
        return False
    if status.record.attempts[-1].ended is not None or status.run.stop.exists():
        return False
    return goal == "evaluate" or status.state in ("queued", "running", "stalled", "succeeded")


def _gone(status: RunStatus) -> str:
    job = job_in(status.run, status.record.job)
    logs = [status.log] if job is None or job.log == status.log else [job.log, status.log]
    return (
        f"{status.run.name}: its agent is gone, and it stands at step {status.step} of {status.steps} "
        f"({status.state}). Start it again, it resumes: {command_to_resume(status.run)}\n"
        + "\n".join(_end_of(status, log) for log in logs)
    )


def _end_of(status: RunStatus, log: Path, quoted: str = "") -> str:
    """Return the last lines of a log, except a line that `quoted` already ends with, and the log's path.

    For private data it returns only the path, as the lines may quote keys.
    """
    if config_of(status.run).dataset.private:
        return f"  log: {log} (not quoted here, because the dataset is private)"
    if not log.exists():
        return f"  log: {log} was not begun; see {log.parent}"
    lines = tail_of(log, LAST_LINES)
    if lines and quoted.endswith(f"({lines[-1].strip()})"):
        lines.pop()
    return "\n".join([*(f"  {line}" for line in lines), f"  log: {log}"])
