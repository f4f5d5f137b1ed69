"""What every reader reports about a run: its state, whether it needs a person, which evaluations it has and
lacks, and the command that helps.

`tarmac status`, its JSON, Prefect's pages and the report all ask here, so that they never differ about one
folder. All functions are pure, from what was read to what is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tasks.evaluation.expected import WantedEvaluation
from tasks.runs.folder import RunFolder
from tasks.runs.ledger import Key, LedgerEntry
from tasks.runs.phases import Phase
from tasks.runs.plan import command_to_resume
from tasks.runs.record import OVER, RunRecord, State

GONE = "its agent is gone"
"""The reason of a run that counts as failed because nobody works on it."""


@dataclass(frozen=True)
class EvaluationStatus:
    """One evaluation that the config asks for: its last ledger entry, None before its first job."""

    step: int
    task: str
    entry: LedgerEntry | None
    has_result: bool
    waiting: str = ""
    """Why its job does not run yet: Slurm's reason, or when it is tried again; empty where none waits."""

    @property
    def state(self) -> str:
        """`pending`, or a state of the ledger. What is done but has lost its result is to be done again."""
        if self.entry is None or (self.entry.state == "done" and not self.has_result):
            return "pending"
        return self.entry.state

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    @property
    def reason(self) -> str:
        """Why it has no result."""
        if self.entry is None:
            return "no job of it was started"
        if self.entry.state == "done":
            return "it was done, but its result file is missing or cannot be read"
        return self.entry.reason or f"it was {self.state}, and its job is gone"

    def __str__(self) -> str:
        """`step 200 zero_shot: why it has no result`."""
        return f"step {self.step} {self.task}: {self.reason}"

    def command(self, run: RunFolder) -> str:
        """The command that repeats it."""
        return f"tarmac evaluate {run.handle} --step {self.step} --task {self.task}"


@dataclass(frozen=True)
class RunCondition:
    """What was read of a run, and what that means."""

    run: RunFolder
    record: RunRecord
    agent_is_alive: bool
    step: int
    steps: int
    evaluations: Sequence[EvaluationStatus] = ()

    @property
    def is_abandoned(self) -> bool:
        """Whether it should be under way but nobody works on it: its agent was killed."""
        return self.record.is_abandoned(self.agent_is_alive)

    @property
    def state(self) -> State:
        """The state of its record, or `failed` where its agent was killed."""
        return "failed" if self.is_abandoned else self.record.state

    @property
    def word(self) -> str:
        """The state in a word; that of a run which trains nothing is `following`, not `running`."""
        is_following = "follows" in self.record.identity and self.state == "running"
        return "following" if is_following else self.state

    @property
    def reason(self) -> str:
        """Why it is in its state; empty where that needs no reason."""
        return f"{GONE}; it was {self.record.state}" if self.is_abandoned else self.record.reason

    def where(self, of: str = "/") -> str:
        """The step, and the last one where it is known: a followed folder may not name it."""
        is_open = "follows" in self.record.identity and self.state != "succeeded" and self.steps <= self.step
        return f"{self.step:,}" if is_open else f"{self.step:,}{of}{self.steps:,}"

    @property
    def has_failed(self) -> bool:
        """Whether its training needs a person."""
        return self.state in ("failed", "stalled")

    @property
    def stopped(self) -> str | None:
        """Why the last agent left before the evaluations were final; None where it did not, or one works."""
        attempts = self.record.attempts
        return attempts[-1].stopped if attempts and not self.agent_is_alive else None

    @property
    def missing(self) -> list[EvaluationStatus]:
        """Evaluations that have no result though nobody works on them, or whose tries are used up."""
        is_over = self.record.state in OVER and not self.agent_is_alive
        return [one for one in self.evaluations if not one.is_done and (is_over or _is_in_vain(one))]

    @property
    def lost(self) -> list[EvaluationStatus]:
        """Evaluations without a result that had their chance: their tries are used up, or the training
        succeeded. One that a person cancelled with its run does not count."""
        attempts = self.record.attempts
        signal = attempts[-1].signal if attempts else None
        by_person = self.state == "cancelled" and signal is None and not self.record.stopped_early
        excused = by_person or self.stopped is not None
        has_succeeded = self.record.state == "succeeded" or self.record.stopped_early
        return [
            one
            for one in self.missing
            if _is_in_vain(one) or (not excused and (one.entry is not None or has_succeeded))
        ]

    @property
    def needs_person(self) -> bool:
        return self.has_failed or bool(self.lost)

    @property
    def next_command(self) -> str | None:
        """The command for what has become of the training; None where nothing is to be done about it."""
        if self.state == "stalled":
            return f"tarmac doctor --run {self.run.handle}"
        is_to_resume = self.state == "failed" or (self.state == "cancelled" and not self.record.stopped_early)
        return command_to_resume(self.run) if is_to_resume else None

    @property
    def commands(self) -> list[str]:
        """The commands that help, the one for the training first."""
        first = [] if self.next_command is None else [self.next_command]
        return [*first, *(one.command(self.run) for one in self.lost)]


def still_wanted(
    wanted: Sequence[WantedEvaluation], record: RunRecord, last_checkpoint: int
) -> list[WantedEvaluation]:
    """Return those of the evaluations that are still asked of a run: one that was stopped early has no more
    checkpoints to come."""
    return [want for want in wanted if not record.stopped_early or want.step <= last_checkpoint]


def entry_of(want: WantedEvaluation, entries: Mapping[Key, LedgerEntry]) -> LedgerEntry | None:
    """Return the ledger's entry about an evaluation; None where it is about another question, such as one
    with other arguments."""
    entry = entries.get(want.key)
    return entry if entry is not None and entry.uid == want.uid else None


def standing_step(
    record: RunRecord, phase: Phase | None, checkpoints: Collection[int], row: Mapping[str, object]
) -> int:
    """Return the step at which the newest training stands or ended; that of a run which follows another
    trainer is its newest checkpoint. Rows of an earlier training, which was killed, may lie ahead."""
    newest = max(checkpoints, default=0)
    if "follows" in record.identity:
        return newest
    if record.state == "succeeded" and "steps" in record.identity:
        return int(record.identity["steps"])
    if phase is None:
        step = row.get("train/step", 0)
        return int(step) if isinstance(step, int | float) else 0
    return newest if phase.phase == "start" else phase.step


def _is_in_vain(one: EvaluationStatus) -> bool:
    return one.state in ("failed", "lost")
