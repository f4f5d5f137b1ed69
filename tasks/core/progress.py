"""How long work tells its watcher how far it is.

The library calls it as often as it likes; whoever shows it (a terminal, Prefect) limits the rate.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Takes the work done so far, the whole, and what is counted, such as `samples`."""


def silent(done: int, total: int, note: str) -> None:
    """The watcher that looks away."""
