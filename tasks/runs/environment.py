"""What the processes of one training share: their environment, where its ranks meet, and the right to write.

**Environment.** Threads are pinned, because their number decides the order of floating-point sums: it belongs
to the run and not to the machine. Nothing in the environment reaches a tracker or the ranks of another
training, and it names the agent.

**Meeting.** Ranks find each other by a TCP store, which the first rank serves. Its agent has opened the port
before and hands it over as a descriptor: a number alone could be taken by another program meanwhile.

**Fence.** A training may write into its run as long as its agent holds the lease. An agent that is suspended
for longer cannot end its training, whose ranks then go on beside those of the run's next agent. So each rank
checks the lease itself, before it reports what it does and before it writes a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from tasks.core.lock import holder_of, is_lost
from tasks.core.process import Identity
from tasks.core.schema import Train
from tasks.runs.folder import RunFolder

HIDDEN_PREFIXES = ("WANDB_", "PREFECT_", "TORCHELASTIC_", "PET_", "PMI_", "OMPI_COMM_")
"""A training process talks to no server, so it gets neither their addresses nor their keys. Nor does it see
how a launcher above its agent has numbered that."""
OF_SLURM = "SLURM_"
OF_JOB = ("SLURM_JOB_", "SLURM_CONF", "SLURM_CLUSTER", "SLURM_RESTART_COUNT")
"""What describes the job as a whole. The rest numbers the agent's own task, which trainers and libraries that
look for Slurm would take for the rank's."""
AGENT = "TARMAC_AGENT"
"""Names the agent of a training to all that the training starts, in whatever session or group."""
MEETING = "TARMAC_MEETING"
STORE = "TARMAC_STORE"
"""The descriptor of the socket at which the first rank serves the store."""
RECORDED = "2000"
"""How many exchanges of a rank torch's flight recorder keeps, of which NCCL writes down the last ones where
it gives up."""
LOOPBACK = "127.0.0.1"
RANKS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *(MEETING, STORE),
)
"""They may describe whatever starts Tarmac as one of several processes; a rank gets them from its agent."""


def rank_environment(train: Train, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `base` (this process's environment) with `train.threads` pinned and trackers hidden."""
    inherited = os.environ if base is None else base
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(HIDDEN_PREFIXES)
        and name not in RANKS
        and not (name.startswith(OF_SLURM) and not name.startswith(OF_JOB))
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
    """Return the variable that names the agent of a training."""
    return {AGENT: json.dumps(agent.to_json())}


def agent_of(environment: Mapping[str, str]) -> Identity | None:
    """Return the agent of the training that a process of this environment belongs to.

    None where the process belongs to no training, or the variable holds no agent.
    """
    try:
        return Identity.from_json(json.loads(environment[AGENT]))
    except (KeyError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class RankPlace:
    """The number of a rank among `count`, of which each machine has `per_node`, and the address and port of
    the first rank's store; `store` is the descriptor of that port, for the first rank alone."""

    rank: int
    count: int
    per_node: int
    address: str
    port: int
    store: int | None = None


def interface_to(address: str) -> str | None:
    """Return the name of the network interface by which this machine reaches an address; None where the
    system does not tell."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # nothing is sent
        own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(one.address == own for one in addresses):
                return str(name)
    return None


@dataclass(frozen=True)
class Meeting:
    """The folder in which the ranks of one start of a training leave notes for the agent: which has failed
    first, and where NCCL gives up an exchange, what it recorded (`nccl_<rank>`)."""

    path: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Meeting | None:
        """Return the meeting of a rank; None for a rank that is alone, or was started by torchrun."""
        path = environment.get(MEETING)
        return None if path is None else cls(Path(path))

    def prepare(self) -> None:
        """Make the folder anew: files that an earlier start left in it would be taken for this one's."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def environment(self, place: RankPlace) -> dict[str, str]:
        """Return torchrun's variables for a rank.

        Ranks of one machine talk by the loopback interface: by its own name a host is often found at no
        address. Those of several use the interface by which the first node is reached, unless the user has
        named another; NCCL looks for faster ones by itself.
        """
        found = {
            MEETING: str(self.path),
            "RANK": str(place.rank),
            "LOCAL_RANK": str(place.rank % place.per_node),
            "WORLD_SIZE": str(place.count),
            "LOCAL_WORLD_SIZE": str(place.per_node),
            "GROUP_RANK": str(place.rank // place.per_node),
            "MASTER_ADDR": place.address,
            "MASTER_PORT": str(place.port),
            "TORCH_FR_DUMP_TEMP_FILE": str(self.path / "nccl_"),
            "TORCH_FR_BUFFER_SIZE": RECORDED,
            "TORCH_FR_DUMP_ON_TIMEOUT": "1",
        }
        if place.store is not None:
            found[STORE] = str(place.store)
        if place.count == place.per_node:
            return {**found, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := interface_to(place.address)):
            found["GLOO_SOCKET_IFNAME"] = interface
        return found

    def has_failed(self, rank: int) -> None:
        """Leave the rank's number, unless another has failed before: the others fail because of it."""
        with suppress(OSError), self._failed.open("x", encoding="ascii") as file:
            file.write(str(rank))

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first; None where none had the time to report it."""
        try:
            return int(self._failed.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    @property
    def _failed(self) -> Path:
        return self.path / "failed"


def leave_if_taken_over(run: RunFolder, last_act: Callable[[], None] = lambda: None) -> None:
    """End this process at once, after `last_act`, where its agent has lost the run's lease.

    Nothing more is written then. The call is harmless in a process that no agent holds.
    """
    agent = _own_agent()
    if agent is None or not is_lost(run.lease, agent):
        return
    sys.stderr.write(f"error: the run was taken over by {holder_of(run.lease) or 'another start'}\n")
    sys.stderr.flush()
    last_act()
    os._exit(1)


@cache
def _own_agent() -> Identity | None:
    return agent_of(os.environ)
