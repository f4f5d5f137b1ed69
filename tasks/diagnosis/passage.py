"""Passes a command's output on, unchanged and at once, with a copy for a listener.

Where this process has a terminal, the command gets one as well, so that bars are drawn and lines arrive one
by one; elsewhere standard output and standard error stay two pipes. A relay, which is this file run in a
session of its own, carries the output. It ends only when the command closes its output: where this process is
killed, the command goes on and its output still arrives.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import suppress

RELAY = os.path.join("tasks", "diagnosis", "passage.py")
PART = 1 << 16
PATIENCE_S = 1.0
"""How long the relay waits for a listener that does not read; after that only the listener loses output."""


class Passage:
    """The command writes to `out` and `err`. Its output goes to descriptor `target` and to 2, and a thread of
    this process passes a copy to `hear`."""

    def __init__(self, hear: Callable[[bytes], None], target: int = 1) -> None:
        self._hear = hear
        self._inner: int | None = None
        if os.isatty(target) and os.isatty(2):
            self._inner, writer = os.openpty()
            ways = [(self._inner, target)]
            self.out = self.err = writer
            _leave_lines_alone(writer)
            self._fit()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGWINCH, lambda *_: self._fit())
        else:
            (out, self.out), (err, self.err) = os.pipe(), os.pipe()
            ways = [(out, target), (err, 2)]
        self._heard, copy = os.pipe()
        sources = [source for source, _ in ways]
        self._relay = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(copy), *(f"{a}:{b}" for a, b in ways)],
            stdin=subprocess.DEVNULL,
            pass_fds=(copy, *sources),
            start_new_session=True,
        )
        for descriptor in (copy, *sources):
            if descriptor != self._inner:
                os.close(descriptor)
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        """Close the command's ends in this process, and listen to the output."""
        for descriptor in {self.out, self.err}:
            os.close(descriptor)
        self._thread.start()

    def finish(self, timeout_s: float = 5.0) -> None:
        """Wait for the rest of the output, but not for long where a process left behind holds its end."""
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._relay.wait()
        if self._inner is not None:
            signal.signal(signal.SIGWINCH, signal.SIG_DFL)
            os.close(self._inner)

    def _listen(self) -> None:
        while part := os.read(self._heard, PART):
            self._hear(part)
        os.close(self._heard)

    def _fit(self) -> None:
        """Give the command's terminal the size of this one."""
        with suppress(OSError):
            size = fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8)
            if self._inner is not None:
                fcntl.ioctl(self._inner, termios.TIOCSWINSZ, size)


def _leave_lines_alone(descriptor: int) -> None:
    """Leave \\n as it is: the outer terminal turns it into \\r\\n, which must not happen twice."""
    settings = termios.tcgetattr(descriptor)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def watched_command(pid: int) -> int | None:
    """Return the command whose output a process passes on, found by the relay beside it, or None."""
    from tasks.diagnosis.observation import (
        procfs,  # a late import, as the relay runs this file without any library
    )

    children = [one for one in procfs.family(pid)[1:] if (seen := procfs.stat(one)) and seen.parent == pid]
    relays = [one for one in children if any(word.endswith(RELAY) for word in procfs.argv(one))]
    return next((one for one in children if one not in relays), None) if relays else None


class _PassageListener:
    """The reader of the copy, at the other end of a pipe. It may be killed, or stop reading."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._patience_s = PATIENCE_S
        self._lock = threading.Lock()

    def send(self, part: bytes) -> None:
        left = memoryview(part)
        with self._lock:
            while left and select.select([], [self._descriptor], [], self._patience_s)[1]:
                self._patience_s = PATIENCE_S
                try:
                    left = left[os.write(self._descriptor, left) :]
                except OSError:  # killed
                    return
            if left:
                self._patience_s = 0.0


def _carry(source: int, target: int, listener: _PassageListener) -> None:
    """Copy from `source` to `target` until the command has closed its end."""
    while True:
        try:
            part = os.read(source, PART)
        except OSError:  # a terminal whose other end is closed
            return
        if not part:
            return
        with suppress(OSError):  # nobody reads any more; the training goes on
            left = memoryview(part)
            while left:
                left = left[os.write(target, left) :]
        listener.send(part)


def _relay(copy: str, *ways: str) -> None:
    """Run the relay: `copy` is the listener's descriptor, a way is SOURCE:TARGET."""
    listener = _PassageListener(int(copy))
    threads = [threading.Thread(target=_carry, args=(*map(int, way.split(":")), listener)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _relay(*sys.argv[1:])
