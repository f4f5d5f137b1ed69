"""Progress, rate and remaining time of a stage: `1,040/1,500 steps · loss 1.48 · 9.6/s · 48 s left`.

The rate is measured over the last minute, so that it follows a stage that slows down and does not count work
from before a resume. A stalled stage shows no rate and no remaining time, and its work from before the stall
does not count when it continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tasks.core.units import format_duration, number

WINDOW_S = 60.0
LEAST_S = 2.0
"""The shortest time over which a rate is shown; over less it is too noisy."""
INTERVALS = 3.0
"""A stage is stalled if it has not advanced for WINDOW_S and for this many of its usual intervals."""


def how_far(done: int, total: int, note: str) -> str:
    """`5,000/20,000 samples`, or `5,000 samples listed` where the total is not known yet."""
    if total:
        return f"{done:,}/{total:,} {note}"
    return f"{done:,} {note}" if done else note


class Pace:
    """The progress of one stage, as passed to `update`; `clock` returns seconds that never decrease."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._total = 0
        self._text = ""
        self._is_stalled = False

    def update(self, done: int, total: int, note: str, detail: str = "", is_stalled: bool = False) -> None:
        """Record the progress of the stage; `detail` is one more figure, such as `loss 1.48`. Without
        `is_stalled`, only the rate shows whether the stage is stalled."""
        now, stood_still = self._clock(), self._stands_still()
        self._is_stalled = is_stalled
        if (self._seen and done < self._seen[-1][1]) or total != self._total:  # the unit has changed
            self._seen.clear()
        self._total = total
        self._text = " · ".join(part for part in (how_far(done, total, note), detail) if part)
        if self._seen and self._seen[-1][1] == done:
            return
        if stood_still:
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()

    def stop(self) -> None:
        """Show neither rate nor remaining time any more, as the stage is left before its end."""
        self._is_stalled = True

    @property
    def percent(self) -> float:
        """0 to 100; 0 where the total is not known."""
        return min(100.0, 100.0 * self._seen[-1][1] / self._total) if self._seen and self._total else 0.0

    def __str__(self) -> str:
        rate = self._rate()
        if rate is None:
            return self._text
        left_s = (self._total - self._seen[-1][1]) / rate
        left = f" · {format_duration(left_s)} left" if self._total and left_s > 0 else ""
        return f"{self._text} · {number(rate, 2)}/s{left}"

    def _rate(self) -> float | None:
        """Return the rate per second; None while it is not known."""
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
