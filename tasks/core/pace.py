"""How far a stage is, how fast it goes and what is left: `1,040/1,500 steps · loss 1.48 · 9.6/s · 48 s left`.

The rate is that of the last minute, so that the figures follow a stage that slows down, and do not count what
was done before it was resumed. A stage that stands still has no rate and so promises no end, and what it did
before does not count when it goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tasks.core.units import format_duration, number

WINDOW_S = 60.0
LEAST_S = 2.0
"""A rate over less time says little."""
INTERVALS = 3.0
"""A stage stands still when it has not grown for WINDOW_S, and for so many times what it takes to grow."""


def how_far(done: int, total: int, note: str) -> str:
    """`5,000/20,000 samples`, or `5,000 samples listed` where the total is not known yet."""
    if total:
        return f"{done:,}/{total:,} {note}"
    return f"{done:,} {note}" if done else note


class Pace:
    """The progress of one stage, as `heard` is told of it; `clock` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._total = 0
        self._says = ""
        self._is_stalled = False

    def heard(self, done: int, total: int, note: str, detail: str = "", is_stalled: bool = False) -> None:
        """Take down how far the stage is; `detail` is one more figure, such as `loss 1.48`. Nothing but its
        own rate shows of a stage without `is_stalled` whether it stands still."""
        now, stood_still = self._clock(), self._stands_still()
        self._is_stalled = is_stalled
        if (self._seen and done < self._seen[-1][1]) or total != self._total:  # it counts something else now
            self._seen.clear()
        self._total = total
        self._says = " · ".join(part for part in (how_far(done, total, note), detail) if part)
        if self._seen and self._seen[-1][1] == done:
            return
        if stood_still:
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def percent(self) -> float:
        """0 to 100; 0 where the total is not known."""
        return min(100.0, 100.0 * self._seen[-1][1] / self._total) if self._seen and self._total else 0.0

    def __str__(self) -> str:
        rate = self._rate()
        if rate is None:
            return self._says
        left_s = (self._total - self._seen[-1][1]) / rate
        left = f" · {format_duration(left_s)} left" if self._total and left_s > 0 else ""
        return f"{self._says} · {number(rate, 2)}/s{left}"

    def _rate(self) -> float | None:
        """Per second; None before there is one."""
        if len(self._seen) < 2 or self._stands_still():
            return None
        (began, first), (_, last) = self._seen[0], self._seen[-1]
        took_s = self._clock() - began
        return (last - first) / took_s if took_s >= LEAST_S and last > first else None

    def _stands_still(self) -> bool:
        if self._is_stalled or len(self._seen) < 2:
            return self._is_stalled
        last_s = self._seen[-1][0]
        interval_s = (last_s - self._seen[0][0]) / (len(self._seen) - 1)
        return self._clock() - last_s > max(WINDOW_S, INTERVALS * interval_s)
