"""Reads from a run's folder where the run stands: no process is asked or trusted, and nothing is written.

It serves whoever waits for a run, `tarmac status`, and the check whether anything is left to do. It reads a
few small files and the end of `metrics.jsonl`, whatever the run's length.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tasks.core import config as configs
from tasks.core.engines.slurm_queue import silence
from tasks.core.errors import DataError, TarmacError
from tasks.core.files import read_json
from tasks.core.findings import Finding
from tasks.core.lock import holder_of
from tasks.core.schema import Config
from tasks.evaluation.best import BestCheckpoint, is_due, standing
from tasks.evaluation.condition import (
    EvaluationStatus,
    RunCondition,
    entry_of,
    standing_step,
    still_wanted,
)
from tasks.evaluation.expected import WantedEvaluation, wanted_of
from tasks.runs import ledger, metrics, phases, record
from tasks.runs.checkpoints import CheckpointListing
from tasks.runs.folder import RunFolder, list_runs
from tasks.runs.followed import Followed, origins_of, read_followed, read_news
from tasks.runs.goodput import Goodput, goodput_of
from tasks.runs.jobs import agent_is_alive, job_in
from tasks.runs.ledger import LedgerEntry
from tasks.runs.phases import Phase
from tasks.runs.record import OVER, RunRecord, State
from tasks.runs.run_findings import doubts_about
from tasks.supervision.evaluating.result_files import once_per_version, result_of

LONGEST_PAUSE_S = 2.0
SLURM_AGE_S = 60.0
"""For how long an answer of Slurm shows that it is there."""
SILENT_S = 60.0
"""A training that has logged nothing for longer is reported as silent."""


@dataclass(frozen=True)
class RunStatus:
    """One look at a run. `step` is where its newest training stands, or stood when it ended; `row` is the
    newest row of training metrics, empty before the first, which a killed training may have written."""

    run: RunFolder
    record: RunRecord
    step: int
    steps: int
    row: dict[str, object]
    phase: Phase | None
    evaluations: Sequence[EvaluationStatus]
    checkpoints: Sequence[int]
    agent_is_alive: bool
    best: BestCheckpoint | None
    """The checkpoint that `checkpoints/best` points at."""
    silent_s: float = 0.0
    """Seconds since the training last wrote what it is doing; 0 where that is not long, or none runs."""
    stalled_s: float = 0.0
    """The same for a training that its agent calls stalled."""
    doubts: Sequence[Finding] = ()
    """What is wrong with the training although it goes on, or makes it slow."""
    silence: str = ""
    """A note that Slurm does not answer, for a run that needs it; empty where it does."""
    queue: str = ""
    """A note that the agent waits in Slurm's queue, and why in Slurm's words; empty where it does not."""
    followed: Followed | None = None
    """What the run follows; None where it trains."""
    is_reported: bool = True
    """Whether the training has given a sign of life since its record was last written."""
    quiet_s: float = 0.0
    """How long nothing new has come in the folder that it follows, where that is long; else 0."""

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def reason(self) -> str:
        return "; ".join(filter(None, (self.queue, self.record.reason)))

    @property
    def condition(self) -> RunCondition:
        """What is to be reported about it, wherever that is."""
        return RunCondition(
            self.run, self.record, self.agent_is_alive, self.step, self.steps, self.evaluations
        )

    @property
    def stopped(self) -> str | None:
        """Why the last agent left before the evaluations were final; None where it did not, or one works."""
        return self.condition.stopped

    @property
    def signal(self) -> str | None:
        """The signal that stopped the last agent, such as at its time limit; None where none did."""
        return self.record.attempts[-1].signal if self.record.attempts else None

    @property
    def training_is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_abandoned(self) -> bool:
        """Whether it should be running but nobody works on it: its agent was killed."""
        return self.condition.is_abandoned

    @property
    def agent_has_left(self) -> bool:
        """Whether the last agent ended by itself, or left nothing to do; a killed one has not left."""
        attempts = self.record.attempts
        ended = bool(attempts) and attempts[-1].ended is not None and self.state in OVER
        return not self.agent_is_alive and (ended or self.is_complete)

    @property
    def loss(self) -> float | None:
        return self.figure("train/loss")

    def figure(self, name: str) -> float | None:
        """Return a figure of the newest row of metrics; None where it has none, or none that is finite."""
        value = self.row.get(name)
        return float(value) if isinstance(value, int | float) else None

    @property
    def is_training(self) -> bool:
        """Whether ranks are past their first batch and have given signs of life since the agent last changed
        the run's state: the rows of a training before that do not say how this one goes on."""
        is_at_work = self.agent_is_alive and self.state == "running" and self.row != {}
        steps = self.phase is not None and self.phase.phase in ("step", "validate", "checkpoint")
        return is_at_work and steps and self.is_reported and not self.silent_s

    @property
    def left_s(self) -> float | None:
        """Seconds of training that are left at the pace of the newest row; None where that is not known."""
        step_s = self.figure("train/step_s") if self.is_training else None
        return None if step_s is None else max(self.steps - self.step, 0) * step_s

    @property
    def is_dismissed(self) -> bool:
        """Whether a person has dismissed what the run needs, and nothing was done on it since."""
        try:
            return int(read_json(self.run.dismissed)["attempts"]) == len(self.record.attempts)
        except (OSError, ValueError, LookupError, TypeError):
            return False

    @property
    def goodput(self) -> Goodput | None:
        """Where the training's time went until now; None before its ranks began."""
        return goodput_of(self.run, self.record, time.time() if self.agent_is_alive else None)

    @property
    def replaced(self) -> int:
        """How many bad samples the training replaced up to the newest row."""
        value = self.row.get("data/replaced")
        return int(value) if isinstance(value, int | float) else 0

    @property
    def evaluations_waiting(self) -> list[EvaluationStatus]:
        """Evaluations whose job waits in a queue, or to be tried again."""
        return [evaluation for evaluation in self.evaluations if evaluation.waiting]

    @property
    def evaluations_done(self) -> int:
        return sum(evaluation.is_done for evaluation in self.evaluations)

    @property
    def evaluations_missing(self) -> list[EvaluationStatus]:
        """Evaluations that have no result though training is over, or whose tries are used up."""
        return self.condition.missing

    @property
    def is_complete(self) -> bool:
        """Whether it is trained to the end, or as far as a rule let it, every evaluation is done, and they
        chose the best checkpoint."""
        is_trained = self.state == "succeeded" or self.record.stopped_early
        done = is_trained and self.evaluations_done == len(self.evaluations)
        return done and not is_due(self.run, config_of(self.run))

    @property
    def log(self) -> Path:
        """The log that a person reads first: that of the rank with which the newest training's end began, or
        of the run's agent when there is none."""
        number = max(self.record.trained, 1)
        try:
            first = int(read_json(self.run.exit(number)).get("rank", 0))
        except (OSError, ValueError, TypeError):
            first = 0
        log, job = self.run.rank_log(number, first), job_in(self.run, self.record.job)
        return log if job is None or log.exists() else job.log


