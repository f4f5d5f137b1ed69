"""The sentinel `stop`: the order to a run to end at its next step, who gave it, and why.

Anybody may write it, also by hand (`touch RUN/stop`): then its text is the reason, and its author is not
known. Ranks obey its presence alone.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tasks.core.files import write_atomic
from tasks.runs.checkpoints import list_checkpoints, read_meta
from tasks.runs.folder import RunFolder

Who = Literal["user", "page", "signal", "agent", "rule", "somebody"]
"""`user`: a command; `page`: the flow run's page, or whoever ended the flow run; `signal`: a signal to the
agent, such as at its time limit; `agent`: a new start, for which the agent at work makes room; `rule`: one of
`evaluate.stop_when`; `somebody`: a file that does not name its author."""


GRACE_S = 45.0
"""Below submitit's warning before a time limit."""


@dataclass(frozen=True)
class Stop:
    """`by` is a person and a process; `at` is in Unix seconds. Both are empty where they are not known."""

    who: Who
    reason: str
    by: str = ""
    at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def grace_s(run: RunFolder) -> float:
    """Return how long a training may take to obey before it is ended: GRACE_S, or longer where its
    checkpoints take long to write, of which one may be on its way and one more follows."""
    found = list_checkpoints(run)[-1:]
    meta = read_meta(found[0]) if found else None
    took_s = 0.0 if meta is None or meta.seconds is None else meta.seconds
    return max(GRACE_S, GRACE_S / 2 + 2.5 * took_s)


def order_stop(run: RunFolder, who: Who, reason: str) -> None:
    """Order the run to stop; an order that is there already stays, as its ranks may be obeying it. Only a
    person's takes the place of a rule's, which ends the training and not its evaluations."""
    standing = read_stop_order(run)
    if standing is not None and not (standing.who == "rule" and who in ("user", "page")):
        return
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # as in a container, where a process may have no name
        user = str(os.getuid())
    by = f"{user} on {socket.gethostname()}, process {os.getpid()}"
    write_atomic(run.stop, json.dumps(Stop(who, reason, by, time.time()).to_json()) + "\n")


def read_stop_order(run: RunFolder) -> Stop | None:
    """Return the order to the run; None without one."""
    try:
        text = run.stop.read_text(encoding="utf-8", errors="replace").strip()
        written = run.stop.stat().st_mtime
    except FileNotFoundError:
        return None
    try:
        return Stop(**json.loads(text))
    except (ValueError, TypeError):
        return Stop("somebody", text or "the file `stop` was found", at=written)
