"""How much memory a loader needs at its peak, what limits it, and the largest settings that fit.

    peak = workers x ((prefetch + 1) x batch bytes + working set + the worker itself) + batches in hand + main

A validation has workers of its own beside those of the training, which wait with their batches ready.

A worker has `prefetch` batches under way or ready, and while it puts the last of them together, that batch's
samples are there twice: one by one and stacked. What one sample costs is measured; the rest is arithmetic,
so that settings can be judged which nobody has started yet. Pages that processes share count once.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from tasks.core.findings import Finding
from tasks.core.units import counted

if TYPE_CHECKING:
    from tasks.loader.feed import Feed

MEASURED_BATCHES = 8
SHARED = "/dev/shm/"
WORKER_BYTES, MAIN_BYTES = 60e6, 1e9
"""Of a worker that shares its imports with others, and of a training process with torch and open_clip; as
measured with torch 2.13 on Linux, without the model."""
SPARE = 0.9
"""Of what there is, the share that a plan may fill: other things on the machine need some, too."""
SPARE_DESCRIPTORS = 128
"""Files, sockets and libraries that a training process has open besides."""


@dataclass(frozen=True)
class LoaderCost:
    """What a loader's memory is made of, in bytes.

    `sample` is one sample in a batch, `working` what making one needs beside it, `worker` a worker process
    without any sample, `main` all other processes, `buffer` what a worker holds to shuffle. `tensors` are
    those of a batch, each of which travels as a file descriptor.
    """

    sample: float
    working: float
    worker: float
    main: float
    buffer: float = 0.0
    tensors: int = 3


@dataclass(frozen=True)
class LoaderSize:
    """The settings that decide about memory; `batch_size` is what a worker makes at a time, and `in_hand` how
    many of those the training holds beside those of the workers. `judged` are the samples of a batch of the
    validation, where there is one."""

    workers: int
    prefetch: int
    batch_size: int
    ranks: int = 1
    in_hand: int = 1
    judged: int = 0


@dataclass(frozen=True)
class MachineLimits:
    """What this machine gives, in bytes and descriptors; `by` names what sets the limit of memory."""

    memory: float
    by: str
    shared: float
    descriptors: int


def peak_bytes(cost: LoaderCost, size: LoaderSize) -> float:
    """The most memory that all processes of the ranks on a machine have at once."""
    batch, judged = cost.sample * size.batch_size, cost.sample * size.judged
    if not size.workers:
        most = max((1 + size.in_hand) * batch, 2 * judged)
        return size.ranks * (cost.main + cost.buffer + cost.working + most)
    making = cost.worker + cost.working
    training = size.workers * (making + cost.buffer + (size.prefetch + 1) * batch) + size.in_hand * batch
    waiting = size.workers * (cost.worker + cost.buffer + size.prefetch * batch)
    validating = size.workers * (making + (size.prefetch + 1) * judged) + judged if judged else 0.0
    return size.ranks * (cost.main + max(training, waiting + validating))


def shared_bytes(cost: LoaderCost, size: LoaderSize) -> float:
    """What the batches under way take of /dev/shm."""
    ready = size.workers * size.prefetch
    training = (ready + size.in_hand) * size.batch_size
    validating = ready * size.batch_size + (ready + 1) * size.judged if size.judged else 0
    return size.ranks * max(training, validating) * cost.sample if size.workers else 0.0


def open_descriptors(cost: LoaderCost, size: LoaderSize) -> int:
    """Those of one training process: a tensor in shared memory is one."""
    return SPARE_DESCRIPTORS + (size.workers * size.prefetch + size.in_hand) * cost.tensors


def largest(cost: LoaderCost, size: LoaderSize, limits: MachineLimits) -> LoaderSize | None:
    """The largest settings, at most those given, that fit: fewer batches ahead first, then fewer workers,
    then smaller batches; None where not even one sample does."""
    tries = [replace(size, prefetch=prefetch) for prefetch in range(size.prefetch, 0, -1)]
    tries += [replace(size, workers=workers, prefetch=1) for workers in range(size.workers - 1, 0, -1)]
    least = replace(size, workers=min(size.workers, 1), prefetch=1)
    while least.batch_size > 1:
        half = least.batch_size // 2
        least = replace(least, batch_size=half, judged=min(least.judged, half))
        tries.append(least)
    return next((one for one in tries if fits(cost, one, limits)), None)


def fits(cost: LoaderCost, size: LoaderSize, limits: MachineLimits) -> bool:
    return (
        peak_bytes(cost, size) <= SPARE * limits.memory
        and shared_bytes(cost, size) <= SPARE * limits.shared
        and open_descriptors(cost, size) <= limits.descriptors
    )


def judge_memory(
    cost: LoaderCost,
    size: LoaderSize,
    limits: MachineLimits,
    names: Mapping[str, str],
    are_flags: bool = False,
) -> Iterator[Finding]:
    """What does not fit, with the largest settings that do. `names` are those of `workers`, `prefetch` and
    `batch_size` on the command line or in the config; what has no name cannot be set."""
    given = size if "prefetch" in names else replace(size, prefetch=min(size.prefetch, 1))
    fitting = largest(cost, given, limits)
    changes = (
        {}
        if fitting is None
        else {
            name: getattr(fitting, field)
            for field, name in names.items()
            if getattr(fitting, field) != getattr(size, field)
        }
    )
    said = ", ".join(f"{name} {value}" for name, value in changes.items())
    remedy = (
        f"take {said}: the largest that fits" if said else "a machine with more of it: one batch is too much"
    )
    need, shared, files = peak_bytes(cost, size), shared_bytes(cost, size), open_descriptors(cost, size)
    each = f"{counted(size.workers, 'worker')} of {counted(size.ranks, 'rank')}, {size.prefetch} batches each"
    checks = (
        (
            "memory.exceeded",
            need > SPARE * limits.memory,
            f"{each}: {gigabytes(need)} at the peak, of {gigabytes(limits.memory)} ({limits.by})",
        ),
        (
            "shm.too_small",
            shared > SPARE * limits.shared,
            f"{each}: {gigabytes(shared)} of batches in /dev/shm, which has {gigabytes(limits.shared)}",
        ),
        (
            "fds.too_few",
            files > limits.descriptors,
            f"{files:,} open files, of {limits.descriptors:,} (ulimit -n)",
        ),
    )
    for code, is_too_much, problem in checks:
        if is_too_much:
            fix = f"ulimit -n {2 * files}, or {remedy}" if code == "fds.too_few" else remedy
            given_changes = changes or None
            yield Finding(
                code=code,
                severity="error",
                remedy=fix,
                evidence={"problem": problem},
                config=None if are_flags else given_changes,
                flags=given_changes if are_flags else None,
            )


def estimate(side: int, pixels: int, *, tokens: int = 77, buffer: float = 0.0) -> LoaderCost:
    """The cost of pairs for a model of images of `side` pixels, whose largest image has `pixels`, where
    nothing was measured: float32, and a decoded image with one copy."""
    sample = 3 * side * side * 4 + tokens * 8
    return LoaderCost(sample, working=2 * 3 * pixels, worker=WORKER_BYTES, main=MAIN_BYTES, buffer=buffer)


def estimate_volumes(shape: Sequence[int], stored: int) -> LoaderCost:
    """The cost of int16 volumes of that shape, where nothing was measured: while one is read, its stored form
    of at most `stored` bytes and the voxels that come of it lie beside the batch."""
    sample = 2 * math.prod(shape)
    return LoaderCost(sample, working=float(stored + sample), worker=WORKER_BYTES, main=MAIN_BYTES)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


def limits(shared: Path = Path("/dev/shm")) -> MachineLimits:
    """Of this process: the tightest memory cgroup above it, or what the machine has available."""
    available = float(psutil.virtual_memory().available)
    found = [(available, "the machine's available memory")]
    found += [(size, str(file)) for file, size in _cgroup_limits() if size < available]
    memory, by = min(found)
    try:
        disk = os.statvfs(shared)
        room = float(disk.f_bavail * disk.f_frsize)
    except OSError:
        room = float("inf")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MachineLimits(memory, by, room, soft if soft != resource.RLIM_INFINITY else 1 << 30)


def _cgroup_limits() -> Iterator[tuple[Path, float]]:
    """The limits of the memory cgroups of this process, version 1 and 2, without
    those that are unlimited."""
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for above in (folder, *folder.parents):
            if base in (above, *above.parents) and (size := _limit_in(above / name)) is not None:
                yield above / name, size


def _limit_in(file: Path) -> float | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return float(text) if text.isdigit() and int(text) < 1 << 60 else None


def measure(feed: Feed) -> LoaderCost:
    """What the samples of a feed cost: some are loaded one by one, by one worker, and its memory is read."""
    one = replace(feed, workers=1, prefetch=1, batch_size=1, rank=0, world_size=1)
    with one.train() as batches:
        sizes, tensors = [], 0
        for _ in range(MEASURED_BATCHES):
            batch = next(batches)
            its = [value for value in batch.values() if hasattr(value, "untyped_storage")]
            sizes.append(sum(value.untyped_storage().nbytes() for value in its))
            tensors = len(its) + 1
        (pid,) = batches.worker_pids
        worker = _rollup(pid)["Private_Clean"] + _rollup(pid)["Private_Dirty"]
        working = _peak_above_now(pid)
        everything = tree_bytes(os.getpid())
    return LoaderCost(
        sample=max(sizes), working=working, worker=worker, main=everything - worker, tensors=tensors
    )


def tree_bytes(pid: int) -> float:
    """The memory of a process and its descendants, each page once, as a memory cgroup would count it.

    That is the proportional set size (proc(5)), and those segments of /dev/shm that a process keeps open but
    none has mapped: batches that are ready and not yet fetched lie there.
    """
    total = 0.0
    kept: dict[int, float] = {}
    mapped: set[int] = set()
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    for process in family:
        try:
            total += _rollup(process.pid)["Pss"]
            kept |= _segments_open(process.pid)
            mapped |= _segments_mapped(process.pid)
        except (OSError, KeyError):
            continue  # it has ended meanwhile
    return total + sum(size for inode, size in kept.items() if inode not in mapped)


def _segments_open(pid: int) -> dict[int, float]:
    """The segments of /dev/shm that a process has a descriptor of, by inode, in bytes."""
    found = {}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(entry.path).startswith(SHARED):
                status = os.stat(entry.path)
                found[status.st_ino] = status.st_blocks * 512.0
        except OSError:
            continue  # closed meanwhile
    return found


def _segments_mapped(pid: int) -> set[int]:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return {int(line.split(None, 5)[4]) for line in maps if f" {SHARED}" in line}


def _rollup(pid: int) -> dict[str, float]:
    """The sums of /proc/PID/smaps_rollup by name, in bytes."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, size, *_ = line.split()
        found[name.rstrip(":")] = int(size) * 1024.0
    return found


def _peak_above_now(pid: int) -> float:
    """By how much a process's memory has been larger than it is, in bytes."""
    values = _status(pid)
    return max(values["VmHWM"] - values["VmRSS"], 0.0)


def own_bytes(name: Literal["VmRSS", "VmHWM"]) -> float:
    """The resident memory of this process, or the most since `forget_peak`."""
    return _status(os.getpid())[name]


def forget_peak() -> None:
    """Count the peak of this process's memory from now on, where the kernel lets it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@contextmanager
def bounded(size: float) -> Iterator[None]:
    """Refuse this process more than so many bytes besides what it has: an allocation then fails, where the
    kernel would kill the process, or another one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(_status(os.getpid())["VmData"] + size)
    known = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *known]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _status(pid: int) -> dict[str, float]:
    """The sizes in /proc/PID/status by name, in bytes."""
    values = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmHWM", "VmRSS", "VmData"):
            values[name] = int(rest.split()[0]) * 1024.0
    return values
