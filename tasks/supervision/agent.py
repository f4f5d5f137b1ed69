"""The agent beside a run: starts and watches the training, has its checkpoints evaluated, judges the end.

Everything it knows is on disk, so it may be killed at any moment and another one goes on: it ends a training
that the first left alive, takes up the evaluation jobs that live, and does only what is missing. It holds the
run's lease as long as it lives, and lives until the run's evaluations are final. It is light: no torch, no
Prefect, no wandb.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from tasks.core import config as configs
from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import append_line, disk_full_as_error, link_atomic, write_json
from tasks.core.findings import Finding
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.core.schema import Train
from tasks.runs import ledger, metrics, phases, provenance, record
from tasks.runs.checkpoints import (
    CheckpointMeta,
    list_checkpoints,
    lowest_val_loss,
    newest_sound,
    read_meta,
)
from tasks.runs.folder import RunFolder
from tasks.runs.record import UNDER_WAY, Attempt, RunRecord
from tasks.supervision import gathering, trainer
from tasks.supervision.evaluation_jobs import Evaluations
from tasks.supervision.evaluations import Training
from tasks.supervision.progress import last_step, loss_at
from tasks.supervision.success import Evidence, exit_of, judge

POLL_S = 0.25
LEASE_WAIT_S = 30.0
STOP_GRACE_S = 45.0
"""A training that has not obeyed `stop` by then is ended; below submitit's warning before the time limit."""
LOG_TAIL = 40
logger = logging.getLogger(__name__)


