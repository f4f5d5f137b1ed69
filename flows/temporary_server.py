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
import tempfile

import httpx
from prefect.settings import get_current_settings

from tasks.core.errors import TarmacError, UsageError

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def start() -> None:
    """Start it, unless it runs; Prefect's clients find it by themselves and stop it at the end.

    UsageError where Prefect's folder cannot be written, TarmacError when it does not come up.
    """
    _check_home()
    from prefect.server.api.server import SubprocessASGIServer

    honest = subprocess.Popen
    apart = functools.partial(honest, start_new_session=True, preexec_fn=_end_with_starter)
    subprocess.Popen = apart  # type: ignore[assignment,misc]  # Prefect has no option for it
    try:
        SubprocessASGIServer().start()
    except (RuntimeError, httpx.HTTPError) as error:
        why = " ".join(str(error).split())
        fix = "or start one with `prefect server start` and name it in PREFECT_API_URL"
        raise TarmacError(f"Prefect's temporary server does not come up ({why}); try again, {fix}") from None
    finally:
        subprocess.Popen = honest  # type: ignore[misc]


def _check_home() -> None:
    """Without a folder for its database the server would try for minutes."""
    home = get_current_settings().home
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        raise UsageError(
            f"PREFECT_HOME: {home} cannot be written ({error.strerror}); set it to a folder that can"
        ) from None


def _end_with_starter() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
