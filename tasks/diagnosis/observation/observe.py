"""Looks at a training twice, some seconds apart, and writes down what it saw; it judges nothing.

It needs no permission to trace: /proc gives states, counters, wait channels and descriptors with their
offsets to the same user. Between the looks it glances at the processes some times a second, because a process
that is found asleep twice may have worked in between. It costs a few per cent of a core for those seconds.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from braceexpand import braceexpand

from tasks.diagnosis.observation import machine, procfs
from tasks.diagnosis.observation.passed import Range, ReplayReader
from tasks.diagnosis.observation.procfs import Look
from tasks.diagnosis.observation.record import Log, Observation, ObservedProcess, Passed, Role
from tasks.diagnosis.observation.redaction import redacted, redacted_words
from tasks.diagnosis.observation.stacks import stacks_of
from tasks.loader import forkserver
from tasks.trainers import recognise
from tasks.trainers.command import Command

SECONDS = 5.0
"""Between the looks: as long as a DataLoader sleeps before it asks whether its workers live."""
GLANCE_S = 0.05
SELDOM = 9
"""Times as long as a glance takes is the pause behind it: a tenth of a core at most."""
SAMPLES_TIMEOUT_S = 10.0
MOST_TARS = 3
"""Of each reader, the newest."""
FIRST_SHARD = 0
"""Stands for a process where a shard is read that none may have open."""
FIRST_BYTES = 4 << 20
LOG_LINES = 60
LOG_BYTES = 1 << 16
MOST_STACKS = 8
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
TRACKERS = ("wandb-core", "wandb-service", "wandb-xpu", "gpu_stats")
WORKER_NAME = "pt_data_worker"
"""What PyTorch 2.6 and later call the main thread of a DataLoader worker."""


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
) -> Observation:
    """Look at the process `pid` and its descendants for some seconds, and at those of `others`, its ranks.

    `log` is the file that the training prints to; without it, the file of its standard output or error.
    `trainer` names the trainer where the command does not show it.
    A process that is not there gives an Observation without processes.
    """
    at = time.time()
    began = time.monotonic()
    command = procfs.argv(pid)
    samples = ReplayReader()
    watched = _roles(pid, [member for root in (pid, *others) for member in procfs.family(root)])
    with ThreadPoolExecutor(1) as pool:
        gpus = pool.submit(machine.gpus)
        _glance(watched, began + seconds)
        found = gpus.result()
    processes = [_finished(one) for one in watched]
    samples.ask(_ranges(processes, _first_shard(pid, command, trainer)))
    processes, no_stacks = _with_stacks(processes)
    processes, shard, no_samples = _with_passed_samples(processes, samples)
    memory = machine.memory_of(pid) if processes else None
    shm = machine.shared_memory(pid)
    records = machine.kernel_records([one.pid for one in processes])
    not_seen = [
        *no_stacks,
        *no_samples,
        *(["I/O and open files (they belong to another user)"] if _is_foreign(processes) else []),
        *(["the kernel's log (no permission)"] if records is None else []),
        *(["GPU use (no nvidia-smi)"] if found is None else []),
    ]
    return Observation(
        pid=pid,
        at=at,
        seconds=round(time.monotonic() - began, 2),
        command=redacted_words(command),
        folder=_folder(pid),
        processes=processes,
        memory=memory,
        shm_free_bytes=shm[0] if shm else None,
        shm_bytes=shm[1] if shm else None,
        kernel=[redacted(one) for one in records or []],
        gpus=found,
        log=read_log(log) if log is not None else _own_log(processes),
        shard=shard,
        not_seen=not_seen,
        trainer=trainer,
    )


def read_log(path: Path) -> Log | None:
    """The last lines of a log; None where it cannot be read or is no regular file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - LOG_BYTES, 0))
            text = file.read(LOG_BYTES).decode("utf-8", "replace")
            quiet = max(time.time() - os.fstat(file.fileno()).st_mtime, 0.0)
    except OSError:
        return None
    lines = [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").splitlines()]
    shown = [redacted(line[:2000]) for line in lines if line.strip()][-LOG_LINES:]
    return Log(redacted(str(path)), round(quiet, 1), shown)


def _roles(pid: int, members: Sequence[int]) -> list[_TrackedProcess]:
    """What each process of the family is to the training. A rank is the first Python below the launchers."""
    words = {member: procfs.argv(member) for member in members}
    stats = {member: procfs.stat(member) for member in members}
    ranks = _ranks(pid, members, words)
    roles: dict[int, tuple[Role, int]] = {}
    watched = []
    now = time.monotonic()
    for member in members:
        stat = stats[member]
        if stat is None:
            continue
        role, rank = _role(member, stat, words, ranks, roles)
        roles[member] = (role, rank)
        one = _TrackedProcess(
            member, stat.parent, role, rank, procfs.look_at_process(member, now), exit_code=stat.exit_code
        )
        watched.append(one)
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
    own = " ".join(words[member])
    if stat.name.startswith(TRACKERS) or any(
        os.path.basename(word) in TRACKERS for word in words[member][:2]
    ):
        return "tracker", rank
    if stat.name == WORKER_NAME:
        return "worker", rank
    if stat.name == forkserver.NAME or any(helper in own for helper in HELPERS):
        return "other", rank
    if above == "worker" or above == "helper":
        return "helper", rank
    is_fork = above == "rank" and words[member] == words.get(stat.parent)
    was_worker = above == "rank" and stat.state == "Z" and "python" in stat.name
    if is_fork or was_worker or ("multiprocessing" in own and "spawn_main" in own):
        return "worker", rank
    return ("launcher" if above == "launcher" else "other"), rank


def _ranks(pid: int, members: Sequence[int], words: dict[int, list[str]]) -> dict[int, int]:
    """The training processes and their numbers, by the RANK that launchers give them."""
    if not members:
        return {}
    numbers: dict[int, int] = {}
    for member in members:
        given = (procfs.environment(member) or {}).get("RANK", "")
        parent = procfs.stat(member)
        if given.isdigit() and int(given) not in numbers.values() and _is_python(words[member]):
            above = parent is not None and parent.parent in numbers
            if not above:
                numbers[member] = int(given)
    if numbers:
        return numbers
    python = [member for member in members if _is_python(words[member])]
    return {(pid if pid in python or not python else python[0]): 0}


def _is_python(words: Sequence[str]) -> bool:
    return bool(words) and os.path.basename(words[0]).startswith("python")


def _glance(watched: Sequence[_TrackedProcess], until: float) -> None:
    """Count what the processes do until then, and where in their files they read."""
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
    if one.role in ("worker", "helper", "rank"):
        for file in procfs.open_files(one.pid) or ():
            if file.is_regular and not file.is_writable and file.offset:
                place = (file.path, file.offset)
                if place not in one.places[-8:]:
                    one.places.append(place)


def _finished(one: _TrackedProcess) -> ObservedProcess:
    """The second look at a process, and all that is known of it."""
    last = procfs.look_at_process(one.pid, time.monotonic()) if one.first is not None else None
    stat = procfs.stat(one.pid)
    files = (last or one.first).files if (last or one.first) is not None else None  # type: ignore[union-attr]
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
        connections=procfs.connections(one.pid, files or ()),
        descriptor_limit=procfs.descriptor_limit(one.pid),
    )


