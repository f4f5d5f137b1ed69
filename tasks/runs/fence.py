"""The right of a training to write into its run: it ends with its agent's lease.

An agent that is suspended for longer than a lease holds cannot end its training, whose ranks then go on
beside those of the run's next agent. So each rank looks itself, before it says what it does and before it
writes a checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache

from tasks.core.lock import holder_of, is_lost
from tasks.core.process import Identity
from tasks.runs.environment import agent_of
from tasks.runs.folder import RunFolder


def leave_if_taken_over(run: RunFolder, last_act: Callable[[], None] = lambda: None) -> None:
    """End this process at once, after `last_act` and writing nothing more, where its agent has lost the run's
    lease; harmless in a process that no agent holds."""
    agent = _agent()
    if agent is None or not is_lost(run.lease, agent):
        return
    sys.stderr.write(f"error: the run was taken over by {holder_of(run.lease) or 'another start'}\n")
    sys.stderr.flush()
    last_act()
    os._exit(1)


@cache
def _agent() -> Identity | None:
    return agent_of(os.environ)
