"""A run's evaluations as its agent drives them: observes, asks `evaluations.next_actions`, and does the
answer. `evaluation_process` is the job's own side."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection

from tasks.core.engines.slurm_queue import CANCELLED, silence_s
from tasks.core.errors import TarmacError
from tasks.core.files import write_atomic
from tasks.core.lock import holder_of
from tasks.core.schema import Config
from tasks.evaluation import results
from tasks.evaluation.condition import entry_of
from tasks.evaluation.expected import WantedEvaluation, wanted_of
from tasks.runs import jobs, ledger
from tasks.runs.checkpoints import SETTLED_NS, CheckpointListing
from tasks.runs.folder import RunFolder
from tasks.runs.followed import Origin, origins_of
from tasks.runs.gpus import GpusInUse, HeldGpus, take_gpu_to_evaluate, usable_gpus, visible_gpus
from tasks.runs.jobs import Job, job_in
from tasks.runs.ledger import Key, LedgerEntry
from tasks.supervision.evaluating.evaluations import (
    EvaluationEvidence,
    Hold,
    JobFailure,
    Mark,
    Pause,
    Submit,
    Training,
    hold_of,
    next_actions,
    reopened,
    unfinished,
)
from tasks.supervision.evaluating.result_files import UnusableResults, result_of
from tasks.supervision.evaluating.summaries import Summaries

JOB = "tasks.supervision.evaluating.evaluation_process:run_job"
FULL_LOOK_S = 30.0
STUCK_S = 300.0
"""How long a job may be held in Slurm's queue before it is given up: a person may hold it for a moment."""
NICE = 10
"""How much lower the priority of an evaluation is that shares a machine with the training."""
ENDED = "its job was ended with the run"
NO_ANSWER = "Slurm does not answer; its job is submitted when it does"
SUBMITIT = re.compile(r"([A-Z]+:)?submitit[ :]")
"""Matches the start of a line that submitit itself logged, by its logger or by the root's."""
OURS = re.compile(r"^tasks\.core\.errors\.\w+: ")
"""Matches the name that Python prints before one of our own errors, whose text is written for users."""
logger = logging.getLogger(__name__)


def request(run: RunFolder, step: int, task: str) -> None:
    """Ask for an evaluation to be done again; the run's agent, this or the next one, takes it up.

    The agent looks for requests when the folder of the evaluations shows a change, hence the last line.
    """
    write_atomic(run.evaluation_request(step, task), "")
    os.utime(run.evaluations)


def has_requests(run: RunFolder) -> bool:
    return any(run.evaluations.glob("step_*/.*.again"))


