"""The sentinel `stop`: the order to a run to end at its next step, who gave it, and why.

Anybody may write it, also by hand (`touch RUN/stop`): then its text is the reason, and who wrote it is not
known. Ranks obey its presence alone.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.core.files import write_atomic
from tasks.runs.folder import RunFolder

Who = Literal["user", "page", "signal", "agent", "somebody"]
"""`user`: a command; `page`: the flow run's page, or whoever ended the flow run; `signal`: a signal to the
agent, such as at its time limit; `agent`: a new start, for which the agent at work makes room; `somebody`: a
file that says no more."""


@dataclass(frozen=True)
class Stop:
    """`by` is a person and a process; `at` is in Unix seconds. Both are empty where nothing tells."""

    who: Who
    reason: str
    by: str = ""
    at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def order_stop(run: RunFolder, who: Who, reason: str) -> None:
    """Order the run to stop; an order that is there already stays, as its ranks may be obeying it."""
    by = f"{_user()} on {socket.gethostname()}, process {os.getpid()}"
    if not run.stop.exists():
        write_atomic(run.stop, json.dumps(Stop(who, reason, by, time.time()).to_json()) + "\n")


def read_stop_order(run: RunFolder) -> Stop | None:
    """The order to the run; None without one."""
    try:
        text = run.stop.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    try:
        return Stop(**json.loads(text))
    except (ValueError, TypeError):
        return Stop("somebody", text or "the file `stop` was found", at=_written(run.stop))


def _user() -> str:
    """The name that belongs to this process; its number where it has none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
