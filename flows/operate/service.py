"""Processes that live as long as this one. They have a session of their own, so that Ctrl-C reaches this
process first; they end with it, however it ends, and are started again while somebody watches them.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from tasks.core import screen
from tasks.core.process import child_environment, signal_at_starters_end

LOOPBACK = "127.0.0.1"
END_S = 5.0
"""A process may take this long to end before it is killed."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0
"""After a process has lived so long, the pauses begin with the first one again."""
LAST_LINES = 15


def start_service(
    command: Sequence[str],
    settings: Mapping[str, str],
    output: IO[bytes] | int,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process with these environment variables; it gets SIGTERM when this thread ends."""
    return subprocess.Popen(
        command,
        env={**child_environment(), **settings},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        start_new_session=True,
        preexec_fn=partial(signal_at_starters_end, signal.SIGTERM),
    )


def start_server(listener: socket.socket, output: IO[bytes] | int, *words: str) -> subprocess.Popen[bytes]:
    """Start a Prefect server on a listening socket. It writes to `output`, and ends with this thread."""
    command = [sys.executable, "-m", "flows.operate.serve", str(listener.fileno()), *words]
    return start_service(command, {}, output, [listener.fileno()])


class TemporaryServer:
    """A Prefect server for this process alone, on a free port of this machine.

    It needs some seconds to come up, so it is started before this process imports Prefect, although only the
    import shows whether the user has named another server.
    """

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the server)
        with socket.create_server((LOOPBACK, 0)) as listener:
            self.url = f"http://{LOOPBACK}:{listener.getsockname()[1]}/api"
            self.process = start_server(listener, self._output, "temporary")

    def printed(self) -> str:
        """Return what the server has printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def end(self) -> None:
        """End the server."""
        end(self.process)


def end(process: subprocess.Popen[bytes], patience_s: float = END_S) -> None:
    """End a process by SIGTERM, and by SIGKILL if that takes too long."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass
class Service:
    """A process that is started again when it ends, after pauses that grow.

    `start` gives it a pipe for its output, which goes to standard error while it `is_shown`; `last_lines`
    holds the end of it.
    """

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    is_shown: bool = True
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def __post_init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._due: float | None = None
        self._begin()

    def _begin(self) -> None:
        self.process, self._began = self.start(), time.monotonic()
        name = f"{self.name}-output"
        threading.Thread(target=self._read, args=[self.process], name=name, daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            if text:
                self.last_lines.append(text)
            if self.is_shown:
                with suppress(OSError):  # if the terminal is gone, the process must not wait for it
                    screen.erase()
                    sys.stderr.write(text + "\n")

    def look(self) -> None:
        """Start the process again when it has ended and its pause is over."""
        code, now = self.process.poll(), time.monotonic()
        if code is None:
            return
        if self._due is None:
            if now - self._began > STEADY_S:
                self._pause_s = FIRST_PAUSE_S
            killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
            how = killed or f"ended with exit code {code}"
            screen.warn(f"the {self.name} {how}; it starts again in {self._pause_s:.0f} s")
            self._due, self._pause_s = now + self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        elif now >= self._due:
            self._due = None
            self._begin()
