"""A run's evaluations as its agent drives them: looks, asks `evaluations.next_actions`, does what it says.

Also the job's own side, which takes a lease on the result it will write: however many jobs a crash has left
behind for one evaluation, one of them writes.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Literal

from tasks.core.errors import TarmacError
from tasks.core.files import read_json, write_atomic, write_json
from tasks.core.lease import Lease, holder_of
from tasks.core.schema import Config
from tasks.evaluation import results
from tasks.runs import jobs, ledger
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.runs.job import Job
from tasks.runs.ledger import Entry, Key
from tasks.supervision.evaluations import (
    Mark,
    Seen,
    Submit,
    Training,
    Wanted,
    next_actions,
    reopened,
    unfinished,
    wanted_of,
)

EVALUATE = "tasks.evaluation.job:evaluate_checkpoint"
JOB = "tasks.supervision.evaluation_jobs:run_job"


def request(run: RunFolder, step: int, task: str) -> None:
    """Ask for an evaluation to be done again; the run's agent, this or the next one, takes it up."""
    write_atomic(run.evaluation_request(step, task), "")


def has_requests(run: RunFolder) -> bool:
    return any(run.evaluations.glob("step_*/.*.again"))


class Evaluations:
    """The evaluations of one run, in the hands of its agent."""

    def __init__(self, run: RunFolder, config: Config, number: int) -> None:
        """`number` is the attempt's, under which new jobs leave their logs."""
        self._run = run
        self._engine = config.engine.evaluate
        self._number = number
        self._wanted = wanted_of(run.id, config)
        self._entries = reopened(ledger.fold(ledger.read(run.ledger)))
        self._parsed: dict[Path, tuple[int, dict[str, float] | None]] = {}
        self._stale_summaries = True

    def advance(self, training: Training, *, submitting: bool = True) -> bool:
        """Do what is to be done now; True while evaluations are still to come."""
        self._take_up_requests()
        seen = self._look(training)
        for action in next_actions(self._wanted, self._entries, seen, self._engine.jobs):
            if isinstance(action, Mark):
                self._mark(action)
            elif submitting:
                self._submit(action)
        if self._stale_summaries:
            self._write_summaries()
            self._stale_summaries = False
        return bool(unfinished(self._wanted, self._entries, seen))

    def _take_up_requests(self) -> None:
        """Forget what came of an evaluation that somebody wants again, unless its job is still at it."""
        for want in self._wanted:
            asked = self._run.evaluation_request(*want.key)
            if not asked.exists():
                continue
            entry = self._entries.get(want.key)
            if entry is None or entry.is_final:
                self._entries.pop(want.key, None)
                self._run.evaluation(*want.key).unlink(missing_ok=True)
            asked.unlink()

    def _look(self, training: Training) -> Seen:
        running = {want.key for want in self._wanted if self._is_leased(want.key)}
        alive = running | {entry.key for entry in self._entries.values() if self._job_lives(entry)}
        checkpoints = {checkpoint.step for checkpoint in list_checkpoints(self._run)}
        return Seen(
            checkpoints=checkpoints,
            alive=alive,
            running=running,
            results={key for key, entry in self._entries.items() if self._answers(entry)},
            failures={
                key: _last_words(entry)
                for key, entry in self._entries.items()
                if not entry.is_final and key not in alive
            },
            training=training,
        )

    def _is_leased(self, key: Key) -> bool:
        holder = holder_of(self._run.evaluation_lease(*key))
        return holder is not None and holder.is_alive()

    def _job_lives(self, entry: Entry) -> bool:
        return not entry.is_final and entry.job is not None and Job.from_json(entry.job).is_alive()

    def _answers(self, entry: Entry) -> bool:
        """Whether the result file parses and is not older than the question."""
        path = self._run.evaluation(*entry.key)
        try:
            modified = path.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        return modified / 1e9 >= entry.since and self._metrics(path, modified) is not None

    def _metrics(self, path: Path, modified: int) -> dict[str, float] | None:
        """The metrics in a result file, parsed once a version of it; None when it does not parse."""
        if self._parsed.get(path, (None, None))[0] != modified:
            result = results.read(path)
            self._parsed[path] = (modified, None if result is None else dict(result.metrics))
        return self._parsed[path][1]

    def _mark(self, mark: Mark) -> None:
        entry = self._entries.get(mark.wanted.key)
        if entry is None or entry.uid != mark.wanted.uid:
            entry = _first_entry(mark.wanted)
        self._record(entry.having(state=mark.state, reason=mark.reason))
        self._stale_summaries |= mark.state != "running"

    def _submit(self, action: Submit) -> None:
        """Write down the intent, start the job, write down which it is: a crash between leaves a trace."""
        want = action.wanted
        before = self._entries.get(want.key)
        known = before is not None and before.uid == want.uid and not before.is_final
        entry = before if known and before is not None else _first_entry(want)
        entry = entry.having(state="submitted", job=None, attempt=action.attempt, reason="")
        self._record(entry)
        try:
            job = jobs.submit(
                JOB,
                [str(self._run.path), str(want.step), want.task],
                self._run.logs(self._number),
                time_limit_s=self._engine.time,
                gpus=min(jobs.gpus_here(), 1),
                name=f"{want.task}_{want.step}_{action.attempt}",
            )
        except TarmacError as error:
            self._record(entry.having(reason=str(error)))
        else:
            self._record(entry.having(job=job.to_json()))

    def _record(self, entry: Entry) -> None:
        entry = entry.having(at=time.time())
        ledger.append(self._run.ledger, entry)
        self._entries[entry.key] = entry

    def _write_summaries(self) -> None:
        """`eval_results/step_N.json` of every step whose tasks are all final."""
        for step in sorted({want.step for want in self._wanted}):
            entries = [self._entries.get(want.key) for want in self._wanted if want.step == step]
            if not all(entry is not None and self._is_settled(entry) for entry in entries):
                continue
            values: dict[str, float] = {}
            for entry in entries:
                if entry is not None and entry.state == "done":
                    path = self._run.evaluation(*entry.key)
                    metrics = self._metrics(path, path.stat().st_mtime_ns) or {}
                    values.update({f"{entry.task}_{name}": value for name, value in metrics.items()})
            summary = {"global_step": step, "results": values}
            path = self._run.eval_result(step)
            if not path.exists() or read_json(path) != summary:
                write_json(path, summary)

    def _is_settled(self, entry: Entry) -> bool:
        """Final, with its result there if it is done: a deleted one is made again."""
        return entry.is_final and (entry.state != "done" or self._run.evaluation(*entry.key).exists())