def look_at_run(run: RunFolder) -> RunStatus:
    """Return the run as it stands now; DataError when its record or config cannot be read.

    Whether the agent lives is read first: what it wrote before it ended is then in the rest.
    """
    alive = agent_is_alive(run)
    state = record.load_record(run)
    entries, config = _entries(run.ledger), config_of(run)
    newest_rows = metrics.rows_of(metrics.tail(run.metrics), "train")
    row = newest_rows[-1] if newest_rows else {}
    phase = phases.read_phase(run.phase())
    checkpoints = [checkpoint.step for checkpoint in _listing(run)()]
    followed, news = read_followed(run), read_news(run)
    origins = origins_of(run) if followed is not None else None
    silent_s = _silent_s(run, state) if alive and state.state in ("running", "stalled") else 0.0
    return RunStatus(
        run=run,
        record=state,
        step=standing_step(state, phase, checkpoints, row),
        steps=int(state.identity["steps"] if followed is None else news.last or max(checkpoints, default=0)),
        row=row,
        phase=phase,
        evaluations=[
            _evaluation(run, want, entry_of(want, entries), alive)
            for want in still_wanted(
                _wanted(run.config) if origins is None else wanted_of(run.id, config, origins),
                state,
                max(checkpoints, default=0),
            )
        ],
        checkpoints=checkpoints,
        agent_is_alive=alive,
        best=standing(run, config),
        silent_s=silent_s if state.state == "running" and followed is None else 0.0,
        stalled_s=silent_s if state.state == "stalled" else 0.0,
        doubts=doubts_about(run),
        silence=_silence(config, state) if alive else "",
        queue=_waiting(run, state) if alive else "",
        followed=followed,
        is_reported=_is_newer(run.phase(), run.record),
        quiet_s=news.quiet_s if alive and state.state == "running" else 0.0,
    )


