"""What the agent records of its attempt: the run's state and reason, `exit.json`, findings."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tasks.core.engines.slurm_queue import own_job
from tasks.core.files import append_line, read_lines, write_json
from tasks.core.findings import Finding, finding_of
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.runs import ledger, lives, phases, provenance, record
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import CONTROLLER, Job
from tasks.runs.record import ASIDE, UNDER_WAY, Attempt, RunRecord, State
from tasks.runs.run_findings import Finder, read_findings


class AttemptJournal:
    """One attempt in the run's files.

    Only the holder of the run's lease may write: each method raises TarmacError where that is somebody else.
    """

    def __init__(self, run: RunFolder, lease: Lease) -> None:
        """`lease` is the run's, and held."""
        self._run = run
        self._lease = lease
        found = record.load_record(run)
        self.record = found.having(attempts=[one for one in found.attempts if one.outcome != ASIDE])
        self.number = len(self.record.attempts) + 1
        self._copied: int | None = None
        """How many findings of the training itself are in `findings.jsonl`; None before that is known."""

    def begin(self) -> None:
        """Close what earlier attempts left open and enter this one."""
        closed = [
            old if old.ended is not None else self._closed(number, old)
            for number, old in enumerate(self.record.attempts, 1)
        ]
        mine, job = Identity.mine(), own_job()
        attempt = Attempt(
            started=time.time(),
            asked=self.record.asked,
            host=mine.host,
            boot_id=mine.boot_id,
            pid=mine.pid,
            pid_started=mine.started,
            pid_ticks=mine.ticks,
            job=os.environ.get(CONTROLLER) if job is None else job.id,
            slurm=job,
            code_digest=provenance.code_digest(),
            versions=provenance.versions(),
        )
        changes: dict[str, Any] = {"asked": None}
        if self.is_to_train:
            changes |= {"state": "running", "reason": ""}
        elif self.record.state in UNDER_WAY:
            changes |= {"state": "failed", "reason": "its agent was killed; start the run again: it resumes"}
        self._run.logs(self.number).mkdir(parents=True, exist_ok=True)
        self._save(self.record.having(attempts=[*closed, attempt], **changes))

    @property
    def is_trained(self) -> bool:
        """Whether the training has come to its end, in this attempt or an earlier one."""
        return self.record.state == "succeeded"

    @property
    def is_to_train(self) -> bool:
        """Whether the attempt is asked to train and there is something left to train."""
        return self.record.goal == "train" and not self.is_trained and not self.record.stopped_early

    def set_state(self, state: State, reason: str = "") -> None:
        """Record the run's state from now on, and why."""
        if (self.record.state, self.record.reason) != (state, reason):
            self._save(self.record.having(state=state, reason=reason))

    def add_findings(self, findings: Sequence[Finding], by: Finder = "agent") -> None:
        """Append findings to `findings.jsonl`."""
        self._lease.require()
        for finding in findings:
            line = {**asdict(finding), "by": by, "attempt": self.number, "t": time.time()}
            append_line(self._run.findings, json.dumps(line, ensure_ascii=False))

    def copy_sanity(self) -> None:
        """Append to `findings.jsonl` what the training has found wrong with itself since the last call."""
        if not self._run.sanity.exists():
            return
        if self._copied is None:
            self._copied = sum(line.get("by") == "training" for line in read_findings(self._run))
        for line in read_lines(self._run.sanity)[0][self._copied :]:
            self.add_findings([finding_of(line)], "training")
            self._copied += 1

    def training_ended(
        self, content: Mapping[str, Any], state: State, signal: str | None, queued_again: str | None
    ) -> None:
        """Record the verdict on the training: the content of `exit.json`, and `state`, its outcome.

        `signal` is the one that it obeyed when it ended, if any; `queued_again` is why its job comes again.
        """
        self._write_exit(content)
        by_rule = (content.get("stop") or {}).get("who") == "rule" and state == "cancelled"
        judged = self.record.having_last(outcome=state, signal=signal).having(stopped_early=by_rule)
        if queued_again is None:
            self._save(judged.having(state=state, reason=content["reason"]))
        else:
            self._save(judged.having(state="queued", reason=queued_again, asked=time.time()))

    def stopped_before_training(self, reason: str, signal: str | None, queued_again: str | None) -> None:
        """Record that the attempt was stopped while it waited or measured."""
        started = self.record.attempts[-1].started
        content = {"outcome": "cancelled", "reason": reason, "started": started, "ended": time.time()}
        self.training_ended(content, "cancelled", signal, queued_again)

    def evaluations_stopped(self, reason: str) -> None:
        """Record that the attempt leaves before its evaluations are final."""
        self._save(self.record.having_last(stopped=reason))

    def prepare_succession(self) -> None:
        """Have whoever follows only evaluate; saved before it is submitted, as it may start at once."""
        self._save(self.record.having(goal="evaluate"))

    def give_up(self, reason: str) -> None:
        """Close the record after an error: a training that could not be judged has failed."""
        trains = self.record.state in UNDER_WAY
        outcome = self.record.attempts[-1].outcome or ("failed" if trains else "evaluated")
        changes = {"state": "failed", "reason": reason} if trains else {}
        self._save(self.record.having_last(ended=time.time(), outcome=outcome).having(job=None, **changes))

    def end(self, *, keeps_job: bool, successor: Job | None = None) -> None:
        """Close this attempt; one that trained nothing gets its `exit.json` only now.

        The run `keeps_job` where its Slurm job comes again, and has the job of a `successor` from here on.
        """
        now = time.time()
        attempt = self.record.attempts[-1]
        if successor is not None:
            ended = self.record.having_last(ended=now, outcome=attempt.outcome or ASIDE)
            return self._save(ended.having(job=successor.to_json(self._run.path)))
        if attempt.outcome is None:
            self._write_exit({"outcome": "evaluated", "reason": "", "started": attempt.started, "ended": now})
        job = self.record.job if keeps_job else None
        outcome = attempt.outcome or "evaluated"
        self._save(self.record.having_last(ended=now, outcome=outcome).having(job=job))

    def _closed(self, number: int, attempt: Attempt) -> Attempt:
        """Return the attempt of an agent that was killed, which ended with its last sign of life."""
        ended = self._last_sign_of(attempt)
        lives.end_life(self._run, number, ended, "its agent was killed", {})
        return attempt.model_copy(update={"ended": ended, "outcome": attempt.outcome or "lost"})

    def _last_sign_of(self, attempt: Attempt) -> float:
        """Return when the training or the evaluations of a killed agent's attempt last wrote something."""
        phase = phases.read_phase(self._run.phase())
        signs = [entry.at for entry in ledger.read_ledger(self._run.ledger)]
        return max([attempt.started, *signs, *([phase.at] if phase is not None else [])])

    def _write_exit(self, content: Mapping[str, Any]) -> None:
        self._lease.require()
        write_json(self._run.exit(self.number), content)

    def _save(self, changed: RunRecord) -> None:
        self._lease.require()
        self.record = changed
        record.save_record(self._run, changed)
