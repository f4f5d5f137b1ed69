"""The environment a training process gets: its threads pinned, nothing that reaches a tracker or other ranks.

The thread count decides the order of floating-point sums, so it belongs to the run and not to the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from tasks.core.process import Identity
from tasks.core.schema import Train
from tasks.runs import meeting

HIDDEN_PREFIXES = ("WANDB_", "PREFECT_")
"""A training process talks to no server, so it gets neither their addresses nor their keys."""
AGENT = "TARMAC_AGENT"
"""Names the agent of a training to all that the training starts, in whatever session or group."""
RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    meeting.VARIABLE,
)
"""Of whatever starts Tarmac as one of several processes; a rank is told by its agent."""


def rank_environment(train: Train, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (this process's environment) with `train.threads` pinned and trackers hidden."""
    inherited = os.environ if base is None else base
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(HIDDEN_PREFIXES) and name not in RANKS
    }
    count = str(train.threads)
    return {
        **kept,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def naming(agent: Identity) -> dict[str, str]:
    """The variable that says which agent holds a training."""
    return {AGENT: json.dumps(agent.to_json())}


def agent_of(environment: Mapping[str, str]) -> Identity | None:
    """The agent that holds the training to which a process of this environment belongs; None where none
    does, or what stands there is of no agent."""
    try:
        return Identity.from_json(json.loads(environment[AGENT]))
    except (KeyError, ValueError, TypeError):
        return None
