"""The way of a command's output to where this process's own goes: unchanged, at once, and overheard.

Where this is a terminal, the command gets a terminal as well, so that bars are drawn and lines come one by
one; elsewhere standard output and standard error stay two pipes. A relay, this file run in a session of its
own, carries the output. It ends when the command closes its output and not before: where this process is
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

RELAY = os.path.join("tasks", "diagnosis", "passage.py")
PART = 1 << 16
PATIENCE_S = 1.0
"""For a listener that does not listen: longer, and what it has not heard is lost to it alone."""


class Passage:
    """`out` and `err` are for the command. What it writes there goes on to descriptor `target` and to 2,
    and then to `hear`, which a thread of this process calls."""

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
        self._heard, told = os.pipe()
        sources = [source for source, _ in ways]
        self._relay = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(told), *(f"{a}:{b}" for a, b in ways)],
            stdin=subprocess.DEVNULL,
            pass_fds=(told, *sources),
            start_new_session=True,
        )
        for descriptor in (told, *sources):
            if descriptor != self._inner:
                os.close(descriptor)
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        """Close the command's ends here, and listen to what comes."""
        for descriptor in {self.out, self.err}:
            os.close(descriptor)
        self._thread.start()

    def finish(self, timeout_s: float = 5.0) -> None:
        """Wait for the last of it; not for long where a process that the command left holds its end."""
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
        try:
            size = fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8)
            if self._inner is not None:
                fcntl.ioctl(self._inner, termios.TIOCSWINSZ, size)
        except OSError:
            return


def _leave_lines_alone(descriptor: int) -> None:
    """The outer terminal turns \\n into \\r\\n; done twice it would not be the command's own output."""
    settings = termios.tcgetattr(descriptor)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def watched_command(pid: int) -> int | None:
    """The command whose output a process passes on, by the relay beside it; None where it passes on none."""
    from tasks.diagnosis.observation import procfs  # late, as the relay runs this file without any library

    children = [one for one in procfs.family(pid)[1:] if (seen := procfs.stat(one)) and seen.parent == pid]
    relays = [one for one in children if any(word.endswith(RELAY) for word in procfs.argv(one))]
    return next((one for one in children if one not in relays), None) if relays else None


class _PassageListener:
    """Who hears a copy, at the other end of a pipe: it may be killed, or stop to listen."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._patience_s = PATIENCE_S
        self._lock = threading.Lock()

    def tell(self, part: bytes) -> None:
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
    """From `source` to `target` until the command has closed its end."""
    while True:
        try:
            part = os.read(source, PART)
        except OSError:  # a terminal whose other end is closed
            return
        if not part:
            return
        try:
            left = memoryview(part)
            while left:
                left = left[os.write(target, left) :]
        except OSError:  # nobody reads any more; the training goes on
            pass
        listener.tell(part)


def _relay(told: str, *ways: str) -> None:
    """The relay: `told` is the listener's descriptor, a way is SOURCE:TARGET."""
    listener = _PassageListener(int(told))
    threads = [threading.Thread(target=_carry, args=(*map(int, way.split(":")), listener)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _relay(*sys.argv[1:])
