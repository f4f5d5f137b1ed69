"""Terminal output: a line per stage, and a progress bar while it runs.

On a terminal a running stage shows a bar that vanishes when it ends; elsewhere (a log, a pipe) it prints a
plain line every PLAIN_INTERVAL_S seconds, and one that has not changed ever more rarely. Everything goes to
standard error, so that standard output stays free for results. The library reports progress as often as it
likes through a `Progress` from its caller; the code that shows it (this module, Prefect) limits the rate.
Warnings go through `logging`, so that they can also be forwarded: by a child to its starter, by a flow to its
run's log.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tasks.core.pace import how_far
from tasks.core.units import duration, format_duration

if TYPE_CHECKING:  # rich takes a while to import, and the library needs none of it
    from rich.console import Console

Progress = Callable[[int, int, str], None]
"""A function of the work done so far, the total (0 if unknown), and what is counted, such as `samples`."""

PLAIN_INTERVAL_S = 10.0
LONGEST_INTERVAL_S = 600.0
"""A line that has not changed is printed after pauses that double, up to this."""
QUIET_S = 2.0
"""A stage that ends sooner prints no plain line before its summary."""
WIDTH = 62
logger = logging.getLogger(__name__)


def no_progress(done: int, total: int, note: str) -> None:
    """A `Progress` that shows nothing."""


def console() -> Console:
    """Return the console for messages, which prints plain text if standard error is not a terminal."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


@contextmanager
def running(stage: str) -> Iterator[Progress]:
    """Show the progress of a stage while the block runs."""
    screen = console()
    with _bar(screen, stage) if screen.is_terminal else _lines(screen, stage) as show:
        yield show


def finished(stage: str, summary: str, seconds: float, mark: str = "✓") -> None:
    """Print the final line of a stage: what it did, and how long it took."""
    console().print(f"{mark} {stage:<9} {summary:<{WIDTH}} {format_duration(seconds):>7}", markup=False)


def passing(text: str, *, elsewhere: bool = False) -> None:
    """Show at once what a command is about to do: on a terminal by a line that the next one overwrites, and
    `elsewhere` by a line of its own. It imports nothing."""
    if sys.stderr.isatty():
        sys.stderr.write(f"  {text}…\r")
    elif elsewhere:
        sys.stderr.write(f"  {text}…\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """Print a warning for the user, and log it."""
    logger.warning("%s", text)


class Printer(logging.Handler):
    """Prints warnings as lines that begin with `!`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        console().print(f"! {record.getMessage()}", markup=False)


logger.addHandler(Printer())


@contextmanager
def _bar(screen: Console, stage: str) -> Iterator[Progress]:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("  {task.description:<9}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, TimeElapsedColumn(), console=screen, transient=True) as bars:
        task = bars.add_task(stage, total=None, note="")

        def show(done: int, total: int, note: str) -> None:
            bars.update(task, completed=done, total=total or None, note=how_far(done, total, note))

        yield show


@contextmanager
def _lines(screen: Console, stage: str) -> Iterator[Progress]:
    printed, since, pause_s = "", 0.0, PLAIN_INTERVAL_S
    last = time.monotonic() - PLAIN_INTERVAL_S + QUIET_S

    def show(done: int, total: int, note: str) -> None:
        nonlocal printed, since, pause_s, last
        now, line = time.monotonic(), how_far(done, total, note)
        if now - last < (pause_s if line == printed else PLAIN_INTERVAL_S):
            return
        if line == printed:
            pause_s, age = min(2 * pause_s, LONGEST_INTERVAL_S), f" (for {duration(now - since)})"
        else:
            pause_s, age, printed, since = PLAIN_INTERVAL_S, "", line, now
        last = now
        screen.print(f"  {stage:<9} {line}{age}", markup=False)

    yield show
