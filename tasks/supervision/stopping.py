"""Ends a run: asks its processes to leave, ends those that do not, and reports which they were and which are
left.

A process is recognised by the run's folder, by the session that it shares with one that is known (controllers
of jobs and whatever else they started), and by an environment that names an agent of the run, as that of
everything does that a training started. Processes on another machine are asked too, but cannot be observed
from here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from tasks.core.engines.slurm_queue import SlurmJob
from tasks.core.files import read_json
from tasks.core.lock import Held, Holder, Lease, holder_of
from tasks.core.process import Identity, kill_tree
from tasks.loader import worker_state
from tasks.runs import ledger, record, stop
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import agent_is_alive, job_in
from tasks.runs.record import UNDER_WAY
from tasks.runs.stop import Who
from tasks.supervision.allocation import cancel_reviver
from tasks.supervision.ranks import trainer

POLL_S = 0.25
LEAVE_S = 5.0
"""How long an agent may take to leave, beyond the grace that its training has."""
ORPHANS_S = 5.0
"""How long what no agent holds any more may take: a training ends with its agent, a job does not."""


@dataclass(frozen=True)
class RunProcess:
    """One process of a run, or a job in Slurm; `what` names it, such as `zero_shot of step 200`."""

    what: str
    identity: Identity | SlurmJob

    def __str__(self) -> str:
        if isinstance(self.identity, SlurmJob):
            return f"{self.what} ({self.identity})"
        return f"{self.what} (process {self.identity.pid})"

    def to_json(self) -> dict[str, Any]:
        if isinstance(self.identity, SlurmJob):
            return {"what": self.what, "slurm_job": self.identity.id}
        return {"what": self.what, "pid": self.identity.pid}

    def kill(self) -> None:
        if isinstance(self.identity, SlurmJob):
            self.identity.cancel()
        else:
            kill_tree(self.identity)


Processes = dict[Identity | SlurmJob, RunProcess]


@dataclass(frozen=True)
class Stopped:
    """What became of a run's processes: those that `ended`, among them those `forced` to, and those `left`.

    `elsewhere` is the agent, where it lives on another machine or in another container.
    """

    ended: tuple[RunProcess, ...]
    forced: tuple[RunProcess, ...]
    left: tuple[RunProcess, ...]
    elsewhere: Holder | None = None


def cancel(run: RunFolder, reason: str = "cancelled by the user", who: Who = "user") -> bool:
    """Ask the run to stop at its next step and to write a checkpoint; True when somebody is there to obey.

    A run that nobody works on is marked cancelled unless it is over. A job that waits in Slurm's queue is
    taken out of it, also one that Slurm itself has queued again; should one come back all the same, it finds
    that the run does not wait for it.
    """
    stop.order_stop(run, who, reason)
    for job in _agent_jobs(run):  # before that one ends, which would start it
        cancel_reviver(job)
    _leave_the_queue(run)
    if agent_is_alive(run):
        return True
    with Lease(run.lease):
        record.save_record(run, record.load_record(run).cancelled(reason))
        run.stop.unlink(missing_ok=True)
    return False


def patience(run: RunFolder) -> float:
    """Return how many seconds a run that is stopped may take to leave by itself."""
    return stop.grace_s(run) + LEAVE_S


def end(run: RunFolder, reason: str, who: Who = "user", patience_s: float | None = None) -> Stopped:
    """Cancel the run and wait until no process of it lives; what is left after `patience_s`, by default the
    time that it has to obey, is killed.

    A training that obeys leaves a checkpoint of its last step.
    """
    known = living(run)  # a process that is leaving takes its name from the record before it has ended
    obeys = True
    with contextlib.suppress(Held):  # somebody is preparing a start of it, which is not ours to stop
        obeys = cancel(run, reason, who)
    patience_s = patience(run) if patience_s is None else patience_s
    deadline = time.monotonic() + (patience_s if obeys else min(patience_s, ORPHANS_S))
    forced: tuple[RunProcess, ...] = ()
    while left := _alive({**known, **living(run)}):
        known |= left
        _leave_the_queue(run)  # a job that Slurm queues again is not there from the first
        if time.monotonic() > deadline:
            forced = tuple(left.values())
            for process in forced:
                process.kill()
            break
        time.sleep(POLL_S)
    in_slurm = any(isinstance(identity, SlurmJob) for identity in known)
    if in_slurm and record.load_record(run).state in UNDER_WAY:  # Slurm ended it before it could record that
        with contextlib.suppress(Held):
            cancel(run, reason, who)
    left = _alive({**known, **living(run)})
    ended = tuple(process for identity, process in known.items() if identity not in left)
    holder = holder_of(run.lease)
    is_elsewhere = holder is not None and not holder.identity.is_visible and holder.is_alive()
    return Stopped(ended, forced, tuple(left.values()), holder if is_elsewhere else None)


def _leave_the_queue(run: RunFolder) -> None:
    for job in _agent_jobs(run):
        if job.waiting:
            job.cancel(if_pending=True)


def _agent_jobs(run: RunFolder) -> list[SlurmJob]:
    """The agent's jobs in Slurm: the one that the run waits for, and that of its last attempt, which Slurm
    may have queued again when it had ended."""
    state = record.load_record(run)
    job = job_in(run, state.job)
    last = state.attempts[-1].slurm if state.attempts else None
    waited_for = None if job is None else job.slurm
    return list(dict.fromkeys(one for one in (waited_for, last) if one is not None))


def _alive(processes: Mapping[Identity | SlurmJob, RunProcess]) -> Processes:
    return {identity: process for identity, process in processes.items() if identity.is_alive()}


def living(run: RunFolder) -> Processes:
    """The processes that live on this machine or in Slurm."""
    named: Processes = {}
    for process in _recorded(run):
        named.setdefault(process.identity, process)
    known = _alive(named)
    here = {one.pid: process.what for one, process in known.items() if isinstance(one, Identity)}
    sessions = {_session(pid): what for pid, what in here.items()}
    sessions.pop(_session(os.getpid()), None)
    sessions.pop(None, None)
    for pid in psutil.pids():
        owner = None if pid in here else sessions.get(_session(pid))
        if owner is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                identity = Identity.of(pid)
                known[identity] = RunProcess(f"started by {owner}", identity)
    return _alive(known)


def _recorded(run: RunFolder) -> Iterator[RunProcess]:
    """The agent, the training, its loader workers, the evaluation jobs and the gatherer, as the run's folder
    has them, living or dead; the first name of a process is its best."""
    state = record.load_record(run)
    holder = holder_of(run.lease)
    if (job := job_in(run, state.job)) is not None:
        yield RunProcess("job of the agent", job.identity)
    for slurm in _agent_jobs(run):
        yield RunProcess("job of the agent", slurm)
    if holder is not None and state.has_agent(holder):
        yield RunProcess("agent", holder.identity)
    for path in run.attempts.glob("*/rank_*.json"):
        rank = path.stem.removeprefix("rank_")
        yield RunProcess(f"training, rank {rank}", Identity.from_json(read_json(path)))
    for worker in worker_state.read_all(run.workers):
        yield RunProcess(f"loader worker {worker.worker} of rank {worker.rank}", worker.identity)
    yield from _evaluating(run)
    if (gatherer := holder_of(run.gatherer_lease)) is not None:
        yield RunProcess("gatherer", gatherer.identity)
    for identity in trainer.survivors(run):
        yield RunProcess("started by the training", identity)


def _evaluating(run: RunFolder) -> Iterator[RunProcess]:
    entries = ledger.read_ledger(run.ledger)
    open_ones = {key for key, entry in ledger.fold(entries).items() if not entry.is_final}
    for entry in entries:
        job = job_in(run, entry.job)
        if job is not None and (job.slurm is None or entry.key in open_ones):  # or squeue is asked a lot
            yield RunProcess(f"job of {entry.task} of step {entry.step}", job.identity)
    for path in run.evaluations.glob("step_*/.*.lease"):
        if (evaluating := holder_of(path)) is not None:
            task, step = path.stem.removeprefix("."), path.parent.name.removeprefix("step_")
            yield RunProcess(f"{task} of step {step}", evaluating.identity)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
