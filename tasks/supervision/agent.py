"""The agent beside a run: tunes its loader, starts and watches the training, has its checkpoints evaluated,
judges the end.

Everything it knows is on disk, so it may be killed at any moment and another one goes on: it ends a training
that the first left alive, takes up the evaluation jobs that live, and does only what is missing. It holds the
run's lease as long as it lives, and lives until the run's evaluations are final or, under Slurm, a successor
keeps them. When somebody else has taken the lease over, as may happen to an agent that was suspended, it
kills its training and ends at once without writing. It is light: no torch, no Prefect, no wandb.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tasks.core import config as configs
from tasks.core.errors import TarmacError, Withdrawn
from tasks.core.files import disk_full_as_error
from tasks.core.lock import Lease, holder_of
from tasks.core.schema import Config, Train
from tasks.core.screen import Progress
from tasks.evaluation import best
from tasks.models import hub
from tasks.runs import gpus, stop
from tasks.runs.checkpoints import newest_sound
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import Job
from tasks.supervision.allocation import END, WARNING, Allocation, Succession, cancel_leftovers
from tasks.supervision.attempt import tuning
from tasks.supervision.attempt.attendance import Attendance, Duties
from tasks.supervision.attempt.chores import Chores
from tasks.supervision.attempt.journal import AttemptJournal
from tasks.supervision.attempt.pruning import Pruner
from tasks.supervision.attempt.restarts import Restart, Restarts
from tasks.supervision.evaluating.evaluation_jobs import Evaluations
from tasks.supervision.evaluating.evaluations import Training
from tasks.supervision.evaluating.following import Follower, follower_of
from tasks.supervision.evaluating.forgetfulness import Forgetfulness
from tasks.supervision.evaluating.stop_rules import StopRules
from tasks.supervision.ranks import trainer
from tasks.supervision.ranks.success import RunVerdict, TrainingEnd, exit_of, judge_end
from tasks.supervision.status import look_at_run, pause_after
from tasks.supervision.tracking import gathering

POLL_S = 0.25
ON_PROGRESS_S = 2.0
"""The pause between two progress lines of the measurements before a training."""
logger = logging.getLogger(__name__)
Measuring = Callable[[RunFolder, Config, Callable[[], None], Progress], None]


class Agent:
    """One attempt at a run, by one process that holds the run's lease."""

    def __init__(
        self, run: RunFolder, lease: Lease, allocation: Allocation, aside_s: int | None = None
    ) -> None:
        """`lease` is the run's, and held; `aside_s` as `Succession` takes it."""
        self._run = run
        self._lease = lease
        self._allocation = allocation
        self._began = time.monotonic()
        self._life: Attendance | None = None
        self._journal = AttemptJournal(run, lease)
        self._config = configs.reload(run.config)
        self._gatherer = gathering.GathererKeeper(run, self._config.track.mode != "disabled")
        self._best = best.Pointer(run, self._config)
        self._pruner = Pruner(run, self._config)
        self._forgetfulness = Forgetfulness(run, self._config)
        self._rules = StopRules(run, self._config)
        self._follower = follower_of(run, self._config)
        self._chores = Chores()
        self._succession = Succession(run, self._config, aside_s)
        self._successor: Job | None = None
        self._asked_to_stop: str | None = None
        self._signal: str | None = None
        self._obeyed: str | None = None
        """The signal that has become the sentinel; None where somebody else wrote that."""

    def work(self) -> None:
        """Do the whole attempt. DataError when the disk is full, which the record names if there is room."""
        for identity in trainer.end_survivors(self._run):
            logger.warning("ended the training process %d that a dead agent left behind", identity.pid)
        if (order := stop.read_stop_order(self._run)) is not None and order.who in (
            "signal",
            "agent",
            "rule",
        ):
            self._run.stop.unlink(missing_ok=True)  # it was to the agent before; a rule gives it anew
        self._journal.begin()
        try:
            with disk_full_as_error(self._run.path):
                self._attend()
        except Exception as error:
            if self._life is not None:
                self._life.kill()
            self._journal.give_up(
                str(error)
                if isinstance(error, TarmacError)
                else f"its agent failed ({type(error).__name__}: {error}); start the run again: it resumes"
            )
            raise
        self._journal.end(keeps_job=self._allocation.returns != "no", successor=self._successor)
        if self._successor is None and self._allocation.returns == "no":
            self._chores.do("the queue", lambda: cancel_leftovers(self._run), None)

    def _attend(self) -> None:
        """Train if need be, and have everything evaluated."""
        if hub.go_offline(self._config, self._run.path.parent):
            logger.info("all that the model needs of the hub was fetched: %s=1", hub.OFFLINE)
        evaluations = Evaluations(
            self._run, self._config, self._journal.number, is_continued=self._succession.is_successor
        )
        training: Training = "complete" if self._journal.is_trained else "broken"
        if self._journal.is_to_train and self._follower is not None:
            training = self._follow(self._follower, evaluations)
        elif self._journal.is_to_train:
            training = self._train_with_gpus(evaluations) if self._is_done(tuning.prepare) else "broken"
        if self._allocation.returns != "no" and self._stop_reason() is None:  # as after a node's loss
            return evaluations.end_jobs(here_only=True)  # the job takes them up when it comes again
        while (reason := self._stop_reason()) is None and self._keep(
            evaluations, training, submitting=not self._is_left_soon(evaluations)
        ):
            if self._chores.do("the succession", lambda: self._hands_over(evaluations), False):
                return self._chores.do("the gatherer", self._gatherer.end, None)
            time.sleep(self._pause_s())
        self._best.follow(evaluations.summaries.written)
        self._chores.do("train.keep", lambda: self._pruner.prune(evaluations.open_steps), None)
        if reason is not None:
            self._leave(evaluations, training, reason)

    def _follow(self, follower: Follower, evaluations: Evaluations) -> Training:
        """Have the checkpoints of another trainer evaluated as they appear, until the last has."""
        began = time.time()
        while (reason := self._stop_reason()) is None:
            if self._chores.do("the followed folder", follower.look, False):
                evaluations.renew()
            if follower.is_over:
                content = {"outcome": "succeeded", "reason": "", "started": began, "ended": time.time()}
                self._journal.training_ended(content, "succeeded", None, None)
                return "complete"
            self._journal.set_state("running", follower.words)
            self._keep(evaluations, "going")
            time.sleep(self._pause_s())
        self._stopped_before_training(reason, came_further=True)  # as what follows is yet to come
        return "broken"

    def _keep(self, evaluations: Evaluations, training: Training, *, submitting: bool = True) -> bool:
        """Look after the evaluations and what follows from them; True while some are still to come."""
        self._chores.trains = training == "going"
        is_to_come = self._chores.do(
            "the evaluations", lambda: evaluations.advance(training, submitting=submitting), True
        )
        self._chores.do("checkpoints/best", lambda: self._best.follow(evaluations.summaries.written), None)
        self._chores.do("train.keep", lambda: self._pruner.prune(evaluations.open_steps), None)
        self._chores.do("the gatherer", self._gatherer.keep, None)
        self._chores.do(
            "findings.jsonl", lambda: self._journal.add_findings(evaluations.unusable.take()), None
        )
        self._chores.do("what was forgotten", lambda: self._record_forgotten(evaluations), None)
        self._chores.do("evaluate.stop_when", lambda: self._heed_rules(evaluations, training), None)
        return is_to_come

    def _heed_rules(self, evaluations: Evaluations, training: Training) -> None:
        """Record the rules of `evaluate.stop_when` that are met, and stop the training where one asks for
        it."""
        trains = training == "going"
        for rule, found in self._rules.look(evaluations.summaries.written, trains=trains):
            if rule.then == "stop" and trains:  # first, as a rule that is recorded counts as heeded
                self._lease.require()
                stop.order_stop(self._run, "rule", f"evaluate.stop_when: {found.evidence['what']}")
            self._journal.add_findings([found], "scores")
            logger.warning("%s", "\n".join(found.lines()))

    def _record_forgotten(self, evaluations: Evaluations) -> None:
        if found := self._forgetfulness.look(evaluations.summaries.written):
            self._journal.add_findings(found, "scores")

    def _is_left_soon(self, evaluations: Evaluations) -> bool:
        """Whether evaluations that start now in this job would end with it, as a successor is due."""
        runs_here = self._config.engine.evaluate.kind != "slurm"
        return runs_here and self._succession.is_due(evaluations.longest_wait_s())

    def _hands_over(self, evaluations: Evaluations) -> bool:
        """Whether a successor keeps the evaluations from here on, which is submitted where that is due."""
        if not self._succession.is_due(evaluations.longest_wait_s()):
            return False
        self._journal.prepare_succession()
        self._successor = self._succession.submit(self._journal.number)
        if self._successor is None:
            held = f"its job is held for its evaluations: {self._succession.refusal}"
            self._journal.set_state(self._journal.record.state, self._journal.record.reason or held)
            return False
        # One that the job's time cuts short is a try, or there might be no end.
        evaluations.end_jobs(here_only=True, as_tries=self._succession.is_time_over)
        logger.info("handing the evaluations over to %s", self._successor.slurm)
        return True

    def _pause_s(self) -> float:
        return pause_after(time.monotonic() - self._began, POLL_S)

    def _leave(self, evaluations: Evaluations, training: Training, reason: str) -> None:
        """End the evaluations, because whoever stops a run wants nothing of it to go on."""
        evaluations.end_jobs(here_only=self._is_ended_by_slurm)
        if training == "complete" or self._journal.record.stopped_early:
            status = look_at_run(self._run)
            if status.evaluations_done < len(status.evaluations):
                self._journal.evaluations_stopped(reason)
                self._allocation.why_again(self._obeyed)

    @property
    def _is_ended_by_slurm(self) -> bool:
        """Whether what stops the run is its job's end alone: a time limit, a preemption, or scancel."""
        return self._obeyed == WARNING or (self._obeyed == END and self._allocation.job is not None)

    def leave_at_once(self) -> NoReturn:
        """End the training and this process: every file of the run belongs to the lease's new holder."""
        logger.error("the run was taken over by %s; leaving it", holder_of(self._run.lease) or "nobody")
        if self._life is not None:
            self._life.kill()
        os._exit(1)

    def ask_to_stop(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: SIGTERM, SIGINT or the time limit (SIGUSR2) become the `stop` sentinel."""
        if signum == signal.SIGUSR2 and self._succession.is_successor:
            self._succession.is_time_over = True
            return
        if self._signal is not None:  # Slurm warns a job by one signal and ends it by another
            return
        self._signal = signal.Signals(signum).name
        if signum == signal.SIGUSR2:
            reason = "the job's time limit (engine.train.time) came; start the run again to go on"
        elif signum == signal.SIGTERM and self._allocation.job is not None:
            reason = "Slurm ended its job, as scancel does; start the run again to go on"
        else:
            reason = f"the agent was sent {self._signal}"
        self._asked_to_stop = reason

    def _stop_reason(self) -> str | None:
        """Why the run is to stop, which a signal to this process also writes; None where it may go on."""
        order = self._chores.do("the order to stop", self._stop_order, None)
        return None if order is None else order.reason

    def _stop_order(self) -> stop.Stop | None:
        if self._asked_to_stop is not None and not self._run.stop.exists():
            self._lease.require()  # the order would reach the ranks of whoever took the run over
            stop.order_stop(self._run, "signal", self._asked_to_stop)
            self._obeyed = self._signal
        return stop.read_stop_order(self._run)

    @contextmanager
    def _gpus(self) -> Iterator[Sequence[int] | None]:
        """Hold a GPU per rank, if there are any, while the block runs, and yield the descriptors of their
        locks, which the training has to inherit.

        Waits for GPUs as long as it takes; yields None when the run was stopped meanwhile. TarmacError when
        there are fewer than the config asks for.
        """
        visible, engine = gpus.visible_gpus(), self._config.engine.train
        if engine.ranks is not None or (engine.gpus is None and not visible):
            yield ()
            return
        while isinstance(found := gpus.take_gpus(visible, engine.gpus or 1, self._run.name), gpus.GpusInUse):
            if (reason := self._stop_reason()) is not None:
                self._stopped_before_training(reason)
                yield None
                return
            if self._journal.record.reason != str(found):
                logger.info("%s", found)
                self._journal.set_state("queued", str(found))
            time.sleep(POLL_S)
        logger.info("training on GPU %s", ", ".join(found.names))
        gpus.restrict(found.names)
        self._journal.set_state("running")
        try:
            yield found.descriptors
        finally:
            found.release()

    def _train_with_gpus(self, evaluations: Evaluations) -> Training:
        with self._gpus() as held:
            trains = held is not None and self._is_done(_tune)
            return self._train_to_the_end(evaluations, held or ()) if trains else "broken"

    def _is_done(self, measure: Measuring) -> bool:
        """Have something measured before the training; False where the run was stopped meanwhile."""
        shown_at = -ON_PROGRESS_S

        def check() -> None:
            if (reason := self._stop_reason()) is not None:
                raise Withdrawn("cancelled", reason)

        def progress(done: int, total: int, note: str) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at > ON_PROGRESS_S:
                shown_at = time.monotonic()
                self._journal.set_state("running", f"{note}: {done:,} of {total:,}")

        try:
            measure(self._run, self._config, check, progress)
        except TarmacError:
            # Whatever ends its Slurm job also ends the process that measures.
            if (reason := self._stop_reason()) is None:
                raise
            self._stopped_before_training(reason)
            return False
        self._journal.set_state("running")
        return True

    def _stopped_before_training(self, reason: str, *, came_further: bool = False) -> None:
        again = self._allocation.why_again(self._obeyed, came_further=came_further)
        queued_again = None if again is None else f"{again} before it trained"
        self._journal.stopped_before_training(reason, self._obeyed, queued_again)

    @property
    def _train(self) -> Train:
        assert self._config.train is not None  # a run is planned only with a train block
        return self._config.train

    def _train_to_the_end(self, evaluations: Evaluations, held: Sequence[int]) -> Training:
        """Run the training's ranks beside its evaluations, again where `Restarts` allows it, and judge how
        they ended."""
        started, newest = time.time(), newest_sound(self._run)
        began_at = 0 if newest is None else newest.step
        restarts = Restarts(self._train, began_at)
        duties = Duties(
            stop_reason=self._stop_reason,
            on_stop=lambda: self._end_evaluations(evaluations),
            keep=lambda submitting: self._look_after(evaluations, submitting),
            pause_s=self._pause_s,
        )
        while True:
            life = self._life = Attendance(self._run, self._config, self._journal, self._chores)
            self._lease.require()
            life.start(self._lease.identity, held)
            ended = life.attend(duties, restarts.count)
            verdict = judge_end(ended)
            life.close(ended.step, verdict.reason)
            again = restarts.after(ended, verdict)
            if again is None:
                break
            self._record_restart(again, verdict, restarts.count)
            if (reason := self._wait(again.pause_s, duties)) is not None:
                order = stop.read_stop_order(self._run)
                words = f"{reason}, at step {ended.step} of {ended.last_step}"
                ended = replace(ended, stop=order)
                verdict = RunVerdict("cancelled", f"{words}, before it was started again: {verdict.reason}")
                break
            self._journal.set_state("running", f"started again ({again}): {verdict.reason}")
        return self._judge(ended, verdict, started, began_at)

    def _end_evaluations(self, evaluations: Evaluations) -> None:
        """End the evaluations with a training that is stopped; a rule stops that alone."""
        order = stop.read_stop_order(self._run)
        if order is None or order.who != "rule":
            evaluations.end_jobs(here_only=self._is_ended_by_slurm)

    def _look_after(self, evaluations: Evaluations, submitting: bool) -> None:
        self._keep(evaluations, "going", submitting=submitting)

    def _record_restart(self, again: Restart, verdict: RunVerdict, count: int) -> None:
        """Record an end after which the training is started again: its causes are no errors of the run
        yet."""
        logger.warning("restart %s in %.0f s: %s", again, again.pause_s, verdict.reason)
        self._journal.copy_sanity()
        note = f"Tarmac starts it again by itself ({again})"
        found = [replace(one, severity="warning", remedy=f"{note}; {one.remedy}") for one in verdict.findings]
        self._journal.add_findings(found)
        trainer.set_logs_aside(self._run, self._journal.number, count)
        when = f" in {again.pause_s:.0f} s" if again.pause_s else ""
        self._journal.set_state("running", f"starts again{when} ({again}): {verdict.reason}")

    def _wait(self, pause_s: float, duties: Duties) -> str | None:
        """Wait before a restart; returns why the run is to stop, as soon as it is."""
        deadline = time.monotonic() + pause_s
        while (reason := duties.stop_reason()) is None and time.monotonic() < deadline:
            duties.keep(True)
            time.sleep(min(duties.pause_s(), max(deadline - time.monotonic(), 0.0)))
        if reason is not None:
            duties.on_stop()
        return reason

    def _judge(self, ended: TrainingEnd, verdict: RunVerdict, started: float, began_at: int) -> Training:
        """Record how the training, which began at step `began_at`, ended: findings, `exit.json`, state."""
        logger.info("training ended: %s %s", verdict.state, verdict.reason)
        self._journal.copy_sanity()
        self._journal.add_findings(verdict.findings)
        queued_again = None
        if verdict.state != "succeeded":
            has_failed = verdict.state == "failed"
            came_further = (ended.checkpoint or 0) > began_at
            lost = [one.lost_node for one in (ended, *ended.further) if one.lost_node is not None]
            queued_again = self._allocation.why_again(
                self._obeyed, came_further=came_further, has_failed=has_failed
            ) or self._allocation.why_again_without(lost, came_further=came_further)
            if queued_again is not None:
                failure = f", where it had failed: {verdict.reason}" if has_failed else ""
                queued_again += f" at step {ended.step:,} of {ended.last_step:,}{failure}"
        content = exit_of(ended, verdict, started, time.time())
        self._journal.training_ended(content, verdict.state, self._obeyed, queued_again)
        order = stop.read_stop_order(self._run)  # now, as a person may have cancelled the run meanwhile
        if order is not None and order.who == "rule":  # the evaluations go on
            self._run.stop.unlink(missing_ok=True)
        return "complete" if verdict.state == "succeeded" else "broken"


def _tune(run: RunFolder, config: Config, check: Callable[[], None], _: Progress) -> None:
    tuning.tune(run, config, check)


def main(run_folder: str, aside_s: str | None = None, predecessor: str | None = None) -> None:
    """The agent's job; with `aside_s` that of a successor, which follows the job `predecessor`.

    It leaves with one line where another agent has the run, or the run wants no job.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    run = RunFolder(Path(run_folder).resolve())
    lease, allocation = Lease(run.lease), Allocation(follows=predecessor)
    if (why_not := allocation.take(lease, run)) is not None:
        logger.error("%s; this job leaves it alone", why_not)
        sys.exit(1)  # no error, of which submitit would print a traceback
    try:
        agent = Agent(run, lease, allocation, None if aside_s is None else int(aside_s))
        lease.watch(agent.leave_at_once)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(signum, agent.ask_to_stop)
        agent.work()
    finally:
        lease.release()
    if allocation.returns != "no":
        allocation.return_to_the_queue(run)
