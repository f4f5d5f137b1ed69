"""Reads the surroundings of a process from the machine: memory, shared memory, the kernel's log and GPUs."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import psutil

from tasks.diagnosis.observation.record import Gpu, Memory

CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
"""The value by which cgroup v1 states that there is no limit is about twice as large."""
NVIDIA_SMI = "nvidia-smi"
NVIDIA_TIMEOUT_S = 4.0
_KILLED = re.compile(r"(?:Killed process|Memory cgroup out of memory.*Killed process) (\d+)")
_FAULT = re.compile(r"(\S+)\[(\d+)\]: (?:segfault|trap|general protection)|traps: (\S+)\[(\d+)\]")


def memory_of(pid: int) -> Memory:
    """Return the tightest memory limit of the process's cgroups, else the machine's memory."""
    if limits := cgroup_limits(pid):
        limit, file = min(limits, key=lambda one: one[0])
        used = _number(file.with_name("memory.current")) or _number(file.with_name("memory.usage_in_bytes"))
        return Memory(limit, used, _kills(file.parent))
    whole, folders = psutil.virtual_memory(), _cgroup_folders(pid)
    return Memory(whole.total, whole.total - whole.available, _kills(folders[0]) if folders else None)


def memory_left(pid: int) -> int:
    """Return the bytes that the process and its children may still take before one is killed; the cache of
    files counts as free."""
    left: int = psutil.virtual_memory().available
    for limit, file in cgroup_limits(pid):
        used = _number(file.with_name("memory.current")) or _number(file.with_name("memory.usage_in_bytes"))
        cache = _pairs(file.with_name("memory.stat"))
        left = min(left, limit - (used or 0) + cache.get("file", cache.get("total_cache", 0)))
    return max(left, 0)


def cgroup_limits(pid: int) -> list[tuple[int, Path]]:
    """Return the memory limits of the process's cgroup and those above it, v1 or v2, each with its file."""
    names = ("memory.max", "memory.limit_in_bytes")
    files = [folder / name for folder in _cgroup_folders(pid) for name in names]
    limits = [(limit, file) for file in files if (limit := _number(file)) is not None]
    return [(limit, file) for limit, file in limits if limit < NO_LIMIT]


def oom_kills() -> int:
    """Return how many processes the kernel has killed so far because memory was short: in this process's
    cgroup, where it counts them, else on the machine."""
    of_group = memory_of(os.getpid()).kills
    return _pairs(Path("/proc/vmstat")).get("oom_kill", 0) if of_group is None else of_group


def shared_memory(pid: int) -> tuple[int, int] | None:
    """Return the free and the total bytes of the process's /dev/shm, or None where it has none."""
    try:
        found = os.statvfs(f"/proc/{pid}/root/dev/shm")
    except OSError:
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def kernel_records(pids: Collection[int]) -> list[str] | None:
    """Return the records of the kernel's log about these processes (killed for memory, faults), or None where
    the log may not be read."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found = []
    try:
        while record := _next_record(descriptor):
            matches = [match for pattern in (_KILLED, _FAULT) if (match := pattern.search(record))]
            words = {word for match in matches for word in match.groups() if word}
            if words & set(map(str, pids)):
                found.append(record)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found


def gpus() -> list[Gpu] | None:
    """Return the GPUs, or None where nvidia-smi is missing or does not answer."""
    program = shutil.which(NVIDIA_SMI)
    if program is None:
        return None
    query = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_TIMEOUT_S, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return None
    rows = [[word.strip() for word in row] for row in csv.reader(done.stdout.splitlines())]
    numeric = [row for row in rows if len(row) == 4 and all(_is_number(word) for word in row[1:])]
    return [Gpu(name, *map(float, values)) for name, *values in numeric] or None


def _next_record(descriptor: int) -> str | None:
    """Return the text of the kernel log's next record, or None behind the newest."""
    while True:
        try:
            raw = os.read(descriptor, 8192)
        except BlockingIOError:
            return None
        except BrokenPipeError:  # overwritten while being read; the next read goes on behind the gap
            continue
        return raw.decode("utf-8", "replace").partition(";")[2].partition("\n")[0] or " "


def _cgroup_folders(pid: int) -> list[Path]:
    """Return the folders of the process's memory cgroup and of those above it."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    unified = CGROUPS / "cgroup.controllers"
    root = CGROUPS if unified.exists() else CGROUPS / "memory"
    path = paths.get("", "/") if unified.exists() else paths.get("memory", "/")
    folder = root / path.lstrip("/")
    every = [folder, *(one for one in folder.parents if one.is_relative_to(root))]
    return [one for one in every if one.is_dir()] or ([root] if root.is_dir() else [])


def _kills(folder: Path) -> int | None:
    found = [_pairs(folder / name).get("oom_kill") for name in ("memory.events", "memory.oom_control")]
    return next((kills for kills in found if kills is not None), None)


def _pairs(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines]
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