def _ranges(processes: Sequence[ObservedProcess], shard: Path | None) -> list[Range]:
    """What the processes have read between the looks, and the first samples of `shard`."""
    ranges = [one for process in processes for one in ranges_of(process)]
    return [
        *ranges,
        *([(FIRST_SHARD, str(shard), 0, FIRST_BYTES, 0)] if shard is not None and processes else []),
    ]


def _with_passed_samples(
    processes: list[ObservedProcess], reader: ReplayReader
) -> tuple[list[ObservedProcess], Passed | None, list[str]]:
    """The samples that each process has passed between the looks, the first ones of the first shard, and what
    was not seen."""
    answer, is_whole = reader.answer(SAMPLES_TIMEOUT_S)
    found: dict[int, list[Passed]] = {}
    for pid, passed in answer:
        found.setdefault(pid, []).append(passed)
    seen = [replace(one, passed=found.get(one.pid, [])) for one in processes]
    unseen = [] if is_whole else ["some of the samples just read (their files did not answer in time)"]
    return seen, next(iter(found.get(FIRST_SHARD, [])), None), unseen


def _first_shard(pid: int, words: Sequence[str], trainer: str | None) -> Path | None:
    """The first tar that the command names, where it is a local one."""
    try:
        folder = Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None
    command = Command.of(words, folder)
    data = recognise(command, trainer).data(command)
    if data is None or data.tars is None or ":" in data.tars:
        return None
    return command.path(next(iter(braceexpand(data.tars))))


def ranges_of(process: ObservedProcess) -> list[Range]:
    """For each tar that the process was seen in: from which offset to which it read there, at least."""
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


def _with_stacks(processes: list[ObservedProcess]) -> tuple[list[ObservedProcess], list[str]]:
    """Stacks of the ranks and of the first workers, and what was not seen."""
    asked = [one for role in ("rank", "worker") for one in processes if one.role == role and one.last]
    stacks, why = stacks_of([one.pid for one in asked[:MOST_STACKS]])
    seen = [replace(one, stack=stacks.get(one.pid)) for one in processes]
    return seen, [why] if why else []


def _own_log(processes: Sequence[ObservedProcess]) -> Log | None:
    """The newest of the files that the ranks print to."""
    logs: list[Log] = []
    for process in processes:
        files = process.first.files if process.first is not None and process.role == "rank" else None
        printed = [file for file in files or () if file.is_writable and file.is_regular]
        for file in printed:
            if file.fd in (1, 2) or file.path.endswith((".log", ".out", ".txt")):
                found = read_log(Path(f"/proc/{process.pid}/root{file.path}"))
                if found is not None and found.lines:
                    logs.append(replace(found, path=redacted(file.path)))
    return min(logs, key=lambda log: log.quiet_s, default=None)


def _is_foreign(processes: Sequence[ObservedProcess]) -> bool:
    looks = [one.first for one in processes if one.first is not None and one.role in ("rank", "worker")]
    return any(look.read_bytes is None or look.files is None for look in looks)


def _folder(pid: int) -> str:
    try:
        return redacted(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return ""