class Evaluations:
    """The evaluations of one run, in the hands of its agent."""

    def __init__(self, run: RunFolder, config: Config, number: int, is_continued: bool = False) -> None:
        """`number` is the attempt's, under which new jobs leave their logs. `is_continued` where this agent
        goes on for another one, without a person's wish to try again what has failed."""
        self._run = run
        self._engine = config.engine.for_evaluate()
        tasks = config.evaluate.tasks if config.evaluate is not None else ()
        self._engines = {task.name: config.engine.for_evaluate(task.kind) for task in tasks}
        self._number = number
        self._when = config.evaluate.when if config.evaluate is not None else "idle"
        self._held: dict[Key, HeldGpus] = {}
        """The GPUs of jobs that are about to take them themselves."""
        self._config = config
        self._origins: dict[int, Origin] = {}
        """Where the checkpoints of a run come from that follows another trainer."""
        self._wanted: list[WantedEvaluation] = []
        self.renew()
        history = ledger.read_ledger(run.ledger)
        self._entries = ledger.fold(history)
        if not is_continued:
            alive = {key for key, entry in self._entries.items() if self._job_lives(entry)}
            self._entries = reopened(self._entries, alive)
        self._known_alive: set[Key] = set(self._entries) if is_continued else set()
        self._stuck_since: dict[Key, float] = {}
        self._waiting_since: dict[Key, float] = {}
        self._answered = {entry.key: entry.uid for entry in history if entry.state == "done"}
        self.unusable = UnusableResults(run)
        self._stale_summaries = True
        self.summaries = Summaries(run, config, self.unusable)
        self.open_steps: frozenset[int] = frozenset(wanted.step for wanted in self._wanted)
        """The steps of evaluations that are still to come, or have no result."""
        self._checkpoints = CheckpointListing(run)
        self._running: set[Key] = set()
        self._results: set[Key] = set()
        self._looked = -FULL_LOOK_S
        self._changed_ns = 0

    def renew(self) -> None:
        """Take up what is wanted now, as a run that follows another trainer has taken a checkpoint."""
        is_following = self._run.followed.exists()
        self._origins = origins_of(self._run) if is_following else {}
        self._wanted = wanted_of(self._run.id, self._config, self._origins if is_following else None)

    def advance(self, training: Training, *, submitting: bool = True) -> bool:
        """Do what is to be done now; True while evaluations are still to come.

        Looks only at what is open; at everything every FULL_LOOK_S, when somebody asked, and before the end.
        """
        is_full = self._changed() != self._changed_ns or time.monotonic() - self._looked >= FULL_LOOK_S
        is_going = self._advance(training, is_full, submitting)
        return is_going or (not is_full and self._advance(training, True, submitting))

    def _changed(self) -> int:
        """When the folder of the evaluations changed; 0 without one."""
        try:
            return self._run.evaluations.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _advance(self, training: Training, is_full: bool, submitting: bool) -> bool:
        """Look once, at everything where `is_full`, and act on it; return whether anything is to come."""
        if is_full:
            self.unusable.look()
            self._take_up_requests()
        evidence = self._observe(training, is_full)
        for action in next_actions(self._wanted, self._entries, evidence, self._engine.jobs):
            match action:
                case Mark():
                    self._mark(action)
                case Pause():
                    entry = self._entries[action.wanted.key]
                    tried = (*entry.tried, action.cause)
                    self._record(entry.having(state="submitted", job=None, reason=action.reason, tried=tried))
                case Hold() if submitting:
                    self._hold(action)
                case Submit() if submitting:
                    self._submit(action)
        if self._stale_summaries:
            self._write_summaries()
            self._stale_summaries = False
        to_come = unfinished(self._wanted, self._entries, evidence)
        lacking = [wanted for wanted in self._wanted if wanted.key not in evidence.results]
        self.open_steps = frozenset(wanted.step for wanted in (*to_come, *lacking))
        return bool(to_come)

    def end_jobs(self, *, here_only: bool = False, as_tries: bool = False) -> None:
        """End the jobs that live, or only those on this machine; the run's next agent takes up the others.

        The questions of jobs that are ended stay open for it; with `as_tries` it takes each for one of their
        tries that failed.
        """
        for entry in list(self._entries.values()):
            job = job_in(self._run, entry.job)
            if job is not None and not entry.is_final and not (here_only and job.slurm is not None):
                job.end()
                if not as_tries:
                    self._record(
                        entry.having(state="submitted", job=None, attempt=len(entry.tried), reason=ENDED)
                    )

    def longest_wait_s(self) -> float:
        """Return how long this agent has observed an evaluation wait in Slurm's queue for room."""
        return max((time.monotonic() - since for since in self._waiting_since.values()), default=0.0)

    def _take_up_requests(self) -> None:
        """Ask anew for an evaluation that somebody wants again, unless its job is still at it.

        The result that is there stands until the job replaces it.
        """
        self._looked = time.monotonic()
        changed_ns = self._changed()
        self._changed_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else -1
        for want in self._wanted:
            asked = self._run.evaluation_request(*want.key)
            if not asked.exists():
                continue
            entry = self._entries.get(want.key)
            origin = self._origins.get(want.step)
            if not self._run.checkpoint(want.step).exists() or (origin is not None and origin.lack()):
                logger.warning("%s of step %d: not done again, its checkpoint is gone", want.task, want.step)
            elif entry is None or entry.is_final:
                self._record(_first_entry(want))
            asked.unlink()

    def _observe(self, training: Training, is_full: bool) -> EvaluationEvidence:
        """Observe what may have changed: what is done stays so, and nobody but this agent starts a job, so
        neither is looked at every time."""
        open_ones = {key for key, entry in self._entries.items() if not entry.is_final}
        watched = {want.key for want in self._wanted} if is_full else open_ones | self._running
        running = self._running = {key for key in watched if self._is_leased(key)}
        alive = running | {key for key in open_ones if self._job_lives(self._entries[key])}
        unlaunched = {key for key in alive - running if self._was_not_launched(self._entries[key])}
        alive -= unlaunched
        self._known_alive = (self._known_alive | alive) - unlaunched
        for key in [key for key in self._held if key in running or key not in alive]:
            self._held.pop(key).release()
        unreadable = self._unreadable(training)
        lacking = {step for step, failure in unreadable.items() if failure is None}
        checkpoints = {checkpoint.step for checkpoint in self._checkpoints()} - lacking
        examined = self._entries.keys() if is_full else open_ones
        answered = {key for key in examined if self._answers(self._entries[key])}
        self._results = (self._results - examined) | answered
        return EvaluationEvidence(
            checkpoints=checkpoints,
            alive=alive,
            running=running,
            results=self._results,
            failures={key: self._failure(self._entries[key]) for key in open_ones - alive},
            training=training,
            hold=hold_of(self._when, training),
            stuck=self._stuck(open_ones & alive - running),
            now=time.time(),
            unreadable={step: failure for step, failure in unreadable.items() if failure is not None},
        )

    def _unreadable(self, training: Training) -> dict[int, JobFailure | None]:
        """Explain which checkpoints of another trainer are not to be read, among those with open evaluations;
        None for one that was written again, as long as the run may take it anew."""
        open_steps = {want.step for want in self._wanted if not self._is_final(want)}
        found: dict[int, JobFailure | None] = {}
        for step in open_steps & self._origins.keys():
            origin = self._origins[step]
            if origin.unusable:
                found[step] = JobFailure("failed", origin.unusable)
            elif lack := origin.lack():
                may_come = training == "going" and not origin.is_removed()
                found[step] = None if may_come else JobFailure("lost", f"{lack} before it was evaluated")
        return found

    def _is_final(self, want: WantedEvaluation) -> bool:
        entry = entry_of(want, self._entries)
        return entry is not None and entry.is_final

    def _is_leased(self, key: Key) -> bool:
        holder = holder_of(self._run.evaluation_lease(*key))
        return holder is not None and holder.is_alive()

    def _job_lives(self, entry: LedgerEntry) -> bool:
        job = job_in(self._run, entry.job)
        return not entry.is_final and job is not None and job.is_alive()

    def _was_not_launched(self, entry: LedgerEntry) -> bool:
        """Whether Slurm holds its job because a node could not start it; the job is cancelled, as a new one
        may start."""
        job = job_in(self._run, entry.job)
        if job is None or job.slurm is None or not job.slurm.failed_to_launch:
            return False
        logger.warning("%s could not be launched; cancelling it", job.slurm)
        job.end()
        return True

    def _answers(self, entry: LedgerEntry) -> bool:
        """Whether the result file parses and, while the question is open, answers it and no earlier one."""
        result = result_of(self._run.evaluation(*entry.key))
        return result is not None and (entry.is_final or result.question == _question(entry))

    def _failure(self, entry: LedgerEntry) -> JobFailure:
        job, result = job_in(self._run, entry.job), self._run.evaluation(*entry.key)
        if job is not None and job.said_goodbye and result.exists():
            found = results.examine_result(result)
            if isinstance(found, str):
                return JobFailure("failed", f"{result.relative_to(self._run.path)}: {found} (log: {job.log})")
        return failure_of(entry, job, entry.key in self._known_alive)

    def _stuck(self, waiting: Collection[Key]) -> dict[Key, str]:
        """Return why Slurm does not start jobs of these, where that has lasted for STUCK_S; note which
        wait."""
        found: dict[Key, str] = {}
        stuck_since, self._stuck_since = self._stuck_since, {}
        waiting_since, self._waiting_since = self._waiting_since, {}
        now = time.monotonic()
        for key in waiting:
            job = job_in(self._run, self._entries[key].job)
            if job is None or job.slurm is None:
                continue
            if words := job.slurm.never_starts:
                self._stuck_since[key] = stuck_since.get(key, now)
                if now - self._stuck_since[key] >= STUCK_S:
                    found[key] = f"Slurm does not start its job: {words}; the job was cancelled"
            elif job.slurm.waiting:
                self._waiting_since[key] = waiting_since.get(key, now)
        return found

    def _mark(self, mark: Mark) -> None:
        entry = self._entry_of(mark.wanted)
        job = job_in(self._run, entry.job)
        if mark.state == "failed" and job is not None and job.slurm is not None and job.is_alive():
            job.end()
        self._record(entry.having(state=mark.state, reason=mark.reason))
        self._stale_summaries |= mark.state != "running"

    def _entry_of(self, want: WantedEvaluation) -> LedgerEntry:
        """The entry about this very question, or a new one."""
        return entry_of(want, self._entries) or _first_entry(want)

    def _hold(self, hold: Hold) -> None:
        """Record once why it is not started; the time that it is held is no time of refusals."""
        entry = self._entries.get(hold.wanted.key)
        held = self._open_entry_of(hold.wanted).having(reason=hold.reason, job=None, refusals=0)
        if entry is None or entry.having(at=held.at, since=held.since) != held:
            self._record(held)

    def _open_entry_of(self, want: WantedEvaluation) -> LedgerEntry:
        entry = self._entry_of(want)
        return _first_entry(want) if entry.is_final else entry.having(state="submitted")

    def _take_gpu(self) -> HeldGpus | GpusInUse:
        """A GPU for a job on this machine that no training holds, or with `beside` the training's own; none
        where there are none."""
        names = usable_gpus()
        found = take_gpu_to_evaluate(names, self._run.name) if names else HeldGpus((), ())
        if isinstance(found, GpusInUse) and self._when == "beside":
            return HeldGpus((visible_gpus() or names)[:1], ())
        return found

    def _submit(self, action: Submit) -> None:
        """Record the intent, start the job, record which it is: a crash between leaves a trace."""
        want, engine = action.wanted, self._engines[action.wanted.task]
        if engine.kind == "slurm" and silence_s() > 0:
            return self._hold(Hold(want, NO_ANSWER))
        gpus = HeldGpus((), ()) if engine.kind == "slurm" else self._take_gpu()
        if isinstance(gpus, GpusInUse):
            return self._hold(Hold(want, f"{gpus} (evaluate.when: {self._when})"))
        entry = self._open_entry_of(want)
        entry = entry.having(state="submitted", job=None, attempt=action.attempt, reason="")
        self._record(entry)
        arguments = [str(self._run.path), str(want.step), want.task, _question(entry)]
        logs, name = self._run.logs(self._number), f"{want.task}_{want.step}_{action.attempt}"
        try:
            if engine.kind == "slurm":
                job = jobs.submit_to_slurm(JOB, arguments, logs, engine, key="engine.evaluate", name=name)
            else:
                count, on = len(gpus.names), gpus.names
                job = jobs.submit(
                    JOB, arguments, logs, time_limit_s=engine.time, gpus=count, on=on, name=name, nice=NICE
                )
        except TarmacError as error:
            gpus.release()
            logger.warning("%s of step %d: %s", want.task, want.step, error)
            self._record(entry.having_been_refused(str(error)))
        else:
            self._held[want.key] = gpus
            self._record(entry.having(job=job.to_json(self._run.path), refusals=0))

    def _record(self, entry: LedgerEntry) -> None:
        entry = entry.having(at=time.time())
        ledger.append(self._run.ledger, entry)
        self._entries[entry.key] = entry
        if entry.state == "done":
            self._answered[entry.key] = entry.uid

    def _write_summaries(self) -> None:
        """Write that of every step whose tasks are all final.

        A task that was asked for again in vain keeps the values it had.
        """
        for step in sorted({want.step for want in self._wanted}):
            wanted = [want for want in self._wanted if want.step == step]
            if all(map(self._is_settled, wanted)):
                answered = [want for want in wanted if self._answered.get(want.key) == want.uid]
                self.summaries.write(step, answered)

    def _is_settled(self, want: WantedEvaluation) -> bool:
        """Whether it is final, with its result there if it is done: a deleted one is made again."""
        is_done = self._is_final(want) and self._entries[want.key].state == "done"
        return self._is_final(want) if not is_done else self._run.evaluation(*want.key).exists()


