"""The ranks of a training on this machine: started behind a gate, recorded, looked at, ended.

Each rank is a session of its own. Its standard input is a pipe that only its starter holds: when that dies in
whatever way, the pipe closes and the rank ends itself. Nothing runs before its identity is on disk: a gate of
one line waits for a byte and only then becomes the rank (exec keeps pid and start time), so a later agent
always knows which process to look for.

A process that a rank has started, such as another trainer, may outlive it in any session or group. It is
recognised by its environment, which names the agent of its attempt.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tasks.core.files import write_json
from tasks.core.process import Identity
from tasks.core.schema import Config
from tasks.models.recipes import options_type
from tasks.runs.environment import LOOPBACK, Meeting, RankPlace, agent_of, naming, rank_environment
from tasks.runs.folder import RunFolder

GATE = "import os, sys\nif os.read(0, 1): os.execv(sys.argv[1], sys.argv[1:])"
LOOK_S = 0.05
GRACE_S = 5.0
"""How long a process that was killed may take to be gone."""


@dataclass(frozen=True)
class RankState:
    """What is seen of a rank: its exit code once it has ended (negative for a signal), and before whether it
    is stopped, as by SIGSTOP. `lost_node` names its machine where nothing can be seen of it any more."""

    exit_code: int | None = None
    is_stopped: bool = False
    lost_node: str | None = None


class NodeRanks:
    """The running ranks of one training on this machine."""

    def __init__(self, processes: Mapping[int, subprocess.Popen[bytes]], agent: Identity) -> None:
        """`processes` by the number of the rank; `agent` is the agent that their environment names."""
        self._processes, self._agent = processes, agent
        self.identities = {rank: Identity.of(process.pid) for rank, process in processes.items()}

    def look(self) -> dict[int, RankState]:
        """Return what is seen of each; the groups of those that have ended are killed."""
        return {rank: self._look_at(rank) for rank in self._processes}

    def end(self) -> None:
        """End them and what they have started by force; a worker that is stopped would outlive its rank.

        Only their Popen may reap them: a Popen whose child somebody else has reaped reports exit code 0.
        """
        alive = [rank for rank in self._processes if not self._has_ended(rank)]
        self._kill_groups(alive)
        deadline = time.monotonic() + GRACE_S
        while not all(map(self._has_ended, alive)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """End them and what they have started at once; returns without waiting."""
        self._kill_groups(self._processes)
        self.end_what_they_left()

    def end_what_they_left(self) -> None:
        """End what outlives them; only once all of them have ended."""
        for left in held_by(lambda agent: agent == self._agent):
            end_process(left)

    def _look_at(self, rank: int) -> RankState:
        if self._has_ended(rank):
            return RankState(self._processes[rank].returncode)
        return RankState(is_stopped=_is_stopped(self._processes[rank].pid))

    def _has_ended(self, rank: int) -> bool:
        """Whether it has ended; its group is killed before it is reaped, while its number is nobody
        else's."""
        process = self._processes[rank]
        if process.returncode is None:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self._kill_groups([rank])
            process.wait()
        return True

    def _kill_groups(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if self._processes[rank].returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._processes[rank].pid, signal.SIGKILL)


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks meet: the numbers of the machine's own ranks, the count of all, and the address and
    port of the first rank's store. `socket` is that port itself, on the first rank's machine."""

    ranks: range
    count: int
    port: int
    address: str = LOOPBACK
    socket: socket.socket | None = None

    def place(self, rank: int) -> RankPlace:
        """Return the place of one of the machine's ranks."""
        store = self.socket.fileno() if self.socket is not None and rank == 0 else None
        return RankPlace(rank, self.count, len(self.ranks), self.address, self.port, store)


def rank_command(run: RunFolder, config: Config) -> list[str]:
    """The command line of a rank's process."""
    assert config.train is not None
    kind = "external" if options_type(config.train.recipe).is_external else "rank"
    return [sys.executable, "-m", f"tasks.training.{kind}", str(run.path)]


def start_ranks(
    run: RunFolder,
    number: int,
    config: Config,
    agent: Identity,
    meets: Rendezvous,
    held: Sequence[int] = (),
) -> NodeRanks:
    """Start this machine's ranks of attempt `number`.

    They inherit the descriptors `held`, and end when `agent` does not hold the run's lease any more.
    """
    assert config.train is not None
    meeting = Meeting(run.meeting(number))
    environment = {**rank_environment(config.train), **naming(agent)}
    if config.engine.train.ranks is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    run.logs(number).mkdir(parents=True, exist_ok=True)
    processes: dict[int, subprocess.Popen[bytes]] = {}
    for rank in meets.ranks:
        place = meets.place(rank)
        own = meeting.environment(place) if meets.count > 1 else {}
        inherited = held if place.store is None else [*held, place.store]
        with run.rank_log(number, rank).open("ab") as output:
            processes[rank] = subprocess.Popen(
                [sys.executable, "-S", "-c", GATE, *rank_command(run, config)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**environment, **own},
                pass_fds=inherited,
                start_new_session=True,
            )
    ranks = NodeRanks(processes, agent)
    for rank, identity in ranks.identities.items():
        write_json(run.rank_identity(number, rank), identity.to_json())
    for process in processes.values():
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, which looking at it will show
            process.stdin.write(b"g")
            process.stdin.flush()
    return ranks


def held_by(is_wanted: Callable[[Identity], bool]) -> list[Identity]:
    """Return every process on this machine whose environment names an agent that `is_wanted`.

    A pid that was given again does no harm: an agent is identified by its boot and its start as well.
    """

    def is_held(process: psutil.Process) -> bool:
        agent = agent_of(process.environ())
        return agent is not None and is_wanted(agent)

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if is_held(process):
                identity = Identity.of(process.pid)
                if is_held(process):  # and no other process had that number meanwhile
                    found.append(identity)
    return found


def end_process(identity: Identity) -> None:
    """Kill the process, if it still lives."""
    if identity.is_alive():
        with suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
