"""What a machine says about the surroundings of a process: memory, shared memory, the kernel's log, GPUs."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from tasks.diagnosis.observation.record import Gpu, Memory

CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
"""What cgroup v1 writes for "no limit" is about twice as large."""
NVIDIA_SMI = "nvidia-smi"
NVIDIA_TIMEOUT_S = 4.0
_KILLED = re.compile(r"(?:Killed process|Memory cgroup out of memory.*Killed process) (\d+)")
_FAULT = re.compile(r"(\S+)\[(\d+)\]: (?:segfault|trap|general protection)|traps: (\S+)\[(\d+)\]")


def memory_of(pid: int) -> Memory:
    """The tightest limit of the process's cgroup and those above it, v1 or v2; else the machine's memory."""
    folders = _cgroup_folders(pid)
    limits = [(limit, folder) for folder in folders if (limit := _limit(folder)) is not None]
    if limits:
        limit, folder = min(limits, key=lambda one: one[0])
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        return Memory(limit, used, _kills(folder))
    info = _pairs(Path("/proc/meminfo"))
    total, free = info.get("MemTotal:"), info.get("MemAvailable:")
    used = None if total is None or free is None else (total - free) * 1024
    kills = _kills(folders[0]) if folders else None
    return Memory(None if total is None else total * 1024, used, kills)


def oom_kills() -> int:
    """How many processes the kernel has ended so far because memory was short: of this process's cgroup,
    where it counts them, else of the machine."""
    of_group = memory_of(os.getpid()).kills
    return _pairs(Path("/proc/vmstat")).get("oom_kill", 0) if of_group is None else of_group


def shared_memory(pid: int) -> tuple[int, int] | None:
    """Free and all bytes of the process's /dev/shm; None where it has none."""
    try:
        found = os.statvfs(f"/proc/{pid}/root/dev/shm")
    except OSError:
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def kernel_records(pids: Collection[int]) -> list[str] | None:
    """What the kernel's log says of these processes: killed for memory, faults. None where it is not ours."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found = []
    try:
        while record := _next_record(descriptor):
            killed, fault = _KILLED.search(record), _FAULT.search(record)
            said = {int(one) for match in (killed, fault) if match for one in match.groups() if _is_pid(one)}
            if said & set(pids):
                found.append(record)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found


def gpus() -> list[Gpu] | None:
    """None where nvidia-smi is not there or does not answer."""
    program = shutil.which(NVIDIA_SMI)
    if program is None:
        return None
    asked = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
    try:
        done = subprocess.run(
            [program, asked, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_TIMEOUT_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    rows = [[word.strip() for word in row] for row in csv.reader(done.stdout.splitlines())]
    numeric = [row for row in rows if len(row) == 4 and all(_is_number(word) for word in row[1:])]
    return [Gpu(row[0], float(row[1]), float(row[2]), float(row[3])) for row in numeric] or None


def _next_record(descriptor: int) -> str | None:
    """The text of the kernel log's next record; None behind the newest."""
    while True:
        try:
            raw = os.read(descriptor, 8192)
        except BlockingIOError:
            return None
        except BrokenPipeError:  # overwritten while being read; the next read goes on behind the gap
            continue
        return raw.decode("utf-8", "replace").partition(";")[2].partition("\n")[0] or " "


def _cgroup_folders(pid: int) -> list[Path]:
    """Of the memory controller, the process's own first and then those above it."""
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


def _limit(folder: Path) -> int | None:
    limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
    return limit if limit is not None and limit < NO_LIMIT else None


def _kills(folder: Path) -> int | None:
    for name in ("memory.events", "memory.oom_control"):
        if (kills := _pairs(folder / name).get("oom_kill")) is not None:
            return kills
    return None


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


def _is_pid(text: str | None) -> bool:
    return text is not None and text.isdigit()


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