def _first_entry(want: WantedEvaluation) -> LedgerEntry:
    now = time.time()
    return LedgerEntry(want.uid, want.step, want.task, "submitted", None, 0, at=now, since=now)


def _question(entry: LedgerEntry) -> str:
    """The text that a result repeats: clocks may differ, so they do not show whether it is older than
    that."""
    return f"{entry.uid[:12]}-{entry.since}"


def failure_of(entry: LedgerEntry, job: Job | None, was_alive: bool) -> JobFailure:
    """Return how a dead job ended: it failed with an error, or it is gone without one.

    A job that `was_alive` for this agent or its predecessor and that Slurm calls cancelled was cancelled by a
    person.
    """
    if job is None:
        return JobFailure("failed", entry.reason or "its job was not submitted")
    lines = job.log.read_text(errors="replace").splitlines() if job.log.exists() else []
    last = next((line for line in reversed(lines) if line.strip() and not SUBMITIT.match(line)), "")
    last = OURS.sub("", last)
    if job.said_goodbye:
        return JobFailure("failed", f"{last} (log: {job.log})")
    how = "" if job.slurm is None else job.slurm.ending
    if how == CANCELLED and was_alive:
        return JobFailure("failed", f"{job.slurm} was cancelled in Slurm, so it is not tried again", True)
    how = f" ({how})" if how else ""
    words = f"job {job.id} ended without a result{how}{f': {last}' if last else ''} (log: {job.log})"
    return JobFailure("lost", words)
