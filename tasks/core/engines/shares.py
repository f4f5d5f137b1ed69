"""Bookkeeping of a map over jobs: what is done, and what becomes of a share given the evidence.

Nothing here does I/O: rows, the queue's answer and the time come in, decisions go out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.core.engines.local import TRIES

GRACE_S = 10.0
"""How long the last rows of a job may take to appear once the queue does not have it any more."""
State = Literal["waiting", "running", "spent", "lost"]


@dataclass
class Share:
    """One share and the attempt at it that is under way."""

    number: int
    left: int
    """Items without a result."""
    attempt: int = 0
    job: str = ""
    begun: set[int] = field(default_factory=set)
    """Items in the hand of this attempt."""
    ended: str | None = None
    results: int = 0
    """Of this attempt."""
    fruitless: int = 0
    """Attempts in a row that ended without a result."""
    gone_since: float | None = None

    def begin(self, job: str) -> None:
        self.job = job
        self.begun, self.ended, self.results, self.gone_since = set(), None, 0, None

    def hear(self, row: dict[str, Any]) -> None:
        """Take what this attempt's job said; results are counted by the tally."""
        if "begun" in row:
            self.begun.add(row["begun"])
        elif "item" in row:
            self.begun.discard(row["item"])
            self.results += 1
        elif "end" in row:
            self.ended = row["end"]

    def state(self, queued: str | None, now: float) -> State:
        """`queued` is the job's state in the queue, None when the queue does not have it.

        A job that ran out of time and said so is spent; one that vanished with work left is lost.
        """
        if self.ended == "time":
            return "spent"
        if queued is not None:
            self.gone_since = None
            return "waiting" if queued == "PENDING" else "running"
        if self.gone_since is None:
            self.gone_since = now
        return "lost" if now - self.gone_since >= GRACE_S else "running"


class Tally:
    """Which items are done, and how often an item or a share was lost."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._done = bytearray(count)
        self._losses: dict[int, int] = {}

    def is_new(self, item: int) -> bool:
        """Count a result; False for one that has been counted, as of an item that was done twice."""
        if self._done[item]:
            return False
        self._done[item] = True
        self._losses.pop(item, None)
        self.left -= 1
        return True

    def is_hopeless(self, share: Share) -> bool:
        """Count the end of a share's attempt; True once TRIES of them ended alike.

        Either over the same item, or one after the other without any result.
        """
        share.fruitless = 0 if share.results else share.fruitless + 1
        in_hand = [item for item in share.begun if not self._done[item]]
        for item in in_hand:
            self._losses[item] = self._losses.get(item, 0) + 1
        return share.fruitless >= TRIES or any(self._losses[item] >= TRIES for item in in_hand)