def _first_entry(want: Wanted) -> Entry:
    now = time.time()
    return Entry(want.uid, want.step, want.task, "submitted", None, 0, at=now, since=now)


def _last_words(entry: Entry) -> tuple[Literal["failed", "lost"], str]:
    """How a dead job ended: it failed with an error, or it is gone without one."""
    if entry.job is None:
        return "failed", entry.reason or "its job was not submitted"
    job = Job.from_json(entry.job)
    lines = job.log.read_text(errors="replace").splitlines() if job.log.exists() else []
    last = next((line for line in reversed(lines) if line.strip() and not line.startswith("submitit ")), "")
    if job.said_goodbye:
        return "failed", f"{last} (log: {job.log})"
    return "lost", f"job {job.id} ended without a result{f': {last}' if last else ''} (log: {job.log})"


def run_job(run_folder: str, step: str, task: str) -> None:
    """The job: evaluate one checkpoint, unless another job has just done so."""
    run = RunFolder(Path(run_folder))
    began = time.time()
    lease = Lease(run.evaluation_lease(int(step), task))
    lease.wait()
    try:
        result = run.evaluation(int(step), task)
        if result.exists() and result.stat().st_mtime >= began and results.read(result) is not None:
            return
        module, _, function = EVALUATE.partition(":")
        getattr(importlib.import_module(module), function)(run.path, int(step), task)
    finally:
        lease.release()
