"""The ranks of a training as their agent holds them, on one machine or on several nodes.

Ranks wait for each other in every step. When one has ended, the others get a moment to report what they
noticed of it, and are ended; so are all when one was stopped and does not go on, and when a node is lost. A
rank is asked to end by the file `stop` and ended by SIGKILL: it ignores SIGTERM, because Slurm sends that to
a whole job.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence

from tasks.core.engines.slurm_queue import command_on, other_nodes
from tasks.core.errors import TarmacError
from tasks.core.files import read_json
from tasks.core.process import Identity
from tasks.core.schema import Config
from tasks.models.recipes import options_type
from tasks.runs import record
from tasks.runs.environment import LOOPBACK, Meeting
from tasks.runs.folder import RunFolder
from tasks.supervision.ranks.node_ranks import (
    GRACE_S,
    LOOK_S,
    NodeRanks,
    RankState,
    Rendezvous,
    end_process,
    held_by,
    start_ranks,
)
from tasks.supervision.ranks.other_node import GREETING_S, OtherNode, keeper_command
from tasks.supervision.ranks.success import RankEnd

FOLLOW_S = 15.0
"""How long the other ranks may take to end by themselves after one that failed."""
LEAVE_S = 120.0
"""The same after a rank that reached the end."""
STOPPED_S = 20.0
"""How long one of several ranks may be stopped (SIGSTOP) before the training is ended."""
END_S = 10.0
"""How long ranks on other nodes may take to be ended by force."""


class RunningRanks:
    """The running ranks of one training."""

    def __init__(
        self,
        here: NodeRanks,
        others: Sequence[OtherNode],
        meeting: Meeting,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_end` is called before living ranks are ended because of another."""
        self._here = here
        self._nodes: Sequence[NodeRanks | OtherNode] = (here, *others)
        self._meeting = meeting
        self._ended: set[int] = set()
        self._stopped_since: dict[int, float] = {}
        self._deadline: float | None = None
        self._before_end = before_end

    @property
    def identities(self) -> list[Identity]:
        """The processes on this machine, in the order of the ranks, from the first on."""
        return list(self._here.identities.values())

    @property
    def first_failed(self) -> int | None:
        """The rank that was the first to report a failure."""
        return self._meeting.first_failed

    def wait(self, timeout_s: float) -> Sequence[RankEnd] | None:
        """Return how they ended, as soon as all have.

        None after `timeout_s`, or a little later where some of several ranks must be ended because of
        another.
        """
        deadline = time.monotonic() + timeout_s
        while (states := self._look())[0].exit_code is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        if len(states) > 1:
            self._end_followers(states)
            states = self._look()
        if _alive(states):
            return None
        for node in self._nodes:
            node.end_what_they_left()
        return [
            RankEnd(rank, state.exit_code or 0, rank in self._ended, self._is_held(rank), state.lost_node)
            for rank, state in sorted(states.items())
        ]

    def kill(self) -> None:
        """End them and what they have started at once; returns without waiting."""
        for node in self._nodes:
            node.kill()

    def end(self) -> None:
        """End them and what they have started by force."""
        alive = _alive(self._look())
        self._ended.update(alive)
        for node in reversed(self._nodes):  # those elsewhere take longer
            node.end()
        deadline = time.monotonic() + (GRACE_S if len(self._nodes) == 1 else END_S)
        while _alive(self._look()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _look(self) -> dict[int, RankState]:
        return {rank: state for node in self._nodes for rank, state in node.look().items()}

    def _end_followers(self, states: Mapping[int, RankState]) -> None:
        """End the ranks that are left when their time after another's end is over, or when one is stopped."""
        now, alive = time.monotonic(), _alive(states)
        codes = [state.exit_code for state in states.values() if state.exit_code is not None]
        if codes and self._deadline is None:
            self._deadline = now + (FOLLOW_S if any(codes) else LEAVE_S)
        for rank in alive:
            if states[rank].is_stopped:
                self._stopped_since.setdefault(rank, now)
            else:
                self._stopped_since.pop(rank, None)
        is_late = self._deadline is not None and now > self._deadline
        if alive and (is_late or any(map(self._is_held, alive))):
            self._before_end()
            self.end()

    def _is_held(self, rank: int) -> bool:
        """Whether it has been stopped for too long."""
        since = self._stopped_since.get(rank)
        return since is not None and time.monotonic() - since > STOPPED_S


def start_training(
    run: RunFolder,
    number: int,
    config: Config,
    agent: Identity,
    held: Sequence[int] = (),
    before_end: Callable[[], None] = lambda: None,
) -> RunningRanks:
    """Start the training of attempt `number`, on all nodes that the config asks for.

    Its ranks inherit the descriptors `held`, and end when `agent` does not hold the run's lease any more.
    `before_end` is called before living ranks are ended because of another. TarmacError where a further node
    does not start its part.
    """
    assert config.train is not None
    engine, meeting = config.engine.train, Meeting(run.meeting(number))
    is_external = options_type(config.train.recipe).is_external
    each, count = (1, 1) if is_external else (engine.per_node, engine.processes)
    if count == 1:
        alone = start_ranks(run, number, config, agent, Rendezvous(range(1), 1, 0), held)
        return RunningRanks(alone, (), meeting)
    meeting.prepare()
    others = _others(run, number, config) if count > each else []
    try:
        address = others[0].address if others else LOOPBACK
        with socket.create_server((LOOPBACK if not others else "", 0)) as listener:
            port = listener.getsockname()[1]
            for place, node in enumerate(others, 1):
                node.start(Rendezvous(range(place * each, (place + 1) * each), count, port), agent)
            meets = Rendezvous(range(each), count, port, address, listener)
            here = start_ranks(run, number, config, agent, meets, held)
    except BaseException:
        for node in others:
            node.kill()
        raise
    return RunningRanks(here, others, meeting, before_end)


def _others(run: RunFolder, number: int, config: Config) -> list[OtherNode]:
    """The keepers on the further nodes of this Slurm job, which have reported."""
    engine, names = config.engine.for_train(), other_nodes()
    if len(names) + 1 != engine.nodes:
        raise TarmacError(
            f"engine.train.nodes: {engine.nodes}, and its Slurm job has {len(names) + 1}; start the run again"
        )
    nodes: list[OtherNode] = []
    try:
        for name in names:
            command = [*command_on(name, engine.cpus), *keeper_command(run, number)]
            nodes.append(OtherNode(name, command, run.logs(number) / f"node_{name}.log"))
        deadline = time.monotonic() + GREETING_S
        for node in nodes:
            node.greet(deadline)
    except BaseException:
        for node in nodes:
            node.kill()
        raise
    return nodes


def _alive(states: Mapping[int, RankState]) -> list[int]:
    return [rank for rank, state in states.items() if state.exit_code is None]


def set_logs_aside(run: RunFolder, number: int, restarts: int) -> None:
    """Keep the logs of ended ranks as `rank_0.1.log`, as they do not show how the ranks after them end."""
    for log in list(run.logs(number).glob("rank_*.log")):
        if log.stem.removeprefix("rank_").isdigit():
            log.rename(log.with_suffix(f".{restarts}.log"))


def end_survivors(run: RunFolder) -> list[Identity]:
    """End every training process that earlier agents left alive, and return them."""
    left = survivors(run)
    for identity in left:
        end_process(identity)
    deadline = time.monotonic() + GRACE_S
    while any(identity.is_alive() for identity in left) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def survivors(run: RunFolder) -> list[Identity]:
    """Return every process on this machine of the trainings of all attempts: the ranks, and what they have
    started, even if the rank is dead."""
    recorded = (read_json(path) for path in sorted(run.attempts.glob("*/rank_*.json")))
    ranks = [rank for rank in map(Identity.from_json, recorded) if rank.is_alive()]
    attempts = record.load_record(run).attempts
    left = held_by(lambda agent: agent.is_visible and any(attempt.is_of(agent) for attempt in attempts))
    return list(dict.fromkeys([*ranks, *left]))
