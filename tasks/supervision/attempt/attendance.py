"""Attends one life of a training: from the start of its ranks to the end of the last of them.

While they live it notices a standstill and a slow pace, and stops them where the run is to stop. Where ranks
have to be ended, because they stand still or one of them keeps the others waiting, they are examined first:
afterwards nothing could explain it any more.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tasks.core.files import write_json
from tasks.core.process import Identity
from tasks.core.schema import Config
from tasks.diagnosis.observation.machine import oom_kills
from tasks.models import recipes
from tasks.runs import lives, metrics, phases, stop
from tasks.runs.checkpoints import newest_sound
from tasks.runs.folder import RunFolder
from tasks.supervision.attempt.chores import Chores
from tasks.supervision.attempt.journal import AttemptJournal
from tasks.supervision.attempt.slowness import Slowness
from tasks.supervision.attempt.standstill import GoesOn, Stalled, Standstill
from tasks.supervision.ranks import trainer
from tasks.supervision.ranks.success import RankEnd, TrainingEnd, causes_of, stood_still, tail_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Duties:
    """What the agent does while it attends a training.

    `stop_reason` returns why the run is to stop, None where it is not; `on_stop` is called once for each
    reason. `keep` looks after everything else, and starts evaluations only where its argument is true.
    `pause_s` is how long to wait between two looks.
    """

    stop_reason: Callable[[], str | None]
    on_stop: Callable[[], None]
    keep: Callable[[bool], None]
    pause_s: Callable[[], float]


class Attendance:
    """One life of the run's training, which `attend` sees to its end."""

    def __init__(self, run: RunFolder, config: Config, journal: AttemptJournal, chores: Chores) -> None:
        assert config.train is not None
        self._run, self._config, self._train = run, config, config.train
        self._journal, self._chores = journal, chores
        self._ranks: trainer.RunningRanks | None = None
        self._is_forced = False
        """Whether the training did not obey in time."""
        self._stalled: dict[str, float] = {}
        self._stalled_wait_s = 0.0
        """The part of these stalls in which the first rank waited for data."""
        self._verdict: str | None = None
        """The verdict on a standstill for which the ranks were ended."""

    def start(self, agent: Identity, held: Sequence[int]) -> None:
        """Start the ranks, which inherit the descriptors `held`; TarmacError where they cannot be started."""
        self._oom_kills = oom_kills()
        self._earlier_bytes = metrics.read_metrics(self._run.metrics)[1]
        self._ranks = trainer.start_training(
            self._run, self._journal.number, self._config, agent, held, before_end=self._keep_evidence
        )
        pids = ", ".join(f"process {identity.pid}" for identity in self._ranks.identities)
        logger.info("training started: %s", pids)

    def kill(self) -> None:
        """End the ranks at once, if there are any; returns without waiting."""
        if self._ranks is not None:
            self._ranks.kill()

    def attend(self, duties: Duties, restarts: int) -> TrainingEnd:
        """Attend the ranks until they have ended; `restarts` is how often they were started again."""
        assert self._ranks is not None
        ranks, first = self._ranks, self._ranks.identities[0].pid
        watch, slowness = Standstill(self._run, self._journal.number), Slowness(self._run)
        pids = [identity.pid for identity in ranks.identities]
        deadline: float | None = None
        obeyed: str | None = None
        while (ends := ranks.wait(duties.pause_s())) is None:
            is_stopping = (reason := duties.stop_reason()) is not None
            if is_stopping and reason != obeyed:  # a person may cancel a run that a rule is stopping
                logger.warning("stopping: %s", reason)
                obeyed = reason
                duties.on_stop()
                deadline = deadline or time.monotonic() + stop.grace_s(self._run)
            if deadline is not None and time.monotonic() > deadline:
                self._is_forced = True
                ranks.end()
            news = self._chores.do("the watch", functools.partial(watch.look, pids), None)
            self._chores.do("the news of the watch", functools.partial(self._record_news, news), None)
            self._chores.do("sanity.jsonl", self._journal.copy_sanity, None)
            stands = watch.stands is not None
            self._chores.do("the pace", functools.partial(self._record_slow, slowness, pids, stands), None)
            acts = not is_stopping and self._train.on_stall != "report"
            if acts and isinstance(news, Stalled) and not news.is_paused:
                self._verdict = news.reason
                ranks.end()
            duties.keep(not is_stopping)
        self._count_stall(watch.stands)
        self._stalled_wait_s = self._chores.do("the end of the watch", watch.stalled_wait_s, 0.0)
        return self._observe_end(ends, ranks.first_failed, first, restarts)

    def close(self, step: int, reason: str) -> None:
        """Record this life, which came to `step`; `reason` is empty where that is the end."""
        facts = (self._run, self._journal.number, time.time(), reason, self._stalled, step)
        self._chores.do("lives.jsonl", lambda: lives.end_life(*facts, self._stalled_wait_s), None)

    def _record_news(self, news: Stalled | GoesOn | None) -> None:
        """Record that the training stands still, and why, or that it goes on."""
        if isinstance(news, Stalled):
            logger.warning("%s", news.reason)
            self._journal.add_findings(news.findings)
            self._journal.set_state("stalled", news.reason)
        elif isinstance(news, GoesOn):
            logger.info("the training goes on")
            self._count_stall(news)
            self._journal.set_state("running")

    def _count_stall(self, news: GoesOn | None) -> None:
        if news is not None and self._ranks is not None:
            first = self._ranks.identities[0].pid
            lives.add_stall(self._run, self._journal.number, first, news.phase, news.stood_s)
            self._stalled[news.phase] = self._stalled.get(news.phase, 0.0) + news.stood_s

    def _record_slow(self, slowness: Slowness, pids: Sequence[int], stands_still: bool) -> None:
        findings = slowness.look(pids, stands_still)
        for finding in findings:
            logger.warning("%s", "\n".join(finding.lines()))
        if findings:
            self._journal.add_findings(findings, "pace")

    def _keep_evidence(self) -> None:
        """Examine ranks of which some are about to be ended because of another."""
        from tasks.diagnosis.run_doctor import examine_run  # late, as most trainings never need it

        def examine() -> None:
            observed = examine_run(self._run).observation
            if observed is not None:
                write_json(self._run.observation(self._journal.number), observed.to_json())

        self._chores.do("the examination", examine, None)

    def _observe_end(
        self, ends: Sequence[RankEnd], first_failed: int | None, first: int, restarts: int
    ) -> TrainingEnd:
        """Gather what is known of the training, whose first rank was the process `first`: the end of each
        rank that caused it, and how far it came itself, whatever one before it did."""
        phase = phases.read_phase(self._run.phase())
        reported = phase.step if phase is not None and phase.pid == first else 0
        logged = metrics.last_step(self._run.metrics, offset=self._earlier_bytes)
        newest = newest_sound(self._run)
        step = max(reported, logged, 0 if newest is None else newest.step)
        cause, *further = [
            TrainingEnd(
                exit_code=end.exit_code,
                step=step,
                last_step=int(self._journal.record.identity["steps"]),
                loss=metrics.loss_at(self._run.metrics, step),
                checkpoint=None if newest is None else newest.step,
                stop=stop.read_stop_order(self._run),
                is_forced=self._is_forced and end.was_ended,
                log_tail=tail_of(self._run.rank_log(self._journal.number, end.rank)),
                rank=end.rank,
                ranks=len(ends),
                stood_still=stood_still(end, ends),
                stalled=self._verdict if any(one.was_ended for one in ends) else None,
                restarts=restarts,
                oom_kills=oom_kills() - self._oom_kills,
                levers=recipes.levers(self._train),
                lost_node=end.lost_node,
            )
            for end in causes_of(ends, first_failed)
        ]
        return replace(cause, further=further)
