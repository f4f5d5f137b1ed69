"""Predicts the peak memory of a loader, compares it with the machine, and finds the settings that fit.

    peak = workers x ((prefetch + 1) x batch bytes + working set + the worker itself) + batches in hand + main

A validation has its own workers; the workers of the training wait beside them with their batches ready.

A worker holds `prefetch` batches that are under way or ready. While it assembles the last of them, that
batch's samples exist twice: one by one and stacked. The cost of one sample is measured and the rest is
arithmetic, so that settings can be judged before anybody starts them. Pages that processes share count once.
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
from tasks.diagnosis.observation import machine, procfs

if TYPE_CHECKING:
    from tasks.loader.feed import Feed

MEASURED_BATCHES = 8
SHARED = "/dev/shm/"
WORKER_BYTES, MAIN_BYTES = 60e6, 1e9
"""A worker that shares its imports with others, and a training process with torch and open_clip but without
the model, as measured with torch 2.13 on Linux."""
TOKENS, DEFAULT_SIDE = 77, 224
"""Tokens of a caption, and pixels of an image's side where the model's description gives none."""
SPARE = 0.9
"""The share of each resource that a plan may fill, because other programs on the machine need some, too."""
SPARE_DESCRIPTORS = 128
"""The other files, sockets and libraries that a training process has open."""


@dataclass(frozen=True)
class LoaderCost:
    """The parts of a loader's memory, in bytes.

    `sample` is one sample in a batch, `working` the memory that making one needs in addition, `worker` a
    worker process without any sample, `main` all other processes, `buffer` the samples that a worker holds to
    shuffle. `tensors` is the number of tensors in a batch, each of which lies in /dev/shm and travels as a
    file descriptor; 0 for batches of Tarmac's loader, which lie in a file without a name. `loose` is 0 where
    samples are written straight into their batch, and 1 where they become one together.
    """

    sample: float
    working: float
    worker: float
    main: float
    buffer: float = 0.0
    tensors: int = 3
    loose: int = 1


@dataclass(frozen=True)
class LoaderSize:
    """The settings on which memory depends. `batch_size` is the number of samples that a worker assembles at
    a time, `in_hand` the number of such batches that the training holds itself, and `judged` the batch size
    of the validation, 0 where there is none."""

    workers: int
    prefetch: int
    batch_size: int
    ranks: int = 1
    in_hand: int = 1
    judged: int = 0


@dataclass(frozen=True)
class MachineLimits:
    """The limits of this machine, in bytes and descriptors; `by` names what limits the memory."""

    memory: float
    by: str
    shared: float
    descriptors: int


def peak_bytes(cost: LoaderCost, size: LoaderSize) -> float:
    """Return the most memory that all processes of the ranks on a machine hold at once. Each of Tarmac's own
    workers keeps the buffers of the batches that the training may have in hand at once."""
    batch, judged = cost.sample * size.batch_size, cost.sample * size.judged
    if not size.workers:
        most = max((1 + size.in_hand) * batch, 2 * judged)
        return size.ranks * (cost.main + cost.buffer + cost.working + most)
    making = cost.worker + cost.working
    is_own = not cost.tensors
    held = size.workers * math.ceil(size.in_hand / size.workers) if is_own else size.in_hand
    ready = size.prefetch + cost.loose
    training = size.workers * (making + cost.buffer + ready * batch) + held * batch
    waiting = size.workers * (cost.worker + cost.buffer + size.prefetch * batch) + is_own * held * batch
    judging = size.workers * ready + (size.workers if is_own else 1)
    validating = size.workers * making + judging * judged if judged else 0.0
    return size.ranks * (cost.main + max(training, waiting + validating))


def shared_bytes(cost: LoaderCost, size: LoaderSize) -> float:
    """Return the bytes of /dev/shm that the batches under way take."""
    if not cost.tensors:
        return 0.0
    ready = size.workers * size.prefetch
    training = (ready + size.in_hand) * size.batch_size
    validating = ready * size.batch_size + (ready + 1) * size.judged if size.judged else 0
    return size.ranks * max(training, validating) * cost.sample if size.workers else 0.0


def open_descriptors(cost: LoaderCost, size: LoaderSize) -> int:
    """Return the open descriptors of one training process: each tensor in /dev/shm is one, and each worker
    of Tarmac's loader has two."""
    of_batches = (size.workers * size.prefetch + size.in_hand) * cost.tensors
    return SPARE_DESCRIPTORS + (of_batches or 2 * size.workers * (2 if size.judged else 1))


def largest(cost: LoaderCost, size: LoaderSize, limits: MachineLimits) -> LoaderSize | None:
    """Return the largest settings up to the given ones that fit: fewer batches ahead first, then fewer
    workers, then smaller batches; None where not even one sample fits."""
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
    """Report what does not fit, with the largest settings that do. `names` are the names of `workers`,
    `prefetch` and `batch_size` on the command line or in the config; a setting without a name cannot be
    changed."""
    given = size if "prefetch" in names else replace(size, prefetch=min(size.prefetch, 1))
    fitting = largest(cost, given, limits)
    values = {name: (getattr(size, one), getattr(fitting or size, one)) for one, name in names.items()}
    changes = {name: new for name, (old, new) in values.items() if new != old}
    listed = ", ".join(f"{name} {value}" for name, value in changes.items())
    remedy = "a machine with more of it: one batch is too much"
    if changes:
        remedy = f"take {listed}: the largest that fits"
    need, shared, files = peak_bytes(cost, size), shared_bytes(cost, size), open_descriptors(cost, size)
    each = f"{counted(size.workers, 'worker')} of {counted(size.ranks, 'rank')}, {size.prefetch} batches each"
    problems = {}
    if need > SPARE * limits.memory:
        of = f"{gigabytes(limits.memory)} ({limits.by})"
        problems["memory.exceeded"] = f"{each}: {gigabytes(need)} at the peak, of {of}"
    if shared > SPARE * limits.shared:
        of = f"/dev/shm, which has {gigabytes(limits.shared)}"
        problems["shm.too_small"] = f"{each}: {gigabytes(shared)} of batches in {of}"
    if files > limits.descriptors:
        problems["fds.too_few"] = f"{files:,} open files, of {limits.descriptors:,} (ulimit -n)"
    for code, problem in problems.items():
        fix = f"ulimit -n {2 * files}, or {remedy}" if code == "fds.too_few" else remedy
        flags, config = (changes or None, None) if are_flags else (None, changes or None)
        yield Finding(code, "error", fix, evidence={"problem": problem}, config=config, flags=flags)


