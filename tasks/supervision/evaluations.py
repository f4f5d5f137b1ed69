"""What to do next about a run's evaluations: pure, from what is wanted and what is seen to a list of actions.

An evaluation is done when its result file parses, whatever its job said. A job that is gone without a result
is submitted again, TRIES times in all; then it is final, with the reason. A submission that was refused is no
try: it is repeated after pauses that double, for REFUSED_S in all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.core.files import digest
from tasks.core.schema import Config
from tasks.evaluation import results
from tasks.evaluation.expected import expected
from tasks.runs.ledger import Entry, EvaluationState, Key

TRIES = 3
PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""Before a refused submission is repeated, at first and at most."""
REFUSED_S = 1800.0
Training = Literal["going", "complete", "broken"]
"""`broken`: it ended before its last step, so checkpoints that are not there are not expected now."""


@dataclass(frozen=True)
class Wanted:
    """One evaluation that the config asks for; `uid` is the digest of checkpoint, task and arguments."""

    step: int
    task: str
    uid: str

    @property
    def key(self) -> Key:
        return self.step, self.task


@dataclass(frozen=True)
class Seen:
    """What the disk and the process table show.

    `alive` holds the evaluations whose job lives, seen before the `results` that parse, so that a job which
    ends in between is not taken for a lost one; a result counts when it is of the question in the ledger.
    `failures` says how dead jobs ended. `now` is in Unix seconds.
    """

    checkpoints: Collection[int]
    alive: Collection[Key]
    running: Collection[Key]
    results: Collection[Key]
    failures: Mapping[Key, tuple[Literal["failed", "lost"], str]]
    training: Training
    now: float = 0.0


@dataclass(frozen=True)
class Submit:
    """Start a job for it; `attempt` counts from 1."""

    wanted: Wanted
    attempt: int


@dataclass(frozen=True)
class Mark:
    """Write its new state into the ledger."""

    wanted: Wanted
    state: EvaluationState
    reason: str = ""


def wanted_of(run_id: str, config: Config) -> list[Wanted]:
    """Every evaluation the config asks for. A step of a run names one checkpoint, as runs are exact."""
    if config.evaluate is None:
        return []
    tasks = {task.name: task for task in config.evaluate.tasks}
    return [
        Wanted(step, name, digest([run_id, step, tasks[name].model_dump(mode="json"), results.VERSION]))
        for step, name in expected(config)
    ]


def next_actions(
    wanted: Sequence[Wanted], entries: Mapping[Key, Entry], seen: Seen, jobs: int
) -> list[Submit | Mark]:
    """What to do now, with at most `jobs` jobs alive at once; empty when there is only waiting left to do."""
    actions: list[Submit | Mark] = []
    free = jobs - len(set(seen.alive))
    for want in wanted:
        action = _next(want, _current(want, entries, seen), seen)
        if isinstance(action, Submit):
            if free < 1:
                continue
            free -= 1
        if action is not None:
            actions.append(action)
    return actions


def unfinished(wanted: Sequence[Wanted], entries: Mapping[Key, Entry], seen: Seen) -> list[Wanted]:
    """What is still to come: neither final nor of a checkpoint that will not appear."""
    left = []
    for want in wanted:
        entry = _current(want, entries, seen)
        impossible = seen.training == "broken" and want.step not in seen.checkpoints
        if not impossible and (entry is None or not entry.is_final):
            left.append(want)
    return left


def reopened(entries: Mapping[Key, Entry]) -> dict[Key, Entry]:
    """The ledger as a new agent takes it up: what has no result has all its tries again."""
    open_again = {key: entry for key, entry in entries.items() if entry.state not in ("failed", "lost")}
    return {
        key: entry if entry.is_final else entry.having(attempt=0, refusals=0)
        for key, entry in open_again.items()
    }


def _current(want: Wanted, entries: Mapping[Key, Entry], seen: Seen) -> Entry | None:
    """The entry about just this question: not about other arguments, not done with its result gone since."""
    entry = entries.get(want.key)
    if entry is None or entry.uid != want.uid:
        return None
    return None if entry.state == "done" and want.key not in seen.results else entry


def _next(want: Wanted, entry: Entry | None, seen: Seen) -> Submit | Mark | None:
    if entry is not None and entry.is_final:
        return None
    if want.key in seen.alive:
        begun = entry is not None and entry.state == "submitted" and want.key in seen.running
        return Mark(want, "running") if begun else None
    if entry is not None and want.key in seen.results:
        return Mark(want, "done")
    if want.step not in seen.checkpoints:
        missing = f"there is no checkpoint of step {want.step}"
        return Mark(want, "lost", missing) if seen.training == "complete" else None
    if entry is not None and entry.refusals > 0:
        return _after_refusal(want, entry, seen.now)
    attempt = 0 if entry is None else entry.attempt
    if attempt < TRIES:
        return Submit(want, attempt + 1)
    state, reason = seen.failures.get(want.key, ("lost", "its job left no trace"))
    return Mark(want, state, f"{TRIES} of {TRIES} tries used; {reason}")


def _after_refusal(want: Wanted, entry: Entry, now: float) -> Submit | Mark | None:
    if now - entry.refused_since >= REFUSED_S:
        return Mark(want, "failed", f"no job could be submitted for {REFUSED_S / 60:.0f} min; {entry.reason}")
    pause_s = min(PAUSE_S * 2.0 ** (entry.refusals - 1), LONGEST_PAUSE_S)
    return Submit(want, entry.attempt + 1) if now - entry.at >= pause_s else None