def pause_after(since_s: float, least_s: float) -> float:
    """Return how long to wait before the next look at what has gone on for `since_s`: a twentieth of that, so
    that a long run costs its file system little and a short one is noticed at once."""
    return min(max(since_s / 20, least_s), LONGEST_PAUSE_S)


def list_status(runs: Path) -> tuple[list[RunStatus], Mapping[str, str]]:
    """Return every run under `runs`, and by name the reasons why the others cannot be read."""
    found: list[RunStatus] = []
    unreadable: dict[str, str] = {}
    for run in list_runs(runs):
        try:
            found.append(look_at_run(run))
        except (TarmacError, OSError) as error:
            unreadable[run.name] = str(error)
        except (LookupError, TypeError, ValueError) as error:
            unreadable[run.name] = f"its files are damaged ({type(error).__name__}: {error})"
    return found, unreadable


def _waiting(run: RunFolder, state: RunRecord) -> str:
    """A note that the agent's job waits in Slurm's queue; empty once somebody holds the run's lease."""
    job = job_in(run, state.job)
    holder = None if job is None or job.slurm is None else holder_of(run.lease)
    if job is None or job.slurm is None or (holder is not None and holder.is_alive()):
        return ""
    what = "the job that keeps its evaluations is " if state.state in OVER else ""
    return what + job.slurm.waiting if job.slurm.waiting else ""


def _silence(config: Config, state: RunRecord) -> str:
    """A note that Slurm does not answer, where training or evaluations of the run are its jobs."""
    engine = config.engine
    silent = silence(SLURM_AGE_S) if "slurm" in (engine.train.kind, engine.evaluate.kind) else ""
    goes_on = "the training goes on" if state.state in ("running", "stalled") else "the run waits for it"
    return f"{silent}; {goes_on}" if silent else ""


def _silent_s(run: RunFolder, state: RunRecord) -> float:
    """By how long the training's sign of life, or the start of its ranks, is older than the agent's.

    They are files, stamped by one clock, so it does not matter how far the clock of this machine is off.
    """
    holder = holder_of(run.lease)
    started = [run.rank_identity(len(state.attempts))] if state.attempts else []
    try:
        newest = max(path.stat().st_mtime for path in (run.phase(), *started))
    except OSError:
        return 0.0
    silent_s = 0.0 if holder is None else holder.heartbeat - newest
    return silent_s if silent_s > SILENT_S else 0.0


def _is_newer(path: Path, than: Path) -> bool:
    try:
        return path.stat().st_mtime >= than.stat().st_mtime
    except OSError:
        return False


def config_of(run: RunFolder) -> Config:
    """Return the run's own config; DataError when it is missing."""
    if not run.config.exists():
        raise DataError(f"{run.config}: is missing; plan the run again")
    return _parsed(run.config)


def _evaluation(
    run: RunFolder, want: WantedEvaluation, entry: LedgerEntry | None, alive: bool
) -> EvaluationStatus:
    waiting = ""
    if entry is not None and entry.state == "submitted" and alive:
        job = job_in(run, entry.job)
        waiting = entry.reason if job is None or job.slurm is None else job.slurm.waiting
    has_result = result_of(run.evaluation(*want.key)) is not None
    return EvaluationStatus(want.step, want.task, entry, has_result, waiting)


_listing = lru_cache(maxsize=64)(CheckpointListing)
_parsed = once_per_version(configs.reload, 64)
_wanted = once_per_version(lambda config: wanted_of(RunFolder(config.parent).id, _parsed(config)), 64)
_entries = once_per_version(lambda path: ledger.fold(ledger.read_ledger(path)), 4)