def estimate(side: int, pixels: int, *, buffer: float = 0.0, tensors: int = 3) -> LoaderCost:
    """Estimate the cost of pairs for a model of images of `side` pixels, whose largest image has `pixels`:
    float32, and a decoded image with one copy."""
    sample = 3 * side * side * 4 + TOKENS * 8
    return LoaderCost(sample, 2 * 3 * pixels, WORKER_BYTES, MAIN_BYTES, buffer, tensors)


def estimate_volumes(shape: Sequence[int], stored: int) -> LoaderCost:
    """Estimate the cost of int16 volumes of that shape: while one is read, its stored form of at most
    `stored` bytes and its voxels lie beside the batch."""
    sample = 2 * math.prod(shape)
    return LoaderCost(sample, float(stored + sample), WORKER_BYTES, MAIN_BYTES, tensors=0, loose=0)


def image_side(size: int | Sequence[int] | None) -> int:
    """Return the side of a model's images in pixels by its description, which may give it for each axis."""
    return int(max(size) if isinstance(size, Sequence) else size or DEFAULT_SIDE)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


def limits() -> MachineLimits:
    """Return the limits of this process; the tightest cgroup limits its memory, or what is available."""
    available = psutil.virtual_memory().available
    groups = [(size, str(file)) for size, file in machine.cgroup_limits(os.getpid())]
    memory, by = min([(available, "the machine's available memory"), *groups])
    shared = machine.shared_memory(os.getpid())
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    descriptors = soft if soft != resource.RLIM_INFINITY else 1 << 30
    return MachineLimits(float(memory), by, math.inf if shared is None else float(shared[0]), descriptors)


def measure(feed: Feed) -> LoaderCost:
    """Measure the cost of a feed's samples: one worker loads some one by one, and its memory is read."""
    one = replace(feed, workers=1, prefetch=1, batch_size=1, rank=0, world_size=1)
    with one.train() as batches:
        sizes = []
        for _ in range(MEASURED_BATCHES):
            batch = next(batches)
            sizes.append(sum(value.nbytes for value in batch.values() if hasattr(value, "nbytes")))
        (pid,) = batches.worker_pids
        rollup, status = _bytes_in(pid, "smaps_rollup"), _bytes_in(pid, "status")
        worker = rollup["Private_Clean"] + rollup["Private_Dirty"]
        working = max(status["VmHWM"] - status["VmRSS"], 0.0)
        everything = tree_bytes(os.getpid())
    loose = 0 if getattr(feed.shapes.transform(True), "reads_crops", False) else 1
    return LoaderCost(max(sizes), working, worker, everything - worker, tensors=0, loose=loose)


def tree_bytes(pid: int) -> float:
    """Return the memory of a process and its descendants, each page once, as a memory cgroup would count it.

    That is the proportional set size (proc(5)), and those segments of /dev/shm that a process keeps open but
    none has mapped, where batches lie that are ready and not yet fetched.
    """
    total = 0.0
    kept: dict[int, float] = {}
    mapped: set[int] = set()
    for one in procfs.family(pid):
        with suppress(OSError, KeyError):  # it has ended meanwhile
            total += _bytes_in(one, "smaps_rollup")["Pss"]
            kept |= _segments_open(one)
            maps = Path(f"/proc/{one}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
            mapped |= {int(line.split(None, 5)[4]) for line in maps if f" {SHARED}" in line}
    return total + sum(size for inode, size in kept.items() if inode not in mapped)


def _segments_open(pid: int) -> dict[int, float]:
    """Return the bytes of the segments of /dev/shm that a process has open, by inode."""
    found = {}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(entry.path).startswith(SHARED):
                status = os.stat(entry.path)
                found[status.st_ino] = status.st_blocks * 512.0
    return found


def _bytes_in(pid: int, file: str) -> dict[str, float]:
    """Return the sizes in a file of /proc/PID by name, in bytes."""
    return {name: size * 1024.0 for name, size in procfs.numbers(pid, file).items()}


def own_bytes(name: Literal["VmRSS", "VmHWM", "VmData"]) -> float:
    """Return the resident memory of this process (VmRSS), its peak since `forget_peak`, or its data."""
    return _bytes_in(os.getpid(), "status")[name]


def forget_peak() -> None:
    """Count the peak of this process's memory from now on, where the kernel permits it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@contextmanager
def bounded(size: float) -> Iterator[None]:
    """Limit this process to so many bytes more than it has. An allocation beyond that fails, where otherwise
    the kernel would kill this process or another one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(own_bytes("VmData") + size)
    known = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *known]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
