"""`attempts/<n>/lives.jsonl`: each start of a training's ranks within an attempt, from its begin to its end.

The agent appends a line when the ranks have ended, and one for each standstill before that; where the agent
was killed too, the next one does, from the last sign of life. So what an attempt did with its time is known
although nobody kept a clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from tasks.core.files import append_line, read_json, read_lines
from tasks.core.process import Identity
from tasks.runs import phases
from tasks.runs.folder import RunFolder


@dataclass(frozen=True)
class Life:
    """One life of the first rank's process: from `began` to `ended` (Unix seconds), from `first_step` to
    `step`.

    `spent` holds its seconds by phase, `stalled` those, by phase, in which its agent saw it stand still, and
    `data_wait_s` those others in which it waited for data between steps. `reason` is how it ended, empty
    where it reached the end.
    """

    pid: int
    began: float
    ended: float
    first_step: int
    step: int
    spent: Mapping[str, float]
    data_wait_s: float = 0.0
    stalled: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def steps_s(self) -> float:
        """The seconds in which it made steps, or waited for their data."""
        return max(self.spent.get("step", 0.0) - self.stalled.get("step", 0.0), 0.0)


def read_lives(
    run: RunFolder, attempt: int, now: float | None = None, stands_still: bool = False
) -> list[Life]:
    """Return the lives of an attempt, oldest first, with the present one up to its last sign, or up to `now`
    where that is given: the time since then is stalled if it `stands_still`."""
    found, present = recorded_lives(run, attempt), _present(run, attempt, now, stands_still)
    return found if present is None or _is_known(present, found) else [*found, present]


def end_life(
    run: RunFolder,
    attempt: int,
    ended: float,
    reason: str,
    stalled: Mapping[str, float],
    step: int | None = None,
    stalled_wait_s: float = 0.0,
) -> None:
    """Record that the attempt's present life ended at `ended`, unless that is recorded, or its first rank
    gave no sign; `step` is how far it came, unless given that of the last sign. `stalled_wait_s` is the part
    of its stalls in which it waited for data, which counts as stalled alone."""
    life = _present(run, attempt, ended)
    if life is None or _is_known(life, recorded_lives(run, attempt)):
        return
    reached = life.step if step is None else step
    waited_s = round(max(life.data_wait_s - stalled_wait_s, 0.0), 3)
    ended_so = {"step": reached, "reason": reason, "stalled": dict(stalled), "data_wait_s": waited_s}
    line = {**asdict(life), **ended_so}
    append_line(run.lives(attempt), json.dumps(line, ensure_ascii=False))


def add_stall(run: RunFolder, attempt: int, pid: int, phase: str, seconds: float) -> None:
    """Record a standstill, which is over, of the present life, whose first rank is the process `pid`."""
    line = {"stalled_pid": pid, "phase": phase, "seconds": round(seconds, 3)}
    append_line(run.lives(attempt), json.dumps(line))


def _stalled(run: RunFolder, attempt: int, pid: int) -> dict[str, float]:
    """The seconds, by phase, that were recorded as standstills of this process."""
    found: dict[str, float] = {}
    for line in read_lines(run.lives(attempt))[0]:
        if isinstance(line, dict) and line.get("stalled_pid") == pid:
            found[line["phase"]] = found.get(line["phase"], 0.0) + line["seconds"]
    return found


def recorded_lives(run: RunFolder, attempt: int) -> list[Life]:
    """Return the lives of an attempt that have ended, oldest first."""
    found = []
    for line in read_lines(run.lives(attempt))[0]:
        try:
            found.append(Life(**line))
        except TypeError:
            continue
    return found


def _present(run: RunFolder, attempt: int, now: float | None, stands_still: bool = False) -> Life | None:
    """The life whose first rank the attempt has on record, from its last sign; None without one."""
    phase = phases.read_phase(run.phase())
    try:
        rank = Identity.from_json(read_json(run.rank_identity(attempt)))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if phase is None or phase.pid != rank.pid or phase.at < rank.started - 1:
        return None
    ended = phase.at if now is None else max(now, phase.at)
    silent_s = ended - phase.at
    spent = {**phase.spent, phase.phase: phase.spent.get(phase.phase, 0.0) + silent_s}
    stalled = _stalled(run, attempt, rank.pid)
    if stands_still:
        stalled[phase.phase] = stalled.get(phase.phase, 0.0) + silent_s
    steps = (phase.first_step, phase.step)
    return Life(rank.pid, rank.started, ended, *steps, spent, phase.data_wait_s, stalled)


def _is_known(life: Life, known: list[Life]) -> bool:
    return any((one.pid, one.began) == (life.pid, life.began) for one in known)
