"""What a person sees in the terminal: a line a stage, a bar while it runs.

On a terminal a running stage shows a bar that vanishes when it ends; elsewhere (a log, a pipe) it shows a
plain line now and then. Everything goes to standard error, so that standard output stays free for results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from tasks.core.progress import Progress
from tasks.core.units import format_duration

PLAIN_INTERVAL_S = 10.0
QUIET_S = 2.0
WIDTH = 62


def console() -> Console:
    """The console of messages; plain text where there is no terminal."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


@contextmanager
def running(stage: str) -> Iterator[Progress]:
    """Show how far a stage is while the block runs."""
    screen = console()
    with _bar(screen, stage) if screen.is_terminal else _lines(screen, stage) as show:
        yield show


def finished(stage: str, summary: str, seconds: float, mark: str = "✓") -> None:
    """The line that stays: what the stage did, and how long it took."""
    console().print(f"{mark} {stage:<9} {summary:<{WIDTH}} {format_duration(seconds):>7}", markup=False)


def passing(text: str) -> None:
    """A line for whoever waits at a terminal, which the next one overwrites; nothing elsewhere."""
    shown = console()
    if shown.is_terminal:
        shown.file.write(f"  {text}…\r")
        shown.file.flush()


def warn(text: str) -> None:
    """A line that a person should read, whatever else goes on."""
    console().print(f"! {text}", markup=False)


@contextmanager
def _bar(screen: Console, stage: str) -> Iterator[Progress]:
    columns = (TextColumn("  {task.description:<9}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, TimeElapsedColumn(), console=screen, transient=True) as bars:
        task = bars.add_task(stage, total=None, note="")

        def show(done: int, total: int, note: str) -> None:
            bars.update(task, completed=done, total=total or None, note=_counted(done, total, note))

        yield show


@contextmanager
def _lines(screen: Console, stage: str) -> Iterator[Progress]:
    last = time.monotonic() - PLAIN_INTERVAL_S + QUIET_S

    def show(done: int, total: int, note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_INTERVAL_S:
            last = time.monotonic()
            screen.print(f"  {stage:<9} {_counted(done, total, note)}", markup=False)

    yield show


def _counted(done: int, total: int, note: str) -> str:
    """`5,000/20,000 samples`, or `5,000 samples listed` where nobody knows yet how many there will be."""
    if total:
        return f"{done:,}/{total:,} {note}"
    return f"{done:,} {note}" if done else note
