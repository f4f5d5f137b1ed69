"""Goodput: the share of a training's time that went into steps which were kept, and where the rest went.

A run's is made of timestamps that are on disk anyway: when an attempt was asked for and began, and what each
life of its ranks did with its time. Steps that were lost with a life, and done again by the next one, count
as restarting. The time between a training that failed or was cancelled and a person's next start counts for
nothing, because nobody waited for it. Evaluations are no part of it: they are jobs of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from tasks.core.units import format_duration
from tasks.runs.folder import RunFolder
from tasks.runs.lives import Life, read_lives
from tasks.runs.record import OVER, Attempt, RunRecord

Activity = Literal[
    "training",
    "waiting for data",
    "first batch",
    "validating",
    "saving",
    "starting",
    "restarting",
    "queued",
    "stalled",
]
OF_PHASE: Mapping[str, Activity] = {
    "start": "starting",
    "first_batch": "first batch",
    "step": "training",
    "validate": "validating",
    "checkpoint": "saving",
    "end": "saving",
}
"""What a rank does with its time in each phase."""
UNWANTED = frozenset({"failed", "cancelled"})
"""Outcomes of an attempt after which only a person goes on."""


class Goodput:
    """The seconds that a training has spent on each activity."""

    def __init__(self) -> None:
        self.spent: dict[Activity, float] = dict.fromkeys(get_args(Activity), 0.0)

    @property
    def total_s(self) -> float:
        return sum(self.spent.values())

    def share(self, activity: Activity = "training") -> float:
        """Return the part of all the time that went into the activity."""
        return self.spent[activity] / max(self.total_s, 1e-9)

    def move(self, seconds: float, activity: Activity) -> None:
        """Count seconds of training as those of another activity."""
        moved = max(min(seconds, self.spent["training"]), 0.0)
        self.spent["training"] -= moved
        self.spent[activity] += moved

    def __str__(self) -> str:
        """Return `goodput 84 %: training 10 min, validating 2 min`, with what took a hundredth at least."""
        least = self.total_s / 100
        parts = [f"{name} {format_duration(spent)}" for name, spent in self.spent.items() if spent > least]
        return f"goodput {self.share():.0%}: {', '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """Return `share`, and the `seconds` of every activity that took any."""
        seconds = {name: round(spent, 2) for name, spent in self.spent.items() if spent > 0}
        return {"share": round(self.share(), 4), "seconds": seconds}


def goodput_of(run: RunFolder, record: RunRecord, now: float | None = None) -> Goodput | None:
    """Return the goodput of a run up to its last sign of life, or up to `now` for a training that is alive;
    None before its ranks began."""
    until = None if record.state in OVER else now
    stands_still = record.state == "stalled"
    lives = [read_lives(run, number, until, stands_still) for number in range(1, len(record.attempts) + 1)]
    return add_up(record.attempts, lives)


def add_up(attempts: Sequence[Attempt], lives: Sequence[Sequence[Life]]) -> Goodput | None:
    """Return where the time of attempts went, of which `lives` holds those of each; None without any."""
    found, before = Goodput(), None
    is_wanted = False
    for attempt, of_attempt in zip(attempts, lives, strict=True):
        if not of_attempt:
            continue
        begins: Activity = "starting" if before is None else "restarting"
        asked = attempt.started if attempt.asked is None else attempt.asked
        if before is not None and is_wanted:
            found.spent["restarting"] += max(asked - before.ended, 0.0)
        found.spent[begins if attempt.slurm is None else "queued"] += max(attempt.started - asked, 0.0)
        at = attempt.started
        for life in of_attempt:
            begins = "starting" if before is None else "restarting"
            found.spent[begins] += max(life.began - at, 0.0)
            _add(found, life, begins)
            if before is not None:
                found.move(_lost_s(before, life), "restarting")
            before, at = life, life.ended
        is_wanted = attempt.outcome not in UNWANTED
    return found if before is not None else None


def _add(found: Goodput, life: Life, begins: Activity) -> None:
    """Add the time of one life; what is not its own phases' is its begin."""
    for phase, spent in life.spent.items():
        activity = OF_PHASE.get(phase, "saving")
        stalled = min(life.stalled.get(phase, 0.0), spent)
        found.spent["stalled"] += stalled
        found.spent[begins if activity == "starting" else activity] += spent - stalled
    found.move(min(life.data_wait_s, life.steps_s), "waiting for data")
    found.spent[begins] += max(life.ended - life.began - sum(life.spent.values()), 0.0)


def _lost_s(before: Life, life: Life) -> float:
    """The seconds of those steps of a life that were lost, as the next one does them again."""
    made = before.step - before.first_step
    lost = before.step - max(life.first_step, before.first_step)
    return max(before.steps_s - before.data_wait_s, 0.0) * lost / made if made > 0 < lost else 0.0
