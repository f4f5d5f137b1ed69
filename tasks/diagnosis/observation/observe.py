"""Looks at a training twice, some seconds apart, and records the facts without judging them.

It needs no permission to trace: /proc gives states, counters, wait channels and descriptors with their
offsets to the same user. Between the looks it glances at the processes several times per second, because a
process that sleeps at both looks may have worked in between. It costs a few percent of a core during those
seconds.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from braceexpand import braceexpand

from tasks.diagnosis.observation import machine, procfs
from tasks.diagnosis.observation.locks import file_locks
from tasks.diagnosis.observation.passed import Range, ReplayReader
from tasks.diagnosis.observation.procfs import Look
from tasks.diagnosis.observation.record import Log, Observation, ObservedProcess, Role
from tasks.diagnosis.observation.redaction import redacted, redacted_words
from tasks.diagnosis.observation.sockets import TcpCounters, connections, tcp_counters
from tasks.diagnosis.observation.stacks import stacks_of
from tasks.loader import forkserver
from tasks.trainers import recognise
from tasks.trainers.command import Command

SECONDS = 5.0
"""The time between the looks: as long as a DataLoader sleeps before it checks whether its workers live."""
LONGEST_S = 20.0
"""The time between the looks where five seconds prove too little: longer than most pauses of a slow
server."""
GLANCE_S = 0.05
SELDOM = 9
"""The pause after a glance in multiples of its duration, which costs a tenth of a core at most."""
SAMPLES_TIMEOUT_S = 10.0
MOST_TARS = 3
"""The newest tars of each reader are read again."""
FIRST_SHARD = 0
"""Stands for the process where a shard is read that no process may have open."""
FIRST_BYTES = 4 << 20
LOG_LINES = 60
LAST_WORDS = 1000
"""The lines of a log that are read where only they are left: ranks end one after the other."""
LOG_BYTES = 1 << 18
MOST_STACKS = 8
MOST_FOLDERS = 32
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
TRACKERS = ("wandb-core", "wandb-service", "wandb-xpu", "gpu_stats")
CHILD_WAITS = ("do_wait", "wait_task")
WORKER_NAME = "pt_data_worker"
"""The name that PyTorch 2.6 and later give to the main thread of a DataLoader worker."""


@dataclass
class _TrackedProcess:
    """A process while it is being observed."""

    pid: int
    parent: int
    role: Role
    rank: int
    first: Look | None
    waits: Counter[str] = field(default_factory=Counter)
    places: list[tuple[str, int]] = field(default_factory=list)
    exit_code: int = 0


def observe(
    pid: int,
    seconds: float = SECONDS,
    log: Path | None = None,
    others: Sequence[int] = (),
    trainer: str | None = None,
    is_enough: Callable[[Observation], bool] = lambda seen: True,
) -> Observation:
    """Observe the process `pid`, the other ranks `others` and all their descendants for some seconds.

    `log` is the file that the training prints to, by default that of its standard output or error. `trainer`
    names the trainer where the command does not show it. A missing process gives an Observation without
    processes. Where `is_enough` finds that the observation proves too little yet, the look goes on, for
    LONGEST_S in all.
    """
    at, began = time.time(), time.monotonic()
    command, folder = procfs.argv(pid), procfs.folder(pid)
    samples = ReplayReader()
    counters = tcp_counters()
    watched = _roles(pid, [member for root in (pid, *others) for member in procfs.family(root)])
    with ThreadPoolExecutor(1) as pool:
        gpus = pool.submit(machine.gpus)
        _glance(watched, began + seconds)
        found = gpus.result()

    def record(samples: ReplayReader) -> Observation:
        now = tcp_counters()
        processes = [_finished(one, counters, now) for one in watched]
        shard = _first_shard(Command.of(command, Path(folder)), trainer) if folder and processes else None
        first = [] if shard is None else [(FIRST_SHARD, str(shard), 0, FIRST_BYTES, 0)]
        samples.ask(
            [*(one for process in processes for one in ranges_of(process)), *first], _folders(processes)
        )
        processes, no_stacks = _with_stacks(processes)
        replayed = samples.answer(SAMPLES_TIMEOUT_S)
        processes = [replace(one, passed=replayed.passed.get(one.pid, [])) for one in processes]
        shm = machine.shared_memory(pid)
        records = machine.kernel_records([one.pid for one in processes])
        looks = [one.first for one in processes if one.first is not None and one.role in ("rank", "worker")]
        is_foreign = any(look.read_bytes is None or look.files is None for look in looks)
        not_seen = {
            no_stacks: bool(no_stacks),
            "some of the samples just read (their files did not answer in time)": not replayed.is_whole,
            "I/O and open files (they belong to another user)": is_foreign,
            "the kernel's log (no permission)": records is None,
            "GPU use (no nvidia-smi)": found is None,
        }
        return Observation(
            pid=pid,
            at=at,
            seconds=round(time.monotonic() - began, 2),
            command=redacted_words(command),
            folder=redacted(folder),
            processes=processes,
            memory=machine.memory_of(pid) if processes else None,
            shm_free_bytes=shm[0] if shm else None,
            shm_bytes=shm[1] if shm else None,
            kernel=[redacted(one) for one in records or []],
            gpus=found,
            log=read_log(log) if log is not None else _own_log(processes),
            shard=next(iter(replayed.passed.get(FIRST_SHARD, [])), None),
            not_seen=[what for what, is_unseen in not_seen.items() if is_unseen],
            trainer=trainer,
            locks=file_locks([one.pid for one in processes]),
            full=replayed.full,
        )

    seen = record(samples)
    if seconds < LONGEST_S and not is_enough(seen):
        more = ReplayReader()
        _glance(watched, began + LONGEST_S)
        seen = record(more)
    return seen


def find_ranks(pid: int) -> list[int]:
    """Return the training processes of the family of `pid`, in the order of their ranks."""
    members = procfs.family(pid)
    numbers = _ranks(pid, members, {member: procfs.argv(member) for member in members})
    return sorted(numbers, key=numbers.__getitem__)


def read_log(path: Path, most: int = LOG_LINES) -> Log | None:
    """Return at most so many last lines of a log, or None where it cannot be read or is no regular file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - LOG_BYTES, 0))
            text = file.read(LOG_BYTES).decode("utf-8", "replace")
            quiet = max(time.time() - os.fstat(file.fileno()).st_mtime, 0.0)
    except OSError:
        return None
    lines = [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").splitlines()]
    shown = [redacted(line[:2000]) for line in lines if line.strip()][-most:]
    return Log(redacted(str(path)), round(quiet, 1), shown, not text.endswith(("\n", "\r")))


def _roles(pid: int, members: Sequence[int]) -> list[_TrackedProcess]:
    """Find the role of each process of the family. A rank is the first Python process below the launchers."""
    words = {member: procfs.argv(member) for member in members}
    stats = {member: stat for member in members if (stat := procfs.stat(member)) is not None}
    ranks = _ranks(pid, members, words)
    roles: dict[int, tuple[Role, int]] = {}
    watched, now = [], time.monotonic()
    for member, stat in stats.items():
        role, rank = roles[member] = _role(member, stat, words, ranks, roles)
        look = procfs.look_at_process(member, now)
        watched.append(_TrackedProcess(member, stat.parent, role, rank, look, exit_code=stat.exit_code))
    return watched


def _role(
    member: int,
    stat: procfs.ProcStat,
    words: dict[int, list[str]],
    ranks: dict[int, int],
    roles: dict[int, tuple[Role, int]],
) -> tuple[Role, int]:
    if member in ranks:
        return "rank", ranks[member]
    above, rank = roles.get(stat.parent, ("launcher", 0))
    own, programs = " ".join(words[member]), {os.path.basename(word) for word in words[member][:2]}
    if stat.name.startswith(TRACKERS) or programs & {*TRACKERS}:
        return "tracker", rank
    if stat.name == WORKER_NAME:
        return "worker", rank
    if stat.name == forkserver.NAME or any(helper in own for helper in HELPERS):
        return "other", rank
    if above in ("worker", "helper"):
        return "helper", rank
    is_fork = above == "rank" and words[member] == words.get(stat.parent)
    was_worker = above == "rank" and stat.state == "Z" and "python" in stat.name
    if is_fork or was_worker or ("multiprocessing" in own and "spawn_main" in own):
        return "worker", rank
    return ("launcher" if above == "launcher" else "other"), rank


def _ranks(pid: int, members: Sequence[int], words: dict[int, list[str]]) -> dict[int, int]:
    """Return the training processes and their numbers, by the RANK that launchers give them.

    Without such numbers, the rank is the first Python process that is no launcher, or, where that one has
    started processes that talk to each other, as `torch.multiprocessing.spawn` does, each of these."""
    python = [member for member in members if _is_python(words[member])]
    numbers: dict[int, int] = {}
    for member in python:
        given, parent = (procfs.environment(member) or {}).get("RANK", ""), _parent(member)
        if given.isdigit() and int(given) not in numbers.values() and parent not in numbers:
            numbers[member] = int(given)
    if numbers or not members:
        return numbers
    first = next((one for one in python if not _is_launcher(one, python)), pid)
    started = [one for one in python if _parent(one) == first and _talks(one)]
    return {one: rank for rank, one in enumerate(started)} if len(started) > 1 else {first: 0}


def _is_launcher(member: int, python: Sequence[int]) -> bool:
    """Return whether the process does nothing but wait for the end of a Python process that it has
    started."""
    has_child = any(_parent(one) == member for one in python)
    return has_child and (procfs.wait_of(member) or "").startswith(CHILD_WAITS)


def _parent(pid: int) -> int:
    stat = procfs.stat(pid)
    return stat.parent if stat is not None else 0


def _talks(pid: int) -> bool:
    """Return whether the process is no DataLoader worker and has a TCP connection."""
    stat = procfs.stat(pid)
    is_worker = stat is None or stat.name == WORKER_NAME
    return not is_worker and bool(connections(pid, procfs.open_files(pid) or (), {}, {}))


def _is_python(words: Sequence[str]) -> bool:
    return bool(words) and os.path.basename(words[0]).startswith("python")


def _glance(watched: Sequence[_TrackedProcess], until: float) -> None:
    """Count what the processes do until a moment, and note where in their files they read."""
    while (left := until - (began := time.monotonic())) > 0:
        for one in watched:
            if one.role in ("rank", "worker", "helper"):
                _glance_at(one)
        pause_s = min(max(SELDOM * (time.monotonic() - began), GLANCE_S), 0.5)
        time.sleep(min(pause_s, left))


def _glance_at(one: _TrackedProcess) -> None:
    seen = procfs.stat(one.pid)
    if seen is None or seen.state in "ZX":
        one.exit_code = one.exit_code if seen is None else seen.exit_code
        return
    wait = procfs.wait_of(one.pid) or ""
    doing = "runs" if seen.state == "R" else f"D:{wait}" if seen.state == "D" else wait or seen.state
    one.waits[doing] += 1
    for file in procfs.open_files(one.pid) or ():
        if file.is_regular and not file.is_writable and file.offset:
            place = (file.path, file.offset)
            if place not in one.places[-8:]:
                one.places.append(place)


def _finished(
    one: _TrackedProcess, before: dict[str, TcpCounters], now: dict[str, TcpCounters]
) -> ObservedProcess:
    """Look at a process for the second time, and return all that is known of it."""
    last = procfs.look_at_process(one.pid, time.monotonic()) if one.first is not None else None
    stat, look = procfs.stat(one.pid), last or one.first
    given = (procfs.environment(one.pid) or {}) if one.role == "rank" else {}

    def size(name: str) -> int | None:
        return int(given[name]) if given.get(name, "").isdigit() else None

    return ObservedProcess(
        pid=one.pid,
        parent=one.parent,
        role=one.role,
        rank=one.rank,
        name=stat.name if stat is not None else "",
        command=redacted_words(procfs.argv(one.pid)),
        age_s=procfs.age_s(one.pid),
        first=one.first,
        last=last,
        exit_code=stat.exit_code if stat is not None else one.exit_code,
        waits=dict(one.waits),
        places=one.places,
        connections=connections(one.pid, (look.files if look is not None else None) or (), before, now),
        descriptor_limit=procfs.descriptor_limit(one.pid),
        world_size=size("WORLD_SIZE"),
        local_world_size=size("LOCAL_WORLD_SIZE"),
    )


def _first_shard(command: Command, trainer: str | None) -> Path | None:
    """Return the first tar that the command names, if it is a local one."""
    data = recognise(command, trainer).data(command)
    if data is None or data.tars is None or ":" in data.tars:
        return None
    return command.path(next(iter(braceexpand(data.tars))))


def ranges_of(process: ObservedProcess) -> list[Range]:
    """Return, for each tar that the process was reading, the offsets between which it read at least."""
    seen: dict[str, list[int]] = {}
    for path, offset in process.places:
        if ".tar" in os.path.basename(path):
            seen.setdefault(path, []).append(offset)
    before = {file.path: file.offset for file in (process.first.files if process.first else None) or ()}
    ranges = []
    for path, offsets in list(seen.items())[-MOST_TARS:]:
        start = before.get(path)
        # A file that was not open at the first look was opened since then, and so was read from its start.
        begins = start if start is not None and offsets[-1] >= start else 0
        ranges.append((process.pid, path, begins, max(offsets), process.grown("read_bytes") or 0))
    return ranges


def _folders(processes: Sequence[ObservedProcess]) -> list[tuple[int, str]]:
    """Return the folders that the ranks and workers work in, keep temporary files in, write to or are told
    of by their command."""
    found: set[tuple[int, str]] = set()
    for one in processes:
        if one.role in ("rank", "worker") and one.last is not None:
            own = procfs.folder(one.pid)
            written = [file.path for file in one.files if file.is_regular and file.is_writable]
            values = [word.rpartition("=")[2] for word in procfs.argv(one.pid)[1:]]
            told = [os.path.join(own, value) for value in values if "/" in value and ":" not in value]
            names = ("/tmp", "/dev/shm", own, *map(os.path.dirname, written), *told)
            found.update((one.pid, name) for name in names if name)
    return sorted(found)[:MOST_FOLDERS]


def _with_stacks(processes: list[ObservedProcess]) -> tuple[list[ObservedProcess], str]:
    """Add the stacks of the ranks and of the first workers and helpers; return also why stacks are missing,
    or ""."""
    roles: tuple[Role, ...] = ("rank", "worker", "helper", "other", "launcher")
    alive = [one for role in roles for one in processes if one.role == role and one.last]
    asked = [one.pid for one in alive if one.role in ("rank", "worker") or _is_python(one.command)]
    stacks, why = stacks_of(asked[:MOST_STACKS])
    return [
        replace(one, stack=found.main, other_stacks=found.others, gil_owner=found.gil_owner)
        if (found := stacks.get(one.pid)) is not None
        else one
        for one in processes
    ], why or ""


def _own_log(processes: Sequence[ObservedProcess]) -> Log | None:
    """Return the newest of the files that the ranks print to."""
    logs: list[Log] = []
    for process in processes:
        files = process.first.files if process.first is not None and process.role == "rank" else None
        for file in files or ():
            is_log = file.fd in (1, 2) or file.path.endswith((".log", ".out", ".txt"))
            if is_log and file.is_writable and file.is_regular:
                found = read_log(Path(f"/proc/{process.pid}/root{file.path}"))
                if found is not None and found.lines:
                    logs.append(replace(found, path=redacted(file.path)))
    return min(logs, key=lambda log: log.quiet_s, default=None)
