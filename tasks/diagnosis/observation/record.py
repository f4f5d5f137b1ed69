"""The record of one examination of a training: facts about its processes from two looks.

An Observation holds facts only, no judgement. It is one JSON object, so that it can be attached to a report,
kept as evidence of a run that has been restarted since, and judged again by better rules. It holds the name
of no sample and no secret. A fact that could not be observed is None, and `not_seen` gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import TypeAdapter

from tasks.diagnosis.observation.locks import FileLock
from tasks.diagnosis.observation.procfs import Look, OpenFile
from tasks.diagnosis.observation.sockets import Connection

Role = Literal["rank", "worker", "helper", "tracker", "launcher", "other"]
"""A rank trains; its workers load data, with helpers such as `curl`; a tracker is wandb's own process."""
FORMAT = 1


@dataclass(frozen=True)
class SampleKind:
    """Samples with the same members, among those that a worker has just passed."""

    members: Sequence[str]
    samples: int
    bytes: int
    """The bytes of all of them together."""
    pixels: int | None = None
    """The pixels of the first sample's image, by its header."""
    images: int = 0
    undecodable: int = 0
    """The images whose header was tried, and those of them whose header cannot be read."""


@dataclass(frozen=True)
class Passed:
    """The samples in a tar before the offset that a process has read to, read again from the file itself.

    `samples_before` counts from the start of the tar to `start`, `kinds` from there to `stop`.
    """

    path: str
    start: int
    stop: int
    samples_before: int
    kinds: Sequence[SampleKind]

    @property
    def samples(self) -> int:
        return sum(kind.samples for kind in self.kinds)


@dataclass(frozen=True)
class ObservedProcess:
    """One process of the training. `last` is None if it was gone; `exit_code` has the form of wait(2).

    `waits` counts, over all glances between the looks, what its main thread did: `runs`, or the kernel
    function that it slept in, such as `futex_do_wait`; a wait for a disk begins with `D:`. `places` are the
    (path, offset) at which it was reading, in order. `stack` has the innermost call first.
    """

    pid: int
    parent: int
    role: Role
    rank: int
    name: str
    command: Sequence[str]
    age_s: float | None
    first: Look | None
    last: Look | None
    exit_code: int = 0
    waits: Mapping[str, int] | None = None
    places: Sequence[tuple[str, int]] = ()
    passed: Sequence[Passed] = ()
    connections: Sequence[Connection] = ()
    descriptor_limit: int | None = None
    stack: Sequence[str] | None = None
    other_stacks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The stacks of its other Python threads, by their names."""
    gil_owner: str | None = None
    """The thread that held Python's lock as the stacks were read."""
    world_size: int | None = None
    local_world_size: int | None = None
    """The numbers of ranks, in all and on this node, that the launcher has given to a rank."""

    @property
    def signal(self) -> int:
        """The signal that ended it, 0 for none."""
        return self.exit_code & 0x7F

    @cached_property
    def seconds(self) -> float:
        """The time between the looks; 0 where there are not two."""
        return self.last.at - self.first.at if self.first is not None and self.last is not None else 0.0

    @property
    def cpu(self) -> float:
        """The cores in use between the looks."""
        if self.first is None or self.last is None or not self.seconds:
            return 0.0
        return (self.last.cpu_s - self.first.cpu_s) / self.seconds

    @cached_property
    def thread_cpu(self) -> list[float]:
        """The cores that each thread of the second look used since the first, the main thread first."""
        if self.first is None or self.last is None or not self.seconds:
            return []
        before = {one.number: one.cpu_s for one in self.first.threads}
        return [(one.cpu_s - before.get(one.number, 0.0)) / self.seconds for one in self.last.threads]

    @property
    def files(self) -> Sequence[OpenFile]:
        """The files that it had open at the second look, as far as they may be read."""
        return (self.last.files if self.last is not None else None) or ()

    @cached_property
    def read_again(self) -> list[str]:
        """The files that it has read from an earlier place again, between the looks."""
        reached: dict[str, int] = {}
        again = []
        for path, offset in self.places:
            if offset < reached.get(path, 0) // 2 and path not in again:
                again.append(path)
            reached[path] = max(offset, reached.get(path, 0))
        return again

    def grown(
        self, counter: Literal["read_bytes", "disk_bytes", "written_bytes", "dirtied_bytes", "switches"]
    ) -> int | None:
        """Return the growth of a counter between the looks, or None where it was not read twice."""
        if self.first is None or self.last is None:
            return None
        first, last = getattr(self.first, counter), getattr(self.last, counter)
        return None if first is None or last is None else last - first

    def share(self, *waits: str) -> float:
        """Return the share of glances at which it was in one of these waits, given by their first letters."""
        total = sum((self.waits or {}).values())
        found = sum(count for wait, count in (self.waits or {}).items() if wait.startswith(waits))
        return found / total if total else 0.0


@dataclass(frozen=True)
class Memory:
    """The memory limit of the process, by its cgroup, else the machine's memory."""

    limit_bytes: int | None
    used_bytes: int | None
    kills: int | None
    """The processes that the kernel has killed since the cgroup was made, or since the machine started."""


@dataclass(frozen=True)
class Log:
    """The last lines of the training's output, without secrets; `quiet_s` since it was last written."""

    path: str
    quiet_s: float
    lines: Sequence[str]
    is_unfinished: bool = False
    """Whether the last line has no end yet, as a question to the user has none."""


@dataclass(frozen=True)
class Gpu:
    name: str
    used_percent: float
    memory_used_mb: float
    memory_mb: float


@dataclass(frozen=True)
class KeptState:
    """The state in the file of a loader worker of Tarmac's own; `since_s` is the time in this stage."""

    rank: int
    worker: int
    pid: int
    stage: str
    since_s: float
    shard: str
    read: int
    dropped: int
    delivered: int


@dataclass(frozen=True)
class Observation:
    """All facts. `pid` is the process that was asked about, `at` the first look in Unix seconds."""

    pid: int
    at: float
    seconds: float
    command: Sequence[str]
    folder: str
    processes: Sequence[ObservedProcess]
    memory: Memory | None = None
    shm_free_bytes: int | None = None
    shm_bytes: int | None = None
    kernel: Sequence[str] = ()
    """Records of the kernel about these processes: killed for memory, a segmentation fault."""
    gpus: Sequence[Gpu] | None = None
    log: Log | None = None
    shard: Passed | None = None
    """The first samples of the first shard that the command names, whether or not a process has it open."""
    states: Sequence[KeptState] = ()
    not_seen: Sequence[str] = ()
    locks: Sequence[FileLock] = ()
    full: Sequence[str] = ()
    """The folders that it works in or writes to whose file system has no room left."""
    trainer: str | None = None
    """The trainer in the words of a config; None where it follows from the command."""
    format: int = FORMAT

    def of(self, *roles: Role) -> list[ObservedProcess]:
        return [process for process in self.processes if process.role in roles]

    def workers_of(self, rank: ObservedProcess) -> list[ObservedProcess]:
        return [one for one in self.of("worker") if one.rank == rank.rank]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Observation:
        """ValueError for an object of another format, and for what is no observation."""
        given = value.get("format") if isinstance(value, Mapping) else None
        if given != FORMAT:
            raise ValueError(f"an observation of format {given}; this Tarmac reads {FORMAT}")
        return TypeAdapter(cls).validate_python(value)
