"""Commands on a terminal: what they write there, and when."""

from __future__ import annotations

import itertools
import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TerminalSession:
    """What a command has written to its terminal: the seconds since its start and the bytes of each piece,
    when it ended, and its exit code."""

    pieces: list[tuple[float, bytes]]
    seconds: float
    code: int
    cpu_s: float

    @property
    def first_s(self) -> float:
        """When the first piece came; the whole time where nothing came."""
        return self.pieces[0][0] if self.pieces else self.seconds

    @property
    def longest_gap_s(self) -> float:
        """The longest time without a sign of life."""
        times = [0.0, *(at for at, _ in self.pieces), self.seconds]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    @property
    def text(self) -> str:
        return b"".join(piece for _, piece in self.pieces).decode(errors="replace")


def on_terminal(
    words: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None, timeout_s: float = 300
) -> TerminalSession:
    """Run `tarmac` with these words on a terminal of its own, in a folder."""
    ours, its = pty.openpty()
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *words],
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    pieces = []
    with suppress(OSError):  # Linux ends the reading of a terminal that nobody has open with EIO
        while piece := os.read(ours, 65536):
            pieces.append((time.monotonic() - began, piece))
            if pieces[-1][0] > timeout_s:
                process.kill()
    os.close(ours)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return TerminalSession(
        pieces, time.monotonic() - began, process.returncode, used.ru_utime + used.ru_stime
    )