class Agent:
    """One attempt at a run, by one process that holds the run's lease."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._record = record.load(run)
        self._config = configs.reload(run.config)
        self._number = len(self._record.attempts) + 1
        self._gatherer = gathering.Keeper(run, self._config.track.mode != "disabled")
        self._asked_to_stop: str | None = None
        self._ranked: list[tuple[int, CheckpointMeta | None]] = []
        """The newest checkpoint when `best` was last chosen; its validation loss comes after it."""

    @property
    def _train(self) -> Train:
        if self._config.train is None:
            raise UsageError(f"{self._run.config}: train: is required and missing")
        return self._config.train

    def work(self) -> None:
        """The whole attempt. DataError when the disk is full, which the record says if there is room to."""
        for identity in trainer.end_survivors(self._run):
            logger.warning("ended the training process %d that a dead agent left behind", identity.pid)
        self._begin()
        try:
            with disk_full_as_error(self._run.path):
                self._attend()
        except TarmacError as error:
            self._give_up(str(error))
            raise
        self._end()

    def _attend(self) -> None:
        """Train if need be, and have everything evaluated."""
        evaluations = Evaluations(self._run, self._config, self._number)
        training: Training = "complete" if self._record.state == "succeeded" else "broken"
        if self._record.goal == "train" and training != "complete":
            training = self._train_to_the_end(evaluations)
        self._point_best()
        while self._stop_reason() is None and evaluations.advance(training):
            self._gatherer.keep()
            time.sleep(POLL_S)

    def _give_up(self, reason: str) -> None:
        """Close the record: a training that could not be judged has failed."""
        trains = self._record.state in UNDER_WAY
        outcome = self._record.attempts[-1].outcome or ("failed" if trains else "evaluated")
        changes = {"state": "failed", "reason": reason} if trains else {}
        self._save(self._record.having_last(ended=time.time(), outcome=outcome).having(job=None, **changes))

    def ask_to_stop(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: SIGTERM, SIGINT or the time limit (SIGUSR2) become the `stop` sentinel."""
        self._asked_to_stop = (
            "the job's time limit (engine.train.time) came; start the run again to go on"
            if signum == signal.SIGUSR2
            else f"the agent was sent {signal.Signals(signum).name}"
        )

    def _begin(self) -> None:
        """Close what earlier attempts left open and enter this one."""
        now = time.time()
        closed = [
            old
            if old.ended is not None
            else old.model_copy(update={"ended": self._last_sign_of(old), "outcome": old.outcome or "lost"})
            for old in self._record.attempts
        ]
        mine = Identity.mine()
        attempt = Attempt(
            started=now,
            host=mine.host,
            boot_id=mine.boot_id,
            pid=mine.pid,
            pid_started=mine.started,
            pid_ticks=mine.ticks,
            job=os.environ.get("SUBMITIT_LOCAL_JOB_ID"),
            code_digest=provenance.code_digest(),
            versions=provenance.versions(),
        )
        trains = self._record.goal == "train" and self._record.state != "succeeded"
        changes = {"state": "running", "reason": ""} if trains else {}
        if not trains and self._record.state in UNDER_WAY:
            changes = {"state": "failed", "reason": "its agent was killed; start the run again: it resumes"}
        self._run.logs(self._number).mkdir(parents=True, exist_ok=True)
        self._save(self._record.having(attempts=[*closed, attempt], **changes))

    def _last_sign_of(self, attempt: Attempt) -> float:
        """When the training or the evaluations of an attempt whose agent was killed were last heard of."""
        phase = phases.read(self._run.phase())
        signs = [entry.at for entry in ledger.read(self._run.ledger)]
        return max([attempt.started, *signs, *([phase.at] if phase is not None else [])])

    def _train_to_the_end(self, evaluations: Evaluations) -> Training:
        """Run the training process beside its evaluations; judge it when it has ended."""
        started = time.time()
        _, earlier_bytes = metrics.read(self._run.metrics)
        rank = trainer.start(self._run, self._number, self._train)
        logger.info("training process %d started", rank.identity.pid)
        deadline: float | None = None
        while (code := rank.wait(POLL_S)) is None:
            reason = self._stop_reason()
            if reason is not None and deadline is None:
                logger.warning("stopping: %s", reason)
                deadline = time.monotonic() + STOP_GRACE_S
            if deadline is not None and time.monotonic() > deadline:
                rank.end()
            self._point_best()
            evaluations.advance("going", submitting=reason is None)
            self._gatherer.keep()
        return self._judge(code, started, last_step(self._run, rank.identity.pid, earlier_bytes))

    def _stop_reason(self) -> str | None:
        """The text of the `stop` sentinel, which a signal to this process also writes; None without one."""
        if self._asked_to_stop is not None and not self._run.stop.exists():
            self._run.stop.write_text(self._asked_to_stop + "\n", encoding="utf-8")
        try:
            return self._run.stop.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None

    def _judge(self, code: int, started: float, said: int) -> Training:
        """Write down how the training, which came to step `said`, ended: findings, `exit.json`, state."""
        newest = newest_sound(self._run)
        step = max(said, 0 if newest is None else newest.step)
        seen = Evidence(
            exit_code=code,
            step=step,
            last_step=int(self._record.identity["steps"]),
            loss=loss_at(self._run, step),
            checkpoint=None if newest is None else newest.step,
            stop_reason=self._stop_reason(),
            log_tail=_tail(self._run.rank_log(self._number)),
        )
        verdict = judge(seen)
        logger.info("training ended: %s %s", verdict.state, verdict.reason)
        self._write_findings(verdict.findings)
        write_json(self._run.exit(self._number), exit_of(seen, verdict, started, time.time()))
        self._save(
            self._record.having_last(outcome=verdict.state).having(state=verdict.state, reason=verdict.reason)
        )
        return "complete" if verdict.state == "succeeded" else "broken"

    def _end(self) -> None:
        """Close this attempt; one that trained nothing has its `exit.json` only now."""
        now = time.time()
        attempt = self._record.attempts[-1]
        if attempt.outcome is None:
            write_json(
                self._run.exit(self._number),
                {"outcome": "evaluated", "reason": "", "started": attempt.started, "ended": now},
            )
        outcome = attempt.outcome or "evaluated"
        self._save(self._record.having_last(ended=now, outcome=outcome).having(job=None))

    def _write_findings(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            line = {**asdict(finding), "attempt": self._number, "t": time.time()}
            append_line(self._run.findings, json.dumps(line, ensure_ascii=False))

    def _point_best(self) -> None:
        """`checkpoints/best` is the checkpoint of the lowest validation loss."""
        newest = [(one.step, read_meta(one)) for one in list_checkpoints(self._run)[-1:]]
        if newest == self._ranked:
            return
        self._ranked = newest
        found, best = lowest_val_loss(self._run), self._run.best
        if found is None or (best.is_dir() and not best.is_symlink()):  # what a copy made of the link
            return
        if not (best.is_symlink() and best.readlink() == Path(found.path.name)):
            link_atomic(best, found.path.name)

    def _save(self, changed: RunRecord) -> None:
        self._record = changed
        record.save(self._run, changed)


def _tail(log: Path) -> list[str]:
    """The log's last lines; empty without a log."""
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL:] if log.exists() else []


def main(run_folder: str) -> None:
    """The agent's job. Held when another agent has the run."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    run = RunFolder(Path(run_folder).resolve())
    lease = Lease(run.lease)
    lease.wait(LEASE_WAIT_S, poll_s=0.1)
    try:
        agent = Agent(run)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(signum, agent.ask_to_stop)
        agent.work()
    finally:
        lease.release()
