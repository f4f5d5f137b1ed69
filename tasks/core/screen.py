"""Terminal output: a line per stage, a progress bar while it runs, and a clock while nothing else is shown.

On a terminal a running stage shows a bar that vanishes when it ends; elsewhere (a log, a pipe) it prints a
plain line every PLAIN_INTERVAL_S seconds, and one that has not changed ever more rarely. Everything goes to
standard error, so that standard output stays free for results. The library reports progress as often as it
likes through a `Progress` from its caller; the code that shows it (this module, Prefect) limits the rate.
Warnings go through `logging`, so that they can also be forwarded: by a child to its starter, by a flow to its
run's log.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from tasks.core.pace import how_far
from tasks.core.units import SPACE, duration, format_duration

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
BAR_AFTER_S = 0.2
"""A stage that ends sooner draws no bar."""
TICK_S = 1.0
"""On a terminal the clock of what is waited for moves this often."""
ERASE = "\r\x1b[K"
"""What erases the terminal's line that the cursor is in."""
logger = logging.getLogger(__name__)


def no_progress(done: int, total: int, note: str) -> None:
    """A `Progress` that shows nothing."""


def console() -> Console:
    """Return the console for messages, which prints plain text if standard error is not a terminal; that of
    the bar that is shown, if any, so that lines come above it and not into it."""
    return _of_bars[-1] if _of_bars else _new_console()


def _new_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


_of_bars: list[Console] = []


@contextmanager
def running(stage: str) -> Iterator[Progress]:
    """Show the progress of a stage while the block runs."""
    with _bar(stage) if _is_terminal() else _lines(stage) as show:
        yield show


def _is_terminal() -> bool:
    """Whether standard error is a terminal, as rich sees it; it is asked only where a variable may decide."""
    if any(map(os.environ.get, ("FORCE_COLOR", "TTY_COMPATIBLE"))):
        return _new_console().is_terminal
    return sys.stderr.isatty()


def finished(stage: str, summary: str, seconds: float, mark: str = "✓") -> None:
    """Print the final line of a stage: what it did, and how long it took."""
    erase()
    console().print(f"{mark} {stage:<9} {summary:<{WIDTH}} {format_duration(seconds):>7}", markup=False)


def passing(text: str, *, elsewhere: bool = False) -> None:
    """Show at once what a command is about to do: on a terminal with a clock, until something else is shown,
    and `elsewhere` by a line of its own. It imports nothing."""
    if not _clock.show(text) and elsewhere:
        sys.stderr.write(f"  {text}…\n")
        sys.stderr.flush()


def erase() -> None:
    """Make way for a line that is printed now; call it before each that does not come from this module."""
    _clock.erase()


def end_passing() -> None:
    """Show no clock any more: the command is done, or another program writes to the terminal from now on."""
    _clock.end()


class _Clock:
    """The last line of the terminal while nothing else is shown: what is waited for, and for how long.

    A thread moves it, so that a command that imports or reads for seconds does not look dead.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._text, self._since, self._resumes = "", 0.0, 0.0
        self._is_drawn = False
        self._bars = 0
        self._ended: threading.Event | None = None

    def show(self, text: str) -> bool:
        """Begin with another text; False where standard error is no terminal."""
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return False
        with self._lock:
            self._text, self._since, self._resumes = text, time.monotonic(), 0.0
            if self._ended is None:
                self._ended = threading.Event()
                threading.Thread(target=self._tick, args=[self._ended], name="clock", daemon=True).start()
            self._draw()
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave the terminal to a progress bar while the block runs."""
        with self._lock:
            self.erase()
            self._bars += 1
        try:
            yield
        finally:
            with self._lock:
                self._bars -= 1
                self._text, self._since = "working", time.monotonic()

    def erase(self) -> None:
        with self._lock:
            if self._is_drawn:
                self._write(ERASE)
                self._is_drawn = False
            self._resumes = time.monotonic() + TICK_S

    def end(self) -> None:
        with self._lock:
            if self._ended is not None:
                self._ended.set()
                self._ended = None
            self.erase()

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(TICK_S):
            with self._lock:
                if not ended.is_set() and time.monotonic() >= self._resumes:
                    self._draw()

    def _draw(self) -> None:
        if self._bars:
            return
        waited_s = time.monotonic() - self._since
        whole = f"{waited_s:.0f}{SPACE}s" if waited_s < 60 else duration(waited_s)
        clock = f" {whole}" if waited_s >= TICK_S else ""
        room = max(shutil.get_terminal_size().columns - len(clock) - 4, 8)
        text = self._text if len(self._text) <= room else f"{self._text[: room - 1]}"
        self._write(f"{ERASE}  {text}…{clock}\r")
        self._is_drawn = True

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone, or standard error is closed
            sys.stderr.write(text)
            sys.stderr.flush()


_clock = _Clock()


def warn(text: str) -> None:
    """Print a warning for the user, and log it."""
    logger.warning("%s", text)


class Printer(logging.Handler):
    """Prints warnings as lines that begin with `!`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        erase()
        console().print(f"! {record.getMessage()}", markup=False)


logger.addHandler(Printer())


@contextmanager
def _bar(stage: str) -> Iterator[Progress]:
    bar = _LateBar(stage)
    try:
        yield bar.show
    finally:
        bar.close()


class _LateBar:
    """The bar of a stage, which a thread draws once the stage has lasted BAR_AFTER_S: rich takes as long to
    import as a short stage, during which the clock is shown."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._lock = threading.RLock()
        self._shown = ExitStack()
        self._update: Progress = no_progress
        self._latest: tuple[int, int, str] = (0, 0, "")
        self._is_over = False
        self._timer = threading.Timer(BAR_AFTER_S, self._open)
        self._timer.daemon = True
        self._timer.start()

    def show(self, done: int, total: int, note: str) -> None:
        with self._lock:
            self._latest = done, total, note
            self._update(done, total, note)

    def _open(self) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("  {task.description:<9}"), BarColumn(), TextColumn("{task.fields[note]}"))
        screen = _new_console()
        bars = Bars(*columns, TimeElapsedColumn(), console=screen, transient=True)
        task = bars.add_task(self._stage, total=None, note="")

        def update(done: int, total: int, note: str) -> None:
            bars.update(task, completed=done, total=total or None, note=how_far(done, total, note))

        with self._lock:
            if self._is_over:
                return
            update(*self._latest)
            self._update = update
            self._shown.enter_context(_clock.held())
            self._shown.enter_context(bars)
            _of_bars.append(screen)
            self._shown.callback(_of_bars.remove, screen)

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            self._shown.close()
        self._timer.join(TICK_S)  # an import would hold up the end of the interpreter, or break in it


@contextmanager
def _lines(stage: str) -> Iterator[Progress]:
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
        sys.stderr.write(f"  {stage:<9} {line}{age}\n")
        sys.stderr.flush()

    yield show
