"""What to do next about a run's evaluations: pure, from what is wanted and observed to a list of actions.

An evaluation is done when its result file parses, whatever its job reported. A job that is gone without a
result is submitted again after a pause that grows, TRIES times in all; then it is final, with each try's
reason. An evaluation that a person has cancelled in Slurm, or that Slurm does not start, is final at once. A
submission that was refused is no try: it is repeated after pauses that double, for REFUSED_S in all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tasks.evaluation.expected import WantedEvaluation
from tasks.runs.ledger import EvaluationState, Key, LedgerEntry

TRIES = 3
RETRY_S, TIMES = 30.0, 4.0
"""The pause after the first try that failed, and how much longer it is after each further one."""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""The pause before a refused submission is repeated, at first and at most."""
REFUSED_S = 1800.0
LOG = re.compile(r" \(log: \S+\)$")
"""The end of a reason, which names the log of one try."""
Training = Literal["going", "complete", "broken"]
"""`broken`: it ended before its last step, so checkpoints that are not there are not expected now."""


@dataclass(frozen=True)
class JobFailure:
    """How a job ended without a result; `is_final` where trying again would be against somebody's will."""

    state: Literal["failed", "lost"]
    reason: str
    is_final: bool = False


@dataclass(frozen=True)
class EvaluationEvidence:
    """What the disk and the process table show.

    `alive` holds the evaluations whose job lives. It is observed before the `results` that parse, so that a
    job which ends in between is not taken for a lost one; a result counts when it answers the question in the
    ledger. `failures` explains how dead jobs ended, and `stuck` why Slurm does not start one that waits.
    `hold` is why no evaluation is to be started now, empty where any may be. `now` is in Unix seconds.
    `unreadable` explains by step why a checkpoint of another trainer cannot be evaluated any more.
    """

    checkpoints: Collection[int]
    alive: Collection[Key]
    running: Collection[Key]
    results: Collection[Key]
    failures: Mapping[Key, JobFailure]
    training: Training
    stuck: Mapping[Key, str] = field(default_factory=dict)
    hold: str = ""
    now: float = 0.0
    unreadable: Mapping[int, JobFailure] = field(default_factory=dict)


@dataclass(frozen=True)
class Submit:
    """Start a job for it; `attempt` counts from 1."""

    wanted: WantedEvaluation
    attempt: int


@dataclass(frozen=True)
class Hold:
    """Record why it is not started yet."""

    wanted: WantedEvaluation
    reason: str


@dataclass(frozen=True)
class Mark:
    """Write its new state into the ledger; a waiting job of it is cancelled where that state is final."""

    wanted: WantedEvaluation
    state: EvaluationState
    reason: str = ""


@dataclass(frozen=True)
class Pause:
    """Record why a try gave no result, and that there will be another one."""

    wanted: WantedEvaluation
    cause: str
    reason: str


def next_actions(
    wanted: Sequence[WantedEvaluation],
    entries: Mapping[Key, LedgerEntry],
    evidence: EvaluationEvidence,
    jobs: int,
) -> list[Submit | Hold | Mark | Pause]:
    """Decide what to do now, with at most `jobs` jobs alive at once; empty when only waiting is left to
    do."""
    actions: list[Submit | Hold | Mark | Pause] = []
    free = jobs - len(set(evidence.alive))
    for want in wanted:
        action: Submit | Hold | Mark | Pause | None
        action = _next(want, _current(want, entries, evidence), evidence)
        if isinstance(action, Submit):
            if free < 1:
                continue
            free -= 1
            action = Hold(want, evidence.hold) if evidence.hold else action
        if action is not None:
            actions.append(action)
    return actions


def hold_of(when: str, training: Training) -> str:
    """Return why `evaluate.when` holds all evaluations back now; empty where it does not."""
    waits = when == "after" and training == "going"
    return "waits for the training's end (evaluate.when: after)" if waits else ""


