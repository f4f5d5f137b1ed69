"""Prefect's temporary server, for a terminal without one, apart from the terminal's signals.

Prefect starts it in the process group of the command. There Ctrl-C ends it first, and Prefect then tries for
minutes to tell a dead server that the flow was interrupted. In a session of its own it lives until the
command has ended, and then ends as well, however that was.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import subprocess

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def start() -> None:
    """Start it, unless it runs; Prefect's clients find it by themselves and stop it at the end."""
    from prefect.server.api.server import SubprocessASGIServer

    honest = subprocess.Popen
    apart = functools.partial(honest, start_new_session=True, preexec_fn=_end_with_starter)
    subprocess.Popen = apart  # type: ignore[assignment,misc]  # Prefect has no option for it
    try:
        SubprocessASGIServer().start()
    finally:
        subprocess.Popen = honest  # type: ignore[misc]


def _end_with_starter() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
