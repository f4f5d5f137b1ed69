"""Flows that only wait or die: what the automations do to a run does not depend on what the run does."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from prefect import flow, tags

from flows.lifecycle import tarmac_flow


@tarmac_flow("sleeper")
def sleeper(seconds: float = 0, dies: bool = False, removes: Path | None = None) -> None:
    """Wait under the lifecycle of Tarmac's flows, then end well, or by a signal that nobody can catch."""
    time.sleep(seconds)
    if removes is not None:
        removes.rmdir()
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


@flow(name="foreign")
def foreign(seconds: float) -> None:
    """Wait, as a flow that knows nothing of Tarmac."""
    time.sleep(seconds)


if __name__ == "__main__":
    kind, seconds, *marks = sys.argv[1:]
    with tags(*marks):
        {"sleeper": sleeper, "foreign": foreign}[kind](float(seconds))