def unfinished(
    wanted: Sequence[WantedEvaluation], entries: Mapping[Key, LedgerEntry], evidence: EvaluationEvidence
) -> list[WantedEvaluation]:
    """Return what is still to come: neither final nor of a checkpoint that will not appear."""
    return [
        want
        for want in wanted
        if evidence.training != "broken" or want.step in evidence.checkpoints
        if (entry := _current(want, entries, evidence)) is None or not entry.is_final
    ]


def reopened(entries: Mapping[Key, LedgerEntry], alive: Collection[Key]) -> dict[Key, LedgerEntry]:
    """Return the ledger as an agent takes it up that a person has started: what has no result is tried anew.

    Tries that are spent on an open question stay spent, but for one that ended with the agent before.
    """
    return {
        key: entry if entry.is_final or key in alive else entry.having(attempt=len(entry.tried))
        for key, entry in entries.items()
        if entry.state not in ("failed", "lost")
    }


def _current(
    want: WantedEvaluation, entries: Mapping[Key, LedgerEntry], evidence: EvaluationEvidence
) -> LedgerEntry | None:
    """The entry about this very question: not about other arguments, not done with its result gone since."""
    entry = entries.get(want.key)
    if entry is None or entry.uid != want.uid:
        return None
    return None if entry.state == "done" and want.key not in evidence.results else entry


def _next(
    want: WantedEvaluation, entry: LedgerEntry | None, evidence: EvaluationEvidence
) -> Submit | Mark | Pause | None:
    if entry is not None and entry.is_final:
        return None
    if want.key in evidence.alive:
        if want.key in evidence.stuck:
            return Mark(want, "failed", evidence.stuck[want.key])
        begun = entry is not None and entry.state == "submitted" and want.key in evidence.running
        return Mark(want, "running") if begun else None
    if entry is not None and want.key in evidence.results:
        return Mark(want, "done")
    if (unreadable := evidence.unreadable.get(want.step)) is not None:
        return Mark(want, unreadable.state, unreadable.reason)
    if want.step not in evidence.checkpoints:
        missing = f"there is no checkpoint of step {want.step}"
        return Mark(want, "lost", missing) if evidence.training == "complete" else None
    if entry is not None and entry.refusals > 0:
        return _after_refusal(want, entry, evidence.now)
    if entry is None or entry.attempt == 0:
        return Submit(want, 1)
    if entry.waits_to_be_tried_again:
        is_due = _is_over(_pause_s(entry.attempt), entry.at, evidence.now)
        return Submit(want, entry.attempt + 1) if is_due else None
    return _after_failure(want, entry, evidence.failures)


def _after_failure(
    want: WantedEvaluation, entry: LedgerEntry, failures: Mapping[Key, JobFailure]
) -> Mark | Pause:
    failure = failures.get(want.key, JobFailure("lost", "its job left no trace"))
    if failure.is_final:
        return Mark(want, failure.state, failure.reason)
    if entry.attempt < TRIES:
        again = f"try {entry.attempt + 1} of {TRIES} in {_pause_s(entry.attempt):.0f} s"
        return Pause(want, failure.reason, f"{failure.reason}; {again}")
    reason = f"{TRIES} of {TRIES} tries used; {failure.reason}"
    _, *earlier = dict.fromkeys(LOG.sub("", cause) for cause in (failure.reason, *reversed(entry.tried)))
    return Mark(want, failure.state, "; before: ".join([reason, *earlier]))


def _after_refusal(want: WantedEvaluation, entry: LedgerEntry, now: float) -> Submit | Mark | None:
    if now - entry.refused_since >= REFUSED_S:
        return Mark(want, "failed", f"no job could be submitted for {REFUSED_S / 60:.0f} min; {entry.reason}")
    pause_s = min(PAUSE_S * 2.0 ** (entry.refusals - 1), LONGEST_PAUSE_S)
    return Submit(want, entry.attempt + 1) if _is_over(pause_s, entry.at, now) else None


def _pause_s(attempt: int) -> float:
    return min(RETRY_S * TIMES ** (attempt - 1), LONGEST_PAUSE_S)


def _is_over(pause_s: float, since: float, now: float) -> bool:
    """Whether a pause is over; one that lies ahead was written by a clock that differs from ours."""
    return not 0 <= now - since < pause_s
