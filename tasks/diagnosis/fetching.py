"""Finds a rank that loads its data itself, between its steps, and for how much of its time.

torch and Hugging Face's Trainer load without workers by default. /proc does not show then whether a rank
loads or trains, so its stack is looked at now and then, and the times that it was loading are counted.
"""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor

from tasks.diagnosis.causes.signs import own_call
from tasks.diagnosis.observation.stacks import Stacks, stacks_of

FETCH = "torch/utils/data/_utils/fetch.py"
"""On the stack of a rank only where it has no workers."""
GLANCES = 12
SOON_S, LATER_S = 3.0, 30.0
"""The time between two glances until there are GLANCES of them, and from then on; each costs a tenth of a
second of a core."""
MOST_FAILURES = 3
"""After so many glances that were refused, it looks no more."""


class FetchWatch:
    """The last glances at the stack of a rank that takes steps."""

    def __init__(self) -> None:
        self._calls: deque[str | None] = deque(maxlen=GLANCES)
        self._pending: Future[Stacks | None] | None = None
        self._next = 0.0
        self._failures = 0

    def look(self, pid: int, now: float) -> None:
        """Take the glance that is done, and start the next one where it is due."""
        if self._pending is not None:
            if not self._pending.done():
                return
            pending, self._pending = self._pending, None
            self._take(None if pending.exception() is not None else pending.result())
        if now >= self._next and self._failures < MOST_FAILURES:
            self._next = now + (SOON_S if len(self._calls) < GLANCES else LATER_S)
            pool = ThreadPoolExecutor(1, thread_name_prefix="glance")
            self._pending = pool.submit(lambda: stacks_of([pid])[0].get(pid))
            pool.shutdown(wait=False)

    def _take(self, seen: Stacks | None) -> None:
        if seen is None:
            self._failures += 1
            return
        self._failures = 0
        fetches = any(FETCH in call for call in seen.main)
        self._calls.append((own_call(seen.main) or seen.main[0]) if fetches else None)

    @property
    def share(self) -> float:
        """The share of the glances at which the rank loaded data; 0 until there are enough of them."""
        return sum(call is not None for call in self._calls) / GLANCES if len(self._calls) == GLANCES else 0.0

    @property
    def call(self) -> str:
        """The call in which it was most often then."""
        return Counter(call for call in self._calls if call is not None).most_common(1)[0][0]
