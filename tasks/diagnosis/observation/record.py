"""One examination of a training, written down: what two looks some seconds apart saw of its processes.

An Observation holds facts only, no judgement. It is one JSON object, so that it can be attached to a report,
kept as evidence of a run that has been restarted since, and judged again by better rules. It names no sample
and no secret. What could not be seen is None, and `not_seen` says why.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, Literal

from tasks.diagnosis.observation.procfs import Connection, Look

Role = Literal["rank", "worker", "helper", "tracker", "launcher", "other"]
"""A rank trains; its workers load data, by helpers such as `curl`; a tracker is wandb's own process."""
FORMAT = 1


@dataclass(frozen=True)
class SampleKind:
    """Samples with the same members, of those that a worker has just passed."""

    members: Sequence[str]
    samples: int
    bytes: int
    """Of all of them together."""
    pixels: int | None = None
    """Of the first one's image, by its header."""


@dataclass(frozen=True)
class Passed:
    """What lies in a tar before the place that a process has read to, read again from the file itself.

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
    """One process of the training. `last` is None where it was gone by then; `exit_code` as wait(2) gives it.

    `waits` counts, over all glances between the looks, what its main thread did: `runs`, or the kernel
    function that it slept in, such as `futex_do_wait`; a disk's wait begins with `D:`. `places` are the
    (path, offset) at which it was seen to read, in order. `stack` has the innermost call first.
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

    @property
    def signal(self) -> int:
        """What ended it, 0 for none."""
        return self.exit_code & 0x7F

    @cached_property
    def seconds(self) -> float:
        """Between the looks; 0 where there are not two."""
        return self.last.at - self.first.at if self.first is not None and self.last is not None else 0.0

    @property
    def cpu(self) -> float:
        """Cores in use between the looks."""
        if self.first is None or self.last is None or not self.seconds:
            return 0.0
        return (self.last.cpu_s - self.first.cpu_s) / self.seconds

    def grown(self, counter: Literal["read_bytes", "disk_bytes", "written_bytes"]) -> int | None:
        """By how much a counter grew between the looks; None where it was not seen twice."""
        if self.first is None or self.last is None:
            return None
        first, last = getattr(self.first, counter), getattr(self.last, counter)
        return None if first is None or last is None else last - first

    def share(self, *waits: str) -> float:
        """The share of glances that found it in one of these waits, named by how they begin."""
        total = sum((self.waits or {}).values())
        found = sum(count for wait, count in (self.waits or {}).items() if wait.startswith(waits))
        return found / total if total else 0.0


@dataclass(frozen=True)
class Memory:
    """The limit that the process lives under, by its cgroup, else the machine's memory."""

    limit_bytes: int | None
    used_bytes: int | None
    kills: int | None
    """By the kernel since the cgroup was made, or since the machine started."""


@dataclass(frozen=True)
class Log:
    """The last lines of what the training prints, without secrets; `quiet_s` since it was last written."""

    path: str
    quiet_s: float
    lines: Sequence[str]


@dataclass(frozen=True)
class Gpu:
    name: str
    used_percent: float
    memory_used_mb: float
    memory_mb: float


@dataclass(frozen=True)
class KeptState:
    """What a loader worker of Tarmac's own says of itself, in its file; `since_s` it is in this stage."""

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
    """All that was seen. `pid` is the process that was asked about, `at` Unix seconds of the first look."""

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
    """The first samples of the first shard that the command names, whether or not anybody has it open."""
    states: Sequence[KeptState] = ()
    not_seen: Sequence[str] = ()
    trainer: str | None = None
    """Whose training it is, as a config names it; None where the command has to show it."""
    format: int = FORMAT

    def of(self, *roles: Role) -> list[ObservedProcess]:
        return [process for process in self.processes if process.role in roles]

    def workers_of(self, rank: ObservedProcess) -> list[ObservedProcess]:
        return [one for one in self.of("worker") if one.rank == rank.rank]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Observation:
        """ValueError for an object of another format."""
        if value.get("format") != FORMAT:
            raise ValueError(f"an observation of format {value.get('format')}; this Tarmac reads {FORMAT}")
        made = _made(cls, value)
        assert isinstance(made, cls)
        return made


def _made(kind: Any, value: Any) -> Any:
    """The value that JSON holds of a dataclass of this module, or of what its fields consist of."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {field.name for field in fields(kind)}
        return kind(**{name: _made(hints[name], its) for name, its in value.items() if name in known})  # type: ignore[operator]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if value is None or origin is None:
        return value
    if origin in (types.UnionType, typing.Union):
        return _made(next(one for one in inner if one is not types.NoneType), value)
    if origin is tuple:
        return tuple(value)
    if isinstance(value, list):
        return [_made(inner[0], one) for one in value]
    return value
