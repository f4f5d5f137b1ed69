"""Does what an agent does beside its training; a failure here never ends a training that is sound.

A shared file system answers with an error now and then, and anybody may leave a file that nobody expects. So
a failure is logged, and the chore is tried again after pauses that double. Only where nothing trains any more
does an error that lasts for GIVE_UP_S, or a full disk, end the attempt, which then records the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tasks.core.files import is_disk_full

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
GIVE_UP_S = 1800.0
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trouble:
    """A chore that fails: since when, and when it is tried again, by the clock that only runs forward."""

    since: float
    next_try: float
    pause_s: float


class Chores:
    """The chores of one agent."""

    def __init__(self) -> None:
        self.trains = False
        """Whether a training is going on, which no chore may end."""
        self._troubles: dict[str, Trouble] = {}

    def do(self, what: str, work: Callable[[], Result], otherwise: Result) -> Result:
        """Return the result of `work`; `otherwise` where it fails, or is not due again after a failure."""
        trouble = self._troubles.get(what)
        if trouble is not None and time.monotonic() < trouble.next_try:
            return otherwise
        try:
            result = work()
        except Exception as error:
            now = time.monotonic()
            since = now if trouble is None else trouble.since
            if not self.trains and (is_disk_full(error) or now - since >= GIVE_UP_S):
                raise
            pause_s = PAUSE_S if trouble is None else min(2 * trouble.pause_s, LONGEST_PAUSE_S)
            self._troubles[what] = Trouble(since, now + pause_s, pause_s)
            sentence = f"{what}: {type(error).__name__}: {error}; trying again in {pause_s:.0f} s"
            logger.warning(sentence, exc_info=trouble is None)
            return otherwise
        self._troubles.pop(what, None)
        return result
