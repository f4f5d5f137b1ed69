"""How the ranks of a training ended, and which of them is the cause: the others end because of it.

Pure: from what the agent saw of each process, and from which rank said first that it had failed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_TAIL = 40
TRACKER = re.compile(
    r"(?m)^.*resource_tracker: There appear to be .*\n(?:[ \t]+warnings\.warn\(.*(?:\n|\Z))?"
)
"""What multiprocessing prints about semaphores after the end of a process that was killed."""


@dataclass(frozen=True)
class RankEnd:
    """The end of one rank's process.

    `exit_code` is negative for a signal. `was_ended` where the agent ended it, and `was_stopped` where it did
    that because the process was stopped, as by SIGSTOP, and answered nobody.
    """

    rank: int
    exit_code: int
    was_ended: bool = False
    was_stopped: bool = False

    @property
    def signal_name(self) -> str | None:
        """`SIGKILL` and the like; None when the process ended by itself."""
        if self.exit_code >= 0:
            return None
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


def causes_of(ends: Sequence[RankEnd], first_failed: int | None) -> Sequence[RankEnd]:
    """The ranks that brought the end about, one at least.

    In this order, as each explains what follows: one that was stopped; one that a signal killed which is not
    the agent's; the first that said that it failed; one that the agent had to end while others left it; all
    that failed.
    """
    by_themselves = [end for end in ends if not end.was_ended]
    named = [end for end in by_themselves if end.rank == first_failed and end.exit_code != 0]
    for found in (
        [end for end in ends if end.was_stopped],
        [end for end in by_themselves if end.exit_code < 0],
        named,
        [end for end in ends if end.was_ended] if by_themselves else [],
        [end for end in ends if end.exit_code != 0],
    ):
        if found:
            return found
    return ends[:1]


def stood_still(end: RankEnd, ends: Sequence[RankEnd]) -> str | None:
    """In what way a rank kept the others waiting until the agent ended it; None where it did not, as where
    the agent ended all of them."""
    if end.was_stopped:
        return "it was stopped, as by SIGSTOP, and the others waited for it"
    if end.was_ended and any(not other.was_ended for other in ends):
        return "it did not come to the next exchange of all ranks, and did not end when the others did"
    return None


def tail_of(log: Path, lines: int = LOG_TAIL) -> list[str]:
    """The log's last lines, without those that Python's own resource tracker adds after the end of a process;
    empty without a log."""
    if not log.exists():
        return []
    text = TRACKER.sub("", log.read_text(encoding="utf-8", errors="replace"))
    return text.splitlines()[-lines:]
