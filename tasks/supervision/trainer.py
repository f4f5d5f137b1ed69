"""The ranks of a training as their agent holds them: started behind a gate, recorded, ended together.

Each rank is a session of its own. Its standard input is a pipe that only the agent holds: when the agent dies
in whatever way, the pipe closes and the rank ends itself. Nothing runs before its identity is on disk: a gate
of one line waits for a byte from the agent and only then becomes the rank (exec keeps pid and start time), so
a later agent always knows which process to look for.

Ranks wait for each other in every step. When one has ended, the others get a moment to report what they
noticed of it, and are ended; so are all when one was stopped and does not go on. A rank is asked to end by
the file `stop` and ended by SIGKILL: it ignores SIGTERM, because Slurm sends that to a whole job.

A process that a rank has started, such as another trainer, may outlive it in any session or group. It is
recognised by its environment, which names the agent of its attempt, and is ended when all ranks have ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import psutil

from tasks.core.files import read_json, write_json
from tasks.core.process import Identity
from tasks.core.schema import Config
from tasks.models.recipes import options_type
from tasks.runs import record
from tasks.runs.environment import Meeting, agent_of, naming, rank_environment
from tasks.runs.folder import RunFolder
from tasks.supervision.success import RankEnd

GATE = "import os, sys\nif os.read(0, 1): os.execv(sys.argv[1], sys.argv[1:])"
LOOK_S = 0.05
GRACE_S = 5.0
"""How long a process that was killed may take to be gone."""
FOLLOW_S = 15.0
"""How long the other ranks may take to end by themselves after one that failed."""
LEAVE_S = 120.0
"""The same after a rank that reached the end."""
STOPPED_S = 20.0
"""How long one of several ranks may be stopped (SIGSTOP) before the training is ended."""


def rank_command(run: RunFolder, config: Config) -> list[str]:
    """The command line of a rank's process."""
    assert config.train is not None
    kind = "external" if options_type(config.train.recipe).is_external else "rank"
    return [sys.executable, "-m", f"tasks.training.{kind}", str(run.path)]


class RunningRanks:
    """The running processes of one training."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[bytes]], meeting: Meeting, agent: Identity
    ) -> None:
        """`agent` is the agent that their environment names."""
        self._processes = processes
        self._agent = agent
        self._meeting = meeting
        self.identities = [Identity.of(process.pid) for process in processes]
        self._ended: set[int] = set()
        self._stopped_since: dict[int, float] = {}
        self._deadline: float | None = None

    @property
    def first_failed(self) -> int | None:
        """The rank that was the first to report a failure."""
        return self._meeting.first_failed

    def wait(self, timeout_s: float) -> Sequence[RankEnd] | None:
        """Return how they ended, as soon as all have.

        None after `timeout_s`, or a little later where some of several ranks must be ended because of
        another.
        """
        self._wait(self._alive()[:1], timeout_s)
        if len(self._processes) > 1:
            self._end_followers()
        if self._alive():
            return None
        self._end_what_they_left()
        return [
            RankEnd(rank, process.returncode, rank in self._ended, self._is_held(rank))
            for rank, process in enumerate(self._processes)
        ]

    def kill(self) -> None:
        """End them and what they have started at once; returns without waiting."""
        self._kill_groups(range(len(self._processes)))
        self._end_what_they_left()

    def end(self) -> None:
        """End them and what they have started by force; a worker that is stopped would outlive its rank.

        Only their Popen may reap them: a Popen whose child somebody else has reaped reports exit code 0.
        """
        alive = self._alive()
        self._ended.update(alive)
        self._kill_groups(alive)
        self._wait(alive, GRACE_S)

    def _alive(self) -> list[int]:
        return [rank for rank in range(len(self._processes)) if not self._has_ended(rank)]

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

    def _wait(self, ranks: Sequence[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not all(map(self._has_ended, ranks)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _kill_groups(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if self._processes[rank].returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._processes[rank].pid, signal.SIGKILL)

    def _end_what_they_left(self) -> None:
        for left in held_by(lambda agent: agent == self._agent):
            _kill(left)

    def _end_followers(self) -> None:
        """End the ranks that are left when their time after another's end is over, or when one is stopped."""
        now, alive = time.monotonic(), self._alive()
        codes = [process.returncode for process in self._processes if process.returncode is not None]
        if codes and self._deadline is None:
            self._deadline = now + (FOLLOW_S if any(codes) else LEAVE_S)
        for rank in alive:
            if _is_stopped(self._processes[rank].pid):
                self._stopped_since.setdefault(rank, now)
            else:
                self._stopped_since.pop(rank, None)
        is_late = self._deadline is not None and now > self._deadline
        if alive and (is_late or any(map(self._is_held, alive))):
            self.end()

    def _is_held(self, rank: int) -> bool:
        """Whether it has been stopped for too long."""
        since = self._stopped_since.get(rank)
        return since is not None and time.monotonic() - since > STOPPED_S


def start_training(
    run: RunFolder, number: int, config: Config, agent: Identity, held: Sequence[int] = ()
) -> RunningRanks:
    """Start the training of attempt `number`.

    Its ranks inherit the descriptors `held`, and end when `agent` does not hold the run's lease any more.
    """
    assert config.train is not None
    meeting = Meeting(run.meeting(number))
    count = 1 if options_type(config.train.recipe).is_external else config.engine.train.processes
    if count > 1:
        meeting.prepare()
    environment = {**rank_environment(config.train), **naming(agent)}
    if config.engine.train.ranks is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    run.logs(number).mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    for rank in range(count):
        own = meeting.environment(rank, count) if count > 1 else {}
        with run.rank_log(number, rank).open("ab") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", GATE, *rank_command(run, config)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env={**environment, **own},
                    pass_fds=held,
                    start_new_session=True,
                )
            )
    ranks = RunningRanks(processes, meeting, agent)
    for rank, identity in enumerate(ranks.identities):
        write_json(run.rank_identity(number, rank), identity.to_json())
    for process in processes:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, which waiting for it will show
            process.stdin.write(b"g")
            process.stdin.flush()
    return ranks


def set_logs_aside(run: RunFolder, number: int, restarts: int) -> None:
    """Keep the logs of ended ranks as `rank_0.1.log`, as they do not show how the ranks after them end."""
    for log in list(run.logs(number).glob("rank_*.log")):
        if log.stem.removeprefix("rank_").isdigit():
            log.rename(log.with_suffix(f".{restarts}.log"))


def end_survivors(run: RunFolder) -> list[Identity]:
    """End every training process that earlier agents left alive, and return them."""
    left = survivors(run)
    for identity in left:
        _kill(identity)
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
    left = held_by(lambda agent: any(attempt.is_of(agent) for attempt in attempts))
    return list(dict.fromkeys([*ranks, *left]))


def held_by(is_wanted: Callable[[Identity], bool]) -> list[Identity]:
    """Return every process on this machine whose environment names an agent of this machine that `is_wanted`.

    A pid that was given again does no harm: an agent is identified by its boot and its start as well.
    """

    def is_held(process: psutil.Process) -> bool:
        agent = agent_of(process.environ())
        return agent is not None and agent.is_visible and is_wanted(agent)

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if is_held(process):
                identity = Identity.of(process.pid)
                if is_held(process):  # and no other process had that number meanwhile
                    found.append(identity)
    return found


def _kill(identity: Identity) -> None:
    if identity.is_alive():
        with suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
